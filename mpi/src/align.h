// Hints to ROMIO by which the domains of its aggregators fall on stripes of the forwarders.
#ifndef TIDEGATE_ALIGN_H
#define TIDEGATE_ALIGN_H

#include <mpi.h>

// After MPI_Init, collective over the world: learns of the mount how files are striped.
void align_learn(void);
// The info to open that file with: `info` itself, or a copy with more, which the caller frees.
MPI_Info align_info(MPI_Comm comm, const char *path, MPI_Info info);

#endif
