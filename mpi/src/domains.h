// ROMIO's two-phase rules as plain arithmetic: when it is used, and which bytes each aggregator
// gets.
#ifndef TIDEGATE_MPI_DOMAINS_H
#define TIDEGATE_MPI_DOMAINS_H

#include <stdint.h>

struct span {
    int64_t first, last; // empty where last < first
};

// Whether accesses of neighbouring ranks interleave: otherwise "automatic" means independent I/O.
// `spans` are `stride` bytes apart.
int domains_interleaved(const void *spans, int stride, int ranks);

// Cuts [all.first, all.last] for that many aggregators, as ROMIO's calculation of file domains
// does: equal parts, not under `size_min` bytes, their ends moved to multiples of `unit` where it
// is > 0.
void domains_cut(struct span all, int aggregators, int64_t size_min, int64_t unit,
                 struct span *domains);

// Bytes that an aggregator's requests move: steps of `step` bytes from the first byte of `pieces`
// on, without those that no piece touches. Sorts `pieces`; all are within [all.first, all.last].
int64_t domains_moved(struct span all, int64_t step, struct span *pieces, int count);

#endif
