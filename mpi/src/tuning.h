// ROMIO's effective hints for an open file, as far as they decide about two-phase I/O.
#ifndef TIDEGATE_MPI_TUNING_H
#define TIDEGATE_MPI_TUNING_H

#include <mpi.h>
#include <stdint.h>

enum collective_buffering { CB_AUTOMATIC, CB_ENABLE, CB_DISABLE };

struct tuning {
    int aggregators, *ranks; // as they were at open; ranks[i] is the rank of aggregator i
    int64_t buffer_size;     // bytes of one request
    int64_t stripe;          // domains end on multiples of it; 0: anywhere
    int64_t domain_min;      // bytes
    enum collective_buffering read, write;
    int persistent_realms; // romio_cb_pfr: another algorithm, not predicted
    uint64_t hash;         // of all of it
};

// Collective over comm, after the file was opened. 0, or -1 where the file is not ROMIO's or does
// not tell its aggregators. That can differ between ranks only where ROMIO itself would fail.
int tuning_open(struct tuning *tuning, MPI_File file, MPI_Comm comm);
// Reads again what may change while a file is open. Local; -1 where the file tells no more.
int tuning_refresh(struct tuning *tuning, MPI_File file);
void tuning_free(struct tuning *tuning);

#endif
