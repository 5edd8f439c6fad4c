// Hints to ROMIO by which the domains of its aggregators fall on stripes of the forwarders, so that
// each stripe is touched by one aggregator only. What the user has set stays; nothing is set where
// ROMIO_HINTS names a file of hints, or with TIDEGATE_MPI_ALIGN=off. With TIDEGATE_MPI_ALIGN=spread
// there are also as many aggregators as forwarders, as far as there are ranks, on whichever nodes:
// ROMIO's own choice is one on each node.
//
// ROMIO has no hint that aligns the domains alone. It tells this one to the program as the stripe of
// the file system, so the wrapper of MPI_File_get_info takes it out again.
#include "align.h"

#include "files.h"
#include "hint.h"
#include "real.h"
#include "say.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STRIPE "striping_unit"

// Open files that were given a stripe.
struct aligned {
    struct aligned *next;
    MPI_File file;
};
static struct aligned *files;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// The same on all ranks, as hints have to be. 0 forwarders: nothing is set.
static struct {
    uint64_t stripe_bytes, forwarders, spreads;
} layout;

static void ask(const char *mount) {
    struct tidegate_file said;
    int fd = open(mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    if (files_ask(fd, &said) == 0) {
        layout.stripe_bytes = said.stripe_bytes;
        layout.forwarders = said.forwarders;
    }
    close(fd);
}

void align_learn(void) {
    const char *align = getenv("TIDEGATE_MPI_ALIGN");
    const char *mount = getenv("TIDEGATE_MOUNT");
    int rank = 0, size = 0;
    if (real_MPI_Comm_rank(MPI_COMM_WORLD, &rank) != MPI_SUCCESS ||
        real_MPI_Comm_size(MPI_COMM_WORLD, &size) != MPI_SUCCESS) {
        return;
    }
    int is_off = (align != NULL && strcmp(align, "off") == 0) || getenv("ROMIO_HINTS") != NULL;
    if (rank == 0 && mount != NULL && !is_off) ask(mount);
    layout.spreads = align != NULL && strcmp(align, "spread") == 0;
    if (rank == 0 && align != NULL && !is_off && !layout.spreads && strcmp(align, "on") != 0) {
        mpi_say("TIDEGATE_MPI_ALIGN is neither on, off nor spread; it is on");
    }
    if (size > 1) real_MPI_Bcast(&layout, (int)sizeof layout, MPI_BYTE, 0, MPI_COMM_WORLD);
}

// Whether the path leads into the mount, by its folder: the file itself may not be there yet.
static int is_inside(const char *path) {
    const char *mount = getenv("TIDEGATE_MOUNT");
    char folder[PATH_MAX], real[PATH_MAX];
    if (mount == NULL || strlen(path) >= sizeof folder) return 0;
    strcpy(folder, path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL) {
        strcpy(folder, ".");
    } else {
        slash[slash == folder] = 0;
    }
    size_t len = strlen(mount);
    return realpath(folder, real) != NULL && strncmp(real, mount, len) == 0 &&
           (real[len] == 0 || real[len] == '/');
}

static int is_set(MPI_Info info, const char *key) {
    int len = 0, known = 0;
    // Not MPI_Info_get: with room for less than the value, MPICH ends the program.
    return real_MPI_Info_get_valuelen(info, key, &len, &known) != MPI_SUCCESS || known;
}

static void set(MPI_Info info, const char *key, uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    if (!is_set(info, key)) real_MPI_Info_set(info, key, text);
}

MPI_Info align_info(MPI_Comm comm, const char *path, MPI_Info info) {
    MPI_Info more = MPI_INFO_NULL;
    int ranks = 0;
    if (layout.forwarders == 0 || path == NULL || !is_inside(files_path(path))) return info;
    int made = info == MPI_INFO_NULL ? real_MPI_Info_create(&more) : real_MPI_Info_dup(info, &more);
    if (made != MPI_SUCCESS) return info;
    set(more, STRIPE, layout.stripe_bytes);
    int may_spread = layout.spreads && !is_set(more, "cb_nodes") && !is_set(more, "cb_config_list");
    if (may_spread && real_MPI_Comm_size(comm, &ranks) == MPI_SUCCESS) {
        uint64_t most = (uint64_t)ranks < layout.forwarders ? (uint64_t)ranks : layout.forwarders;
        set(more, "cb_nodes", most);
        real_MPI_Info_set(more, "cb_config_list", "*:*");
    }
    return more;
}

// The place of the pointer to the file's entry, or to NULL; the lock is held.
static struct aligned **place(MPI_File file) {
    struct aligned **at = &files;
    while (*at != NULL && (*at)->file != file) at = &(*at)->next;
    return at;
}

void align_opened(MPI_File file, MPI_Info info) {
    // What the program gave itself is no secret.
    if (info != MPI_INFO_NULL && is_set(info, STRIPE)) return;
    struct aligned *entry = malloc(sizeof *entry);
    if (entry == NULL) return;
    entry->file = file;
    pthread_mutex_lock(&lock);
    entry->next = files;
    files = entry;
    pthread_mutex_unlock(&lock);
}

void align_closes(MPI_File file) {
    pthread_mutex_lock(&lock);
    struct aligned **at = place(file), *entry = *at;
    if (entry != NULL) *at = entry->next;
    pthread_mutex_unlock(&lock);
    free(entry);
}

void align_given(MPI_File file, MPI_Info info) {
    if (info != MPI_INFO_NULL && is_set(info, STRIPE)) align_closes(file);
}

void align_hide(MPI_File file, MPI_Info told) {
    pthread_mutex_lock(&lock);
    int is_ours = *place(file) != NULL;
    pthread_mutex_unlock(&lock);
    if (!is_ours || !is_set(told, STRIPE)) return;
    // The ROMIO of MPICH 5 tells both, 0 where it does not know them.
    if (is_set(told, "striping_factor")) {
        real_MPI_Info_set(told, STRIPE, "0");
    } else {
        real_MPI_Info_delete(told, STRIPE);
    }
}
