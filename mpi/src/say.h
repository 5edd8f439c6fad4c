// What the shim has to tell, and whether it was asked for.
#ifndef TIDEGATE_SAY_H
#define TIDEGATE_SAY_H

// TIDEGATE_MPI_VERBOSE is set.
extern int mpi_verbose;

// One line on standard error, begun with "tidegate: ".
__attribute__((format(printf, 1, 2))) void mpi_say(const char *format, ...);

#endif
