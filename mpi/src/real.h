// The MPI library's own functions, found behind the shim's wrappers, so that its own calls never
// come back to it.
#ifndef TIDEGATE_MPI_REAL_H
#define TIDEGATE_MPI_REAL_H

#include <mpi.h>

// One line for each function that the shim itself calls: its result is int in all of them.
#define REAL_MPI_FUNCTIONS(X) \
    X(Allgather, (const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm)) \
    X(Allreduce, (const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm)) \
    X(Alltoall, (const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm)) \
    X(Bcast, (void *, int, MPI_Datatype, int, MPI_Comm)) \
    X(Comm_dup, (MPI_Comm, MPI_Comm *)) \
    X(Comm_free, (MPI_Comm *)) \
    X(Comm_rank, (MPI_Comm, int *)) \
    X(Comm_set_errhandler, (MPI_Comm, MPI_Errhandler)) \
    X(Comm_size, (MPI_Comm, int *)) \
    X(Comm_split_type, (MPI_Comm, int, int, MPI_Info, MPI_Comm *)) \
    X(File_get_info, (MPI_File, MPI_Info *)) \
    X(File_get_view, (MPI_File, MPI_Offset *, MPI_Datatype *, MPI_Datatype *, char *)) \
    X(Get_processor_name, (char *, int *)) \
    X(Info_free, (MPI_Info *)) \
    X(Info_get, (MPI_Info, const char *, int, char *, int *)) \
    X(Irecv, (void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *)) \
    X(Isend, (const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *)) \
    X(T_cvar_get_index, (const char *, int *)) \
    X(T_cvar_handle_alloc, (int, void *, MPI_T_cvar_handle *, int *)) \
    X(T_cvar_handle_free, (MPI_T_cvar_handle *)) \
    X(T_cvar_read, (MPI_T_cvar_handle, void *)) \
    X(T_finalize, (void)) \
    X(T_init_thread, (int, int *)) \
    X(Type_free, (MPI_Datatype *)) \
    X(Type_get_contents, (MPI_Datatype, int, int, int, int *, MPI_Aint *, MPI_Datatype *)) \
    X(Type_get_envelope, (MPI_Datatype, int *, int *, int *, int *)) \
    X(Type_get_extent, (MPI_Datatype, MPI_Aint *, MPI_Aint *)) \
    X(Type_size_x, (MPI_Datatype, MPI_Count *)) \
    X(Waitall, (int, MPI_Request *, MPI_Status *))

#define REAL_MPI_DECLARE(name, arguments) extern int(*real_MPI_##name) arguments;
REAL_MPI_FUNCTIONS(REAL_MPI_DECLARE)
#undef REAL_MPI_DECLARE

// The forms for types that were made with counts above 2^31 - 1; NULL in an MPI older than 4.0.
extern int (*real_MPI_Type_get_envelope_c)(MPI_Datatype, MPI_Count *, MPI_Count *, MPI_Count *,
                                           MPI_Count *, int *);
extern int (*real_MPI_Type_get_contents_c)(MPI_Datatype, MPI_Count, MPI_Count, MPI_Count,
                                           MPI_Count, int *, MPI_Aint *, MPI_Count *,
                                           MPI_Datatype *);

// Finds them all; 0, or -1 when one that every MPI-3 has is missing. May be called again.
int real_find(void);

#endif
