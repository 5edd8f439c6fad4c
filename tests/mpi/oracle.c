// Stands before pread, pwrite and MPI_Alltoall in a test program, and writes down what ROMIO does.
#include "oracle.h"

#include <dlfcn.h>
#include <mpi.h>
#include <string.h>
#include <sys/types.h>

struct oracle oracle;

void *oracle_next(const char *name) {
    return dlsym(RTLD_NEXT, name);
}

void oracle_begin(void) {
    oracle.requests = oracle.exchanges = 0;
    memset(oracle.bytes, 0, sizeof oracle.bytes);
    oracle.watching = 1;
}

void oracle_end(void) {
    oracle.watching = 0;
}

static void note(int64_t offset, size_t length, int is_write) {
    if (!oracle.watching || oracle.requests == REQUESTS_MAX) return;
    oracle.request[oracle.requests++] = (struct seen){offset, (int64_t)length, is_write};
}

#define READ(name)                                                                                 \
    ssize_t name(int fd, void *buffer, size_t length, off_t offset) {                              \
        static ssize_t (*next)(int, void *, size_t, off_t);                                        \
        if (!next) *(void **)&next = oracle_next(#name);                                           \
        note(offset, length, 0);                                                                   \
        return next(fd, buffer, length, offset);                                                   \
    }
#define WRITE(name)                                                                                \
    ssize_t name(int fd, const void *buffer, size_t length, off_t offset) {                        \
        static ssize_t (*next)(int, const void *, size_t, off_t);                                  \
        if (!next) *(void **)&next = oracle_next(#name);                                           \
        note(offset, length, 1);                                                                   \
        return next(fd, buffer, length, offset);                                                   \
    }
READ(pread)
READ(pread64)
WRITE(pwrite)
WRITE(pwrite64)

// ROMIO's exchanges carry int (MPICH 4) or MPI_Count (5): recv_size of a write, send_size of a
// read.
static void exchanged(const void *buffer, MPI_Datatype type, MPI_Comm comm) {
    int size = 0, ranks = 0;
    if (!oracle.watching) return;
    MPI_Type_size(type, &size);
    MPI_Comm_size(comm, &ranks);
    if (oracle.exchanges++ == 0) return;
    for (int i = 0; i < ranks && i < RANKS_MAX; i++)
        oracle.bytes[i] += size == 4 ? ((const int *)buffer)[i] : ((const int64_t *)buffer)[i];
}

#define ALLTOALL(name)                                                                             \
    int name(const void *from, int count, MPI_Datatype type, void *to, int to_count,               \
             MPI_Datatype to_type, MPI_Comm comm) {                                                \
        static int (*next)(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm);  \
        if (!next) *(void **)&next = oracle_next(#name);                                           \
        exchanged(from, type, comm);                                                               \
        return next(from, count, type, to, to_count, to_type, comm);                               \
    }
ALLTOALL(MPI_Alltoall)
ALLTOALL(PMPI_Alltoall)
