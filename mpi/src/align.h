// Hints to ROMIO by which the domains of its aggregators fall on stripes of the forwarders.
#ifndef TIDEGATE_ALIGN_H
#define TIDEGATE_ALIGN_H

#include <mpi.h>

// After MPI_Init, collective over the world: learns of the mount how files are striped.
void align_learn(void);
// The info to open that file with: `info` itself, or a copy with more, which the caller frees.
MPI_Info align_info(MPI_Comm comm, const char *path, MPI_Info info);

// Programs are not told the stripe that they did not ask for: libraries such as PnetCDF lay out
// their files by it, and a file must not depend on how it came to the disk.
//
// After a file was opened with such a copy of `info`.
void align_opened(MPI_File file, MPI_Info info);
// After the program has given a hint while the file is open.
void align_given(MPI_File file, MPI_Info info);
// After MPI_File_get_info.
void align_hide(MPI_File file, MPI_Info told);
// Before MPI_File_close.
void align_closes(MPI_File file);

#endif
