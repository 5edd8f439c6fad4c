// Measures what messages cost inside a node and between nodes, once for a host and an MPI, and
// prices a shuffle with it.
#include "cost.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "real.h"

enum { MESSAGE = 256 << 10, ROUNDS_MAX = 32, TAG = 77 };
#define BUDGET_US 10000.0
// Beyond these a measurement was disturbed.
#define SLOWEST_US 1000.0
#define SLOWEST_MBPS 50.0
enum { TRIES_MAX = 3 }; // in one process

int cost_places(MPI_Comm comm, int64_t *node) {
    const char *pretended = getenv("TIDEGATE_MPI_NODES");
    int rank, ranks, nodes = pretended ? atoi(pretended) : 0;
    int64_t mine;
    real_MPI_Comm_rank(comm, &rank);
    real_MPI_Comm_size(comm, &ranks);
    mine = rank;
    if (nodes > 0) {
        int a_node = (ranks + nodes - 1) / nodes;
        mine = strstr(pretended, ":block") ? rank / a_node : rank % nodes;
    } else {
        MPI_Comm neighbours;
        if (real_MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL,
                                     &neighbours) != 0)
            return -1;
        real_MPI_Bcast(&mine, 1, MPI_INT64_T, 0, neighbours);
        real_MPI_Comm_free(&neighbours);
    }
    return real_MPI_Allgather(&mine, 1, MPI_INT64_T, node, 1, MPI_INT64_T, comm) ? -1 : 0;
}

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

// One message and a byte back; its time, or -1 after an error.
static double round_trip_us(MPI_Comm comm, int other, char *buffer, int bytes) {
    double sent = now_us();
    if (real_MPI_Send(buffer, bytes, MPI_CHAR, other, TAG, comm) != 0) return -1;
    if (real_MPI_Recv(buffer + 1, 1, MPI_CHAR, other, TAG, comm, MPI_STATUS_IGNORE) != 0) return -1;
    return now_us() - sent;
}

// Rank `from` sends small and large messages to rank `to`, which answers each, until one begins
// with 0. A core that is shared with other programs shows in round trips that no network has: then
// nothing is found. Takes BUDGET_US, or two round trips where those are longer.
static void measure(MPI_Comm comm, int rank, int from, int to, char *buffer, double *mbps,
                    double *gamma_us) {
    double begun = now_us(), small = 1e9, large = 1e9;
    int rounds = 0, sane = 1;
    if (rank == to)
        do {
            if (real_MPI_Recv(buffer, MESSAGE, MPI_CHAR, from, TAG, comm, MPI_STATUS_IGNORE) != 0)
                return;
            if (real_MPI_Send(buffer, 1, MPI_CHAR, from, TAG, comm) != 0) return;
        } while (buffer[0]);
    if (rank != from) return;
    do {
        int is_small = rounds < ROUNDS_MAX / 2 && now_us() - begun < BUDGET_US / 2;
        double *best = is_small ? &small : &large, took;
        sane = rounds < 1 || small < SLOWEST_US;
        buffer[0] = sane && ++rounds < ROUNDS_MAX && now_us() - begun < BUDGET_US;
        took = round_trip_us(comm, to, buffer, is_small ? 1 : MESSAGE);
        if (took < 0) return;
        if (took < *best) *best = took;
    } while (buffer[0]);
    if (!sane || large <= small || MESSAGE / (large - small) < SLOWEST_MBPS) return;
    *gamma_us = small / 2;
    *mbps = MESSAGE / (large - small);
}

// The path of the cache, which depends on the host and the MPI's version; "" where there is none.
static void cache_path(char *path, size_t room) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "", host[256] = "";
    const char *home = getenv("XDG_CACHE_HOME"), *below = "";
    int length = 0;
    unsigned hash = 2166136261u;
    path[0] = 0;
    if (!home || home[0] != '/') home = getenv("HOME"), below = "/.cache";
    if (!home || home[0] != '/') return;
    real_MPI_Get_library_version(version, &length);
    gethostname(host, sizeof host - 1);
    for (const char *at = version; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 16777619u;
    // Each folder on the way is made where it is missing.
    if (snprintf(path, room, "%s%s", home, below) >= (int)room) goto none;
    mkdir(path, 0700);
    if (snprintf(path, room, "%s%s/tidegate", home, below) >= (int)room) goto none;
    mkdir(path, 0700);
    if (snprintf(path, room, "%s%s/tidegate/mpi-bandwidth-%s-%08x", home, below, host, hash) <
        (int)room)
        return;
none:
    path[0] = 0;
}

static void cache_read(const char *path, struct bandwidths *known) {
    struct bandwidths read = {0, 0, 0};
    FILE *file = path[0] ? fopen(path, "r") : NULL;
    if (!file) return;
    if (fscanf(file, "%lf %lf %lf", &read.intra_mbps, &read.inter_mbps, &read.gamma_us) == 3 &&
        read.intra_mbps >= 0 && read.inter_mbps >= 0 && read.gamma_us > 0)
        *known = read;
    fclose(file);
}

// Whole or not at all, as other programs may start just now. A cache that cannot be written is
// left.
static void cache_write(const char *path, const struct bandwidths *known) {
    char beside[PATH_MAX];
    FILE *file;
    int written;
    if (!path[0] || snprintf(beside, sizeof beside, "%s.%d", path, (int)getpid()) >= PATH_MAX)
        return;
    file = fopen(beside, "w");
    if (!file) return;
    written = fprintf(file, "%.1f %.1f %.3f\n", known->intra_mbps, known->inter_mbps,
                      known->gamma_us) > 0;
    if (fclose(file) != 0 || !written || rename(beside, path) != 0) unlink(beside);
}

