// The MPI's own functions, looked up once.
#include "real.h"

#include <stddef.h>
#include <string.h>

#define DEFINE(name) __typeof__(name) *real_##name;
REAL_NAMES(DEFINE)
#undef DEFINE

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
    return NULL;
}
