// Hints to ROMIO by which the domains of its aggregators fall on stripes of the forwarders, so that
// each stripe is touched by one aggregator only. What the user has set stays; nothing is set where
// ROMIO_HINTS names a file of hints, or with TIDEGATE_MPI_ALIGN=off. With TIDEGATE_MPI_ALIGN=spread
// there are also as many aggregators as forwarders, as far as there are ranks, on whichever nodes:
// ROMIO's own choice is one on each node.
#include "align.h"

#include "files.h"
#include "hint.h"
#include "real.h"
#include "say.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    set(more, "striping_unit", layout.stripe_bytes);
    int may_spread = layout.spreads && !is_set(more, "cb_nodes") && !is_set(more, "cb_config_list");
    if (may_spread && real_MPI_Comm_size(comm, &ranks) == MPI_SUCCESS) {
        uint64_t most = (uint64_t)ranks < layout.forwarders ? (uint64_t)ranks : layout.forwarders;
        set(more, "cb_nodes", most);
        real_MPI_Info_set(more, "cb_config_list", "*:*");
    }
    return more;
}