static double named(const char *name, double otherwise) {
    const char *value = getenv(name);
    double number = value ? atof(value) : 0;
    return number > 0 ? number : otherwise;
}

// Two ranks of one node and two of different ones; -1 where there are none. Any rank finds the
// same.
static void pairs(const int64_t *node, int ranks, int pair[4]) {
    pair[0] = pair[1] = pair[2] = pair[3] = -1;
    for (int i = 1; i < ranks; i++) {
        if (pair[0] < 0 && node[i] == node[0]) pair[0] = 0, pair[1] = i;
        if (pair[2] < 0 && node[i] != node[0]) pair[2] = 0, pair[3] = i;
    }
    // Rank 0 may be alone on its node: any neighbours with one node will do.
    for (int i = 1; i < ranks && pair[0] < 0; i++)
        if (node[i] == node[i - 1]) pair[0] = i - 1, pair[1] = i;
}

void cost_learn(struct bandwidths *bandwidths, MPI_Comm comm, const int64_t *node) {
    static struct bandwidths known; // of this process, once it was rank 0
    static int tries;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // not held while ranks wait
    char path[PATH_MAX] = "";
    double all[5] = {0}, found[3] = {0};
    int rank, ranks, pair[4], pretended = getenv("TIDEGATE_MPI_NODES") != NULL;
    real_MPI_Comm_rank(comm, &rank);
    real_MPI_Comm_size(comm, &ranks);
    pairs(node, ranks, pair);
    if (rank == 0) {
        pthread_mutex_lock(&lock);
        if (known.gamma_us <= 0) {
            cache_path(path, sizeof path);
            cache_read(path, &known);
        }
        all[0] = named("TIDEGATE_MPI_INTRA_MBPS", known.intra_mbps);
        all[1] = named("TIDEGATE_MPI_INTER_MBPS", known.inter_mbps);
        all[2] = named("TIDEGATE_MPI_GAMMA_US", known.gamma_us);
        pthread_mutex_unlock(&lock);
        all[3] = pair[0] >= 0 && (all[0] <= 0 || all[2] <= 0); // measure inside a node
        all[4] = pair[2] >= 0 && all[1] <= 0;                  // and between nodes
        if (tries >= TRIES_MAX) all[3] = all[4] = 0;
        tries += all[3] > 0 || all[4] > 0;
    }
    real_MPI_Bcast(all, 5, MPI_DOUBLE, 0, comm);
    // Not of the thread's own storage, which all threads of the program would pay for.
    char *buffer = NULL;
    if (all[3] > 0 || all[4] > 0) {
        buffer = malloc(MESSAGE);
        int can = buffer != NULL, all_can = 0;
        real_MPI_Allreduce(&can, &all_can, 1, MPI_INT, MPI_MIN, comm);
        if (!all_can) all[3] = all[4] = 0;
    }
    if (all[3] > 0) measure(comm, rank, pair[0], pair[1], buffer, &found[0], &found[2]);
    if (all[4] > 0) {
        double gamma_us = 0;
        measure(comm, rank, pair[2], pair[3], buffer, &found[1], &gamma_us);
        if (gamma_us > found[2]) found[2] = gamma_us;
    }
    free(buffer);
    if (all[3] > 0 || all[4] > 0) {
        double most[3] = {0};
        real_MPI_Allreduce(found, most, 3, MPI_DOUBLE, MPI_MAX, comm);
        for (int i = 0; i < 3; i++)
            if (all[i] <= 0) all[i] = most[i];
        if (rank == 0) {
            pthread_mutex_lock(&lock);
            if (most[0] > 0) known.intra_mbps = most[0];
            if (most[1] > 0 && !pretended) known.inter_mbps = most[1];
            if (most[2] > 0 && (!pretended || most[0] > 0)) known.gamma_us = most[2];
            cache_path(path, sizeof path);
            if (known.gamma_us > 0) cache_write(path, &known);
            pthread_mutex_unlock(&lock);
        }
    }
    // Nothing measured: one rank, one node whose messages do not use the missing number, or a
    // machine too busy to tell.
    bandwidths->intra_mbps = all[0] > 0 ? all[0] : 4000;
    bandwidths->inter_mbps = all[1] > 0 ? all[1] : 1000;
    bandwidths->gamma_us = all[2] > 0 ? all[2] : 2;
}

uint32_t cost_shuffle_us(const struct bandwidths *bandwidths, const struct shuffle *shuffle,
                         int paper_exact) {
    int64_t intra_bytes = paper_exact ? shuffle->intra_max : shuffle->intra;
    int64_t inter_bytes = paper_exact ? shuffle->inter_max : shuffle->inter;
    double intra = (double)intra_bytes / bandwidths->intra_mbps;
    double inter = (double)inter_bytes / bandwidths->inter_mbps;
    double us;
    if (shuffle->intra == 0 && shuffle->inter == 0) return 0;
    us = (intra > inter ? intra : inter) + bandwidths->gamma_us;
    // Rounded up: a shuffle never costs nothing.
    return us < UINT32_MAX - 1 ? (uint32_t)us + 1 : UINT32_MAX;
}
