// ROMIO inside of Open MPI.
#ifndef TIDEGATE_ROMIO_H
#define TIDEGATE_ROMIO_H

#include "names.h"

// Notes where the MPI's library lies.
void romio_learn(const struct found *found);
// Before MPI_Init: has Open MPI use ROMIO for MPI-IO, where it has one and nothing else was asked
// for. TIDEGATE_MPI_IO=keep leaves it as it is.
void romio_choose(void);

// Whether it did, and nonblocking collectives are to be made of independent calls: those of ROMIO
// end with a signal in Open MPI (seen in 4.1.4 and 5.0.11). What they do is the same.
int romio_is_fragile(void);

#endif
