// What MPI programs do beside I/O, and must do alike with the shim and without.
//
// usage: odd FILE PART
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int rank, ranks;

static MPI_File opened(const char *path) {
    MPI_File file;
    int mode = MPI_MODE_CREATE | MPI_MODE_RDWR;
    if (MPI_File_open(MPI_COMM_WORLD, path, mode, MPI_INFO_NULL, &file) != MPI_SUCCESS) {
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    return file;
}

static void write_once(MPI_File file) {
    char bytes[4096];
    memset(bytes, 'a' + rank, sizeof bytes);
    MPI_File_write_at_all(file, rank * 4096, bytes, 4096, MPI_CHAR, MPI_STATUS_IGNORE);
}

// No MPI-IO at all.
static int plain(void) {
    int sum = 0;
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    return sum == ranks * (ranks - 1) / 2 ? 0 : 1;
}

// A child of a rank does I/O of its own while the file is open, and the rank goes on.
static int forks(const char *path) {
    MPI_File file = opened(path);
    write_once(file);
    char own[4096];
    snprintf(own, sizeof own, "%s.%d", path, rank);
    pid_t child = fork();
    if (child == 0) {
        FILE *stream = fopen(own, "w");
        _exit(stream != NULL && fputs("child\n", stream) >= 0 && fclose(stream) == 0 ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    write_once(file);
    MPI_File_close(&file);
    return status;
}

// A file that is not there, then one that is; errors come back, since that is files' default.
static int missing(const char *path) {
    MPI_File file;
    char none[4096];
    snprintf(none, sizeof none, "%s.none/x", path);
    int result = MPI_File_open(MPI_COMM_WORLD, none, MPI_MODE_RDONLY, MPI_INFO_NULL, &file);
    if (result == MPI_SUCCESS) return 1;
    file = opened(path);
    write_once(file);
    MPI_File_close(&file);
    result = PMPI_File_delete(rank == 0 ? path : none, MPI_INFO_NULL);
    return rank == 0 ? result != MPI_SUCCESS : result == MPI_SUCCESS;
}

// A communicator that is freed while its file is open, two opens of one file, a file for each rank.
static int files(const char *path) {
    MPI_Comm comm;
    MPI_File one, two, own;
    int mode = MPI_MODE_CREATE | MPI_MODE_RDWR;
    char name[4096], bytes[4096];
    snprintf(name, sizeof name, "%s.%d", path, rank);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_File_open(comm, path, mode, MPI_INFO_NULL, &one);
    MPI_Comm_free(&comm);
    two = opened(path);
    MPI_File_open(MPI_COMM_SELF, name, mode, MPI_INFO_NULL, &own);
    write_once(one);
    MPI_File_sync(one);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_sync(two);
    MPI_File_read_at_all(two, rank * 4096, bytes, 4096, MPI_CHAR, MPI_STATUS_IGNORE);
    MPI_File_write_at_all(own, 0, bytes, 4096, MPI_CHAR, MPI_STATUS_IGNORE);
    MPI_File_close(&one);
    MPI_File_close(&own);
    MPI_File_close(&two);
    return bytes[0] != 'a' + rank || bytes[4095] != 'a' + rank;
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    const char *path = arguments[1], *part = arguments[2];
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int result = 1;
    if (strcmp(part, "plain") == 0) result = plain();
    if (strcmp(part, "forks") == 0) result = forks(path);
    if (strcmp(part, "missing") == 0) result = missing(path);
    if (strcmp(part, "files") == 0) result = files(path);
    if (strcmp(part, "abort") == 0) {
        MPI_File file = opened(path);
        write_once(file);
        // The others are in the middle of a collective call then.
        if (rank == 1) MPI_Abort(MPI_COMM_WORLD, 9);
        for (;;) write_once(file);
    }
    if (result == 0 && rank == 0) printf("%s: all right\n", part);
    MPI_Finalize();
    return result;
}
