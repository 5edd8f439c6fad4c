// The MPI's own functions, looked up once.
#include "real.h"

#include <stddef.h>
#include <string.h>

#define DEFINE(name) __typeof__(name) *real_##name;
REAL_NAMES(DEFINE)
#undef DEFINE

int (*real_MPI_Type_get_envelope_c)(MPI_Datatype, MPI_Count *, MPI_Count *, MPI_Count *,
                                    MPI_Count *, int *);
int (*real_MPI_Type_get_contents_c)(MPI_Datatype, MPI_Count, MPI_Count, MPI_Count, MPI_Count,
                                    int *, MPI_Aint *, MPI_Count *, MPI_Datatype *);

int real_has_type_iov;

const char *real_load(void *(*find)(const char *name)) {
    // A data pointer becomes a function pointer by its bytes: ISO C has no conversion for it.
#define LOAD(name)                                                                                 \
    {                                                                                              \
        void *found = find("P" #name);                                                             \
        if (found == NULL) return #name;                                                           \
        memcpy(&real_##name, &found, sizeof found);                                                \
    }
    REAL_NAMES(LOAD)
#undef LOAD
    void *envelope = find("PMPI_Type_get_envelope_c"), *contents = find("PMPI_Type_get_contents_c");
    if (envelope != NULL && contents != NULL) {
        memcpy(&real_MPI_Type_get_envelope_c, &envelope, sizeof envelope);
        memcpy(&real_MPI_Type_get_contents_c, &contents, sizeof contents);
    }
    real_has_type_iov = find("PMPIX_Type_iov") != NULL;
    return NULL;
}
