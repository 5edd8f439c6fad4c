// Collective data calls: what is told of them before, and taken back afterwards.
#ifndef TIDEGATE_CALLS_H
#define TIDEGATE_CALLS_H

#include <mpi.h>
#include <stdint.h>

enum how {
    BLOCKING,
    BEGIN,       // of a split collective: may wait for the other ranks, as ROMIO's does
    NONBLOCKING, // must not
};

struct file;

// A collective call that goes on.
struct going {
    struct file *file;
    uint64_t operation; // 0: nothing was told
};

// Before the call. `offset` is NULL where the file's own pointer counts.
void call_begins(struct going *going, MPI_File handle, const MPI_Offset *offset, MPI_Count count,
                 MPI_Datatype type, int is_write, enum how how);
// After it.
void call_ends(struct going *going, enum how how);
// After the end of a split collective.
void split_ends(MPI_File handle);

// A number of 39 bits that no other file of this application has, most likely.
uint64_t calls_unique(void);
// Whether nonblocking collectives may wait for the other ranks, as they are asked to by
// TIDEGATE_MPI_NONBLOCKING=exchange.
void calls_start(void);

#endif
