// Collective data calls: one number and one stamp for all ranks, and what is predicted of them.
//
// The number needs no exchange: ranks agree on a first one when they open the file, and collectives
// of a file come in the same order on all of them. The stamp is rank 0's, which the predictor
// carries in its exchange; where nothing is predicted, it takes a broadcast.
#include "calls.h"

#include "files.h"
#include "hint.h"
#include "real.h"
#include "say.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int may_wait; // nonblocking collectives
static hint_function shortcut_publish, shortcut_end;

static uint64_t now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t calls_unique(void) {
    static uint64_t opened;
    uint64_t bits = now_ns(CLOCK_REALTIME) ^ (uint64_t)getpid() << 40;
    bits += __atomic_fetch_add(&opened, 1, __ATOMIC_RELAXED) << 20;
    // MurmurHash3's finaliser.
    bits = (bits ^ bits >> 33) * UINT64_C(0xff51afd7ed558ccd);
    bits = (bits ^ bits >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return (bits ^ bits >> 33) & ((UINT64_C(1) << 39) - 1);
}

void calls_start(void) {
    const char *nonblocking = getenv("TIDEGATE_MPI_NONBLOCKING");
    may_wait = nonblocking != NULL && strcmp(nonblocking, "exchange") == 0;
    void *found = dlsym(RTLD_DEFAULT, "tidegate_hint_publish");
    memcpy(&shortcut_publish, &found, sizeof found);
    found = dlsym(RTLD_DEFAULT, "tidegate_hint_end");
    memcpy(&shortcut_end, &found, sizeof found);
}

static void note(struct file *file, const struct tidegate_hint *hint) {
    file->hinted = hint->hinted;
    file->off_grid = hint->off_grid;
}

// Tells whoever will do the file's I/O: the short-cut, or the mount. Asynchronous I/O is done by
// threads inside of libc, which the short-cut does not see: both hear of it.
static int publish(struct file *file, struct tidegate_hint *hint, enum how how) {
    struct tidegate_hint copy = *hint;
    int taken = shortcut_publish != NULL && shortcut_publish(file->fd, &copy) == 1;
    if (taken && how != NONBLOCKING) return 0;
    return ioctl(file->fd, TIDEGATE_HINT, hint) == 0 || taken ? 0 : -1;
}

static void end(struct file *file, uint64_t operation) {
    struct tidegate_hint hint = {.operation = operation}, copy = hint;
    if (!files_has_descriptor(file)) return;
    if (shortcut_end != NULL && shortcut_end(file->fd, &copy) == 1) {
        note(file, &copy);
    } else if (ioctl(file->fd, TIDEGATE_HINT_END, &hint) == 0) {
        note(file, &hint);
    }
}

// Asks the predictor, which also makes the stamp one; where it cannot, a broadcast does.
static int predict(struct file *file, const MPI_Offset *offset, MPI_Count count, MPI_Datatype type,
                   int is_write, uint64_t *stamp_ns, struct predicted *out) {
    if (file->predictor != NULL) {
        MPI_Offset at = 0;
        if (offset != NULL) {
            at = *offset;
        } else if (!predictor_empty(file->predictor) &&
                   real_MPI_File_get_position(file->handle, &at) != MPI_SUCCESS) {
            at = 0; // the call that follows will fail as well
        }
        int done = predictor_collective(file->predictor, at, count, type, is_write, stamp_ns, out);
        if (done == 0) return 0;
    }
    if (file->size > 1) real_MPI_Bcast(stamp_ns, 1, MPI_UINT64_T, 0, file->comm);
    return -1;
}

void call_begins(struct going *going, MPI_File handle, const MPI_Offset *offset, MPI_Count count,
                 MPI_Datatype type, int is_write, enum how how) {
    going->operation = 0;
    going->file = files_find(handle);
    struct file *file = going->file;
    if (file == NULL) return;
    uint64_t operation = file->operations | (file->collectives++ & 0xffffff);
    // Without word from the other ranks nothing can be said of this one's I/O.
    if (how == NONBLOCKING && !may_wait) return;
    struct tidegate_hint hint = {.operation = operation};
    hint.stamp_ns = now_ns(CLOCK_REALTIME) + (uint64_t)file->clock_ahead_ns;
    struct predicted it;
    memset(&it, 0, sizeof it);
    int done = predict(file, offset, count, type, is_write, &hint.stamp_ns, &it) == 0;
    int is_predicted = done && it.two_phase;
    if (is_predicted) file->predicted++;
    if (is_predicted && (it.aggregator < 0 || it.last < it.first)) return;
    if (!files_has_descriptor(file)) files_look_again(file);
    if (file->fd < 0) return;
    hint.operation_bytes = done ? (uint64_t)it.operation_bytes : 0;
    if (is_predicted) {
        hint.first = (uint64_t)it.first;
        hint.last = (uint64_t)it.last;
        hint.step = (uint64_t)it.step;
        hint.shuffle_us = it.shuffle_us;
        hint.shuffle_max_us = it.shuffle_max_us;
        hint.shuffle_rank = it.shuffle_rank;
        hint.flags = HINT_PREDICTED;
    } else {
        // Wherever its I/O goes, it is this operation's, since nothing else is done meanwhile.
        if (how == NONBLOCKING) return;
        hint.last = INT64_MAX;
        hint.step = UINT64_C(1) << 63;
    }
    if (how != NONBLOCKING) hint.flags |= HINT_EXCLUSIVE;
    if (publish(file, &hint, how) == 0 && how != NONBLOCKING) going->operation = operation;
}

void call_ends(struct going *going, enum how how) {
    if (going->operation == 0) return;
    if (how == BEGIN) {
        going->file->split = going->operation;
    } else {
        end(going->file, going->operation);
    }
}

void split_ends(MPI_File handle) {
    struct file *file = files_find(handle);
    if (file == NULL || file->split == 0) return;
    end(file, file->split);
    file->split = 0;
}
