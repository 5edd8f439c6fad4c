// A program that refers weakly to every name that the shim stands before, as libraries do that work
// with several versions of MPI. Says which of them there are, and writes by the newest that is.
//
// usage: weak FILE
#include "../../mpi/src/names.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

// By a label of the assembler: headers declare some with other types, and some not at all.
#define WEAK(prefix, name)                                                                         \
    extern void its_##prefix##_##name(void) __asm__(#prefix "_" #name) __attribute__((weak));
#define PLAIN(name) WEAK(MPI, name)
#define PROFILED(name) WEAK(PMPI, name)
EVERY_NAME(PLAIN)
EVERY_NAME(PROFILED)

typedef int (*write_function)(MPI_File, MPI_Offset, const void *, MPI_Count, MPI_Datatype,
                              MPI_Status *);

static int rank, ranks;

static void tell(const char *name, int is_there) {
    if (rank == 0) printf("%s: %s\n", name, is_there ? "there" : "not there");
}

static int written(MPI_File file, char *bytes, int count) {
    MPI_Offset at = (MPI_Offset)rank * count;
    if (its_MPI_File_write_at_all_c == NULL) {
        return MPI_File_write_at_all(file, at, bytes, count, MPI_CHAR, MPI_STATUS_IGNORE);
    }
    write_function write = (write_function)its_MPI_File_write_at_all_c;
    return write(file, at, bytes, count, MPI_CHAR, MPI_STATUS_IGNORE);
}

int main(int count, char **arguments) {
    MPI_File file;
    char out[4096], in[4096];
    if (count < 2) return 2;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
#define TELL(name) tell("MPI_" #name, its_MPI_##name != NULL);
    EVERY_NAME(TELL)
#undef TELL
#define TELL(name) tell("PMPI_" #name, its_PMPI_##name != NULL);
    EVERY_NAME(TELL)
    int mode = MPI_MODE_CREATE | MPI_MODE_RDWR;
    memset(out, 'a' + rank, sizeof out);
    int wrong = MPI_File_open(MPI_COMM_WORLD, arguments[1], mode, MPI_INFO_NULL, &file);
    if (wrong == 0) wrong = written(file, out, sizeof out);
    if (wrong == 0) {
        MPI_Offset at = (MPI_Offset)rank * (MPI_Offset)sizeof in;
        wrong = MPI_File_read_at_all(file, at, in, sizeof in, MPI_CHAR, MPI_STATUS_IGNORE);
        MPI_File_close(&file);
    }
    wrong = wrong != 0 || memcmp(in, out, sizeof in) != 0;
    if (rank == 0 && wrong == 0) printf("all right\n");
    MPI_Finalize();
    return wrong;
}
