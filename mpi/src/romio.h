// ROMIO inside of Open MPI.
#ifndef TIDEGATE_ROMIO_H
#define TIDEGATE_ROMIO_H

#include "names.h"

// Notes where the MPI's library lies.
void romio_learn(const struct found *found);
// Before MPI_Init: has Open MPI use ROMIO for MPI-IO, where it has one and nothing else was asked
// for. TIDEGATE_MPI_IO=keep leaves it as it is.
void romio_choose(void);

#endif
