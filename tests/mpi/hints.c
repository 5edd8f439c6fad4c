// Hints as the shim tells them, without MPI: to the mount by device control calls, or to the
// short-cut where it is loaded. Reads on the grid carry them, the first off it ends them.
//
// usage: hints FILE mount|shortcut
#include "../../mpi/src/hint.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static hint_function publish_by, end_by;
static int fd;

static void fail(const char *what) {
    fprintf(stderr, "hints: %s\n", what);
    exit(1);
}

static hint_function function(const char *name) {
    hint_function found;
    void *address = dlsym(RTLD_DEFAULT, name);
    memcpy(&found, &address, sizeof address);
    return found;
}

static struct tidegate_hint hint(uint64_t operation, uint32_t flags) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct tidegate_hint it = {.operation = operation, .operation_bytes = 1 << 20};
    it.stamp_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    it.first = 8192;
    it.last = 8192 + 4 * 4096 - 1;
    it.step = 4096;
    it.shuffle_us = 700;
    it.flags = flags;
    return it;
}

static void publish(struct tidegate_hint it) {
    int heard = publish_by != NULL ? publish_by(fd, &it) == 1 : ioctl(fd, TIDEGATE_HINT, &it) == 0;
    if (!heard) fail("a hint was not heard");
}

static void end(uint64_t operation, uint64_t hinted, uint64_t off_grid) {
    struct tidegate_hint it = {.operation = operation};
    int heard = end_by != NULL ? end_by(fd, &it) == 1 : ioctl(fd, TIDEGATE_HINT_END, &it) == 0;
    if (!heard) fail("an end was not heard");
    if (it.hinted == hinted && it.off_grid == off_grid) return;
    fprintf(stderr, "hints: %llu with hints, %llu off the grid\n", (unsigned long long)it.hinted,
            (unsigned long long)it.off_grid);
    exit(1);
}

static void read_at(off_t offset, size_t len) {
    static char bytes[65536];
    if (pread(fd, bytes, len, offset) != (ssize_t)len) fail("a read is short");
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    if (strcmp(arguments[2], "shortcut") == 0) {
        publish_by = function("tidegate_hint_publish");
        end_by = function("tidegate_hint_end");
        if (publish_by == NULL || end_by == NULL) fail("the short-cut has no such functions");
    }
    fd = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || ftruncate(fd, 1 << 20) != 0) fail("no file");
    uint64_t first = UINT64_C(1) << 63 | 1000;
    publish(hint(first, HINT_EXCLUSIVE | HINT_PREDICTED));
    read_at(8192, 4096);
    read_at(8192 + 3 * 4096, 4096);
    read_at(8192 + 100, 8);
    end(first, 3, 0);
    // Nothing is said of this one.
    read_at(0, 64);
    publish(hint(first + 1, HINT_EXCLUSIVE | HINT_PREDICTED));
    read_at(8192 + 2048, 4096);
    read_at(8192, 4096);
    end(first + 1, 3, 1);
    // Predictions are believed no more: the operation's number and stamp are all that is left.
    publish(hint(first + 2, HINT_EXCLUSIVE | HINT_PREDICTED));
    read_at(0, 65536);
    end(first + 2, 4, 1);
    struct tidegate_hint nonsense = hint(first + 3, 0);
    nonsense.step = 0;
    int refused = publish_by != NULL ? publish_by(fd, &nonsense) == 0
                                     : ioctl(fd, TIDEGATE_HINT, &nonsense) != 0;
    if (!refused) fail("nonsense was heard");
    // The mount numbers directories as it does files, and some of these have the file's number.
    char *folder = dirname(arguments[1]);
    for (int i = 0; i < 200; i++) {
        struct tidegate_hint it = hint(first, HINT_EXCLUSIVE | HINT_PREDICTED);
        int directory = open(folder, O_RDONLY | O_DIRECTORY);
        if (directory < 0) fail("no directory");
        if (ioctl(directory, TIDEGATE_HINT, &it) == 0) fail("a directory took a hint");
        if (ioctl(directory, TIDEGATE_HINT_END, &it) == 0) fail("a directory took an end");
    }
    close(fd);
    puts("all right");
    return 0;
}
