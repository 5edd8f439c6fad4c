// What a shuffle costs: the bandwidths inside a node and between nodes, and the time that they
// give.
#ifndef TIDEGATE_MPI_COST_H
#define TIDEGATE_MPI_COST_H

#include <mpi.h>
#include <stdint.h>

struct bandwidths {
    double intra_mbps,
        inter_mbps;  // 10^6 bytes a second, of one message; that is bytes a microsecond
    double gamma_us; // what a message costs beside its bytes
};

// Bytes that one aggregator exchanges: sums over ranks on its node (itself too) and on others, and
// the largest message of each kind.
struct shuffle {
    int64_t intra, inter, intra_max, inter_max;
};

// Fills `node` with a number for each rank of comm, the same for ranks that share memory.
// Collective. TIDEGATE_MPI_NODES=N or N:block spreads the ranks over N pretended nodes instead.
int cost_places(MPI_Comm comm, int64_t *node);

// Collective over comm: the bandwidths that the environment names (TIDEGATE_MPI_INTRA_MBPS,
// TIDEGATE_MPI_INTER_MBPS, TIDEGATE_MPI_GAMMA_US), else those in the cache, else measured now
// within 2 x 10 ms and kept in the cache.
void cost_learn(struct bandwidths *bandwidths, MPI_Comm comm, const int64_t *node);

// T_a in microseconds. As equation (1) of Liu, Chen and Zhuang prints it, where every message has
// the whole bandwidth: max(max intra_i / B_intra, max inter_j / B_inter) + gamma; or with one port
// that all messages share: max(sum intra / B_intra, sum inter / B_inter) + gamma.
uint32_t cost_shuffle_us(const struct bandwidths *bandwidths, const struct shuffle *shuffle,
                      int paper_exact);

#endif
