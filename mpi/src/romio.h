// ROMIO inside of Open MPI.
#ifndef TIDEGATE_ROMIO_H
#define TIDEGATE_ROMIO_H

#include "names.h"

#include <mpi.h>

// Notes where the MPI's library lies.
void romio_learn(const struct found *found);
// Before MPI_Init: has Open MPI use ROMIO for MPI-IO, where it has one and nothing else was asked
// for, unless the level of threads that is wanted is MPI_THREAD_MULTIPLE. TIDEGATE_MPI_IO=keep
// leaves it as it is.
void romio_choose(int wanted);
// The same before MPI_Session_init, whose info says the level.
void romio_choose_of_session(MPI_Info info);

// Whether it did, and nonblocking collectives are to be made of independent calls: those of ROMIO
// end with a signal in Open MPI (seen in 4.1.4 and 5.0.11). What they do is the same.
int romio_is_fragile(void);

#endif
