// What ROMIO did inside one collective call: the requests that it issued, and the bytes that it
// told the ranks to exchange. Seen by functions that stand before those of libc and of the MPI
// library.
#ifndef TIDEGATE_TEST_ORACLE_H
#define TIDEGATE_TEST_ORACLE_H

#include <stdint.h>

#define REQUESTS_MAX 100000
#define RANKS_MAX 64

struct seen {
    int64_t offset, length;
    int is_write;
};

struct oracle {
    int watching;
    int requests; // REQUESTS_MAX: more than there is room for
    struct seen request[REQUESTS_MAX];
    int exchanges;            // calls of MPI_Alltoall; the first tells counts of pieces
    int64_t bytes[RANKS_MAX]; // that this rank exchanges with each rank, as aggregator
};
extern struct oracle oracle;

void oracle_begin(void);
void oracle_end(void);
// What the MPI library itself has under that name.
void *oracle_next(const char *name);

#endif
