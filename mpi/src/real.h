// The MPI's own functions, for use inside of the shim: real_MPI_X calls what PMPI_X is behind us.
#ifndef TIDEGATE_REAL_H
#define TIDEGATE_REAL_H

#include <mpi.h>

// Functions that every MPI since 3.0 has. Without one of them the shim stays out.
#define REAL_NAMES(X)                                                                              \
    X(MPI_Abort) X(MPI_Allgather) X(MPI_Allreduce) X(MPI_Alltoall) X(MPI_Barrier) X(MPI_Bcast)     \
    X(MPI_Comm_dup) X(MPI_Comm_free) X(MPI_Comm_rank) X(MPI_Comm_set_errhandler) X(MPI_Comm_size)  \
    X(MPI_Comm_split_type) X(MPI_File_get_amode) X(MPI_File_get_atomicity) X(MPI_File_get_group)   \
    X(MPI_File_get_info) X(MPI_File_get_position) X(MPI_File_get_size) X(MPI_File_get_view)        \
    X(MPI_Comm_split) X(MPI_File_iread) X(MPI_File_iread_at) X(MPI_File_iwrite)                    \
    X(MPI_File_iwrite_at)                                                                          \
    X(MPI_Get_library_version) X(MPI_Get_processor_name) X(MPI_Info_create) X(MPI_Info_delete)     \
    X(MPI_Info_dup)                                                                                \
    X(MPI_Info_free) X(MPI_Info_get) X(MPI_Info_get_valuelen) X(MPI_Info_set)                      \
    X(MPI_Initialized) X(MPI_Irecv)                                                                \
    X(MPI_Isend) X(MPI_Recv) X(MPI_Reduce_scatter_block) X(MPI_Send) X(MPI_Sendrecv)               \
    X(MPI_Type_free) X(MPI_Type_get_contents) X(MPI_Type_get_envelope) X(MPI_Type_get_extent)      \
    X(MPI_Type_get_true_extent) X(MPI_Type_size) X(MPI_Type_size_x) X(MPI_Waitall) X(MPI_Wtime)

// The forms for types that were made with counts above 2^31 - 1: NULL in an MPI older than 4.0.
extern int (*real_MPI_Type_get_envelope_c)(MPI_Datatype, MPI_Count *, MPI_Count *, MPI_Count *,
                                           MPI_Count *, int *);
extern int (*real_MPI_Type_get_contents_c)(MPI_Datatype, MPI_Count, MPI_Count, MPI_Count,
                                           MPI_Count, int *, MPI_Aint *, MPI_Count *,
                                           MPI_Datatype *);

// The MPI has MPIX_Type_iov, by which ROMIO flattens since MPICH 4.1.
extern int real_has_type_iov;

#define DECLARE(name) extern __typeof__(name) *real_##name;
REAL_NAMES(DECLARE)
#undef DECLARE

// Looks them up. Returns the name of the first that is missing, or NULL.
const char *real_load(void *(*find)(const char *name));

#endif
