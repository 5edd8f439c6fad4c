// Which application the ranks of this MPI job are.
#ifndef TIDEGATE_APPLICATION_H
#define TIDEGATE_APPLICATION_H

#include <mpi.h>
#include <stdint.h>

// After MPI_Init: rank 0 of the world finds a name, and all ranks take it.
void application_of_world(void);
// The same for these ranks: programs that use sessions have no world.
void application_of(MPI_Comm comm, int size);
int application_is_named(void);
// A file of the mount counts for the application with this id: corrects it if it is not ours.
void application_check(int fd, uint64_t app);

#endif
