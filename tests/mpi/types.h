// The datatypes that the tests of the MPI shim use, the same for every test.
#ifndef TIDEGATE_TEST_TYPES_H
#define TIDEGATE_TEST_TYPES_H

#include <mpi.h>

// Types for file views: their offsets never fall. The last two are pairs with gaps, on which ROMIO
// inside Open MPI ends the program.
#ifdef OPEN_MPI
#define FILE_TYPES 17
#else
#define FILE_TYPES 19
#endif
#define ALL_TYPES 27 // with those that only memory can have

// Makes datatype `index` of rank `rank` among `ranks`: different ranks' bytes interleave, and do
// not overlap. The file types have the extent of all ranks' parts. Its name is the result; the
// caller commits and frees the type.
const char *test_type(int index, int rank, int ranks, MPI_Datatype *type);

#endif
