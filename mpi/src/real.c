// Finds the MPI library's own functions: the next PMPI_ name after this library, else the MPI_ name.
#define _GNU_SOURCE
#include "real.h"

#include <dlfcn.h>
#include <stdlib.h>

#define REAL_MPI_DEFINE(name, arguments) int(*real_MPI_##name) arguments;
REAL_MPI_FUNCTIONS(REAL_MPI_DEFINE)
#undef REAL_MPI_DEFINE

int (*real_MPI_Type_get_envelope_c)(MPI_Datatype, MPI_Count *, MPI_Count *, MPI_Count *,
                                    MPI_Count *, int *);
int (*real_MPI_Type_get_contents_c)(MPI_Datatype, MPI_Count, MPI_Count, MPI_Count, MPI_Count,
                                    int *, MPI_Aint *, MPI_Count *, MPI_Datatype *);

static void *next(const char *profiling_name)
{
    void *found = dlsym(RTLD_NEXT, profiling_name);
    return found ? found : dlsym(RTLD_NEXT, profiling_name + 1);
}

int real_find(void)
{
    int missing = 0;
#define REAL_MPI_FIND(name, arguments) \
    *(void **)&real_MPI_##name = next("PMPI_" #name); \
    missing |= !real_MPI_##name;
    REAL_MPI_FUNCTIONS(REAL_MPI_FIND)
#undef REAL_MPI_FIND
    *(void **)&real_MPI_Type_get_envelope_c = next("PMPI_Type_get_envelope_c");
    *(void **)&real_MPI_Type_get_contents_c = next("PMPI_Type_get_contents_c");
    return missing ? -1 : 0;
}
