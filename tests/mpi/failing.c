// A file is opened again and again, and one rank fails to. No rank may come to have more descriptors
// or more communicators for it.
//
// usage: failing FILE missing|full
// missing: rank 1 names a file that is not there; full: it may open no further file
#include <dirent.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum { ROUNDS = 20, WARM = 5 };

static int descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    if (folder == NULL) return -1;
    while (readdir(folder) != NULL) count++;
    closedir(folder);
    return count;
}

static void allow_files(int more) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = more ? limit.rlim_max : 0;
    setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int count, char **arguments) {
    MPI_File file;
    char none[4096], bytes[4096];
    int rank = 0, ranks = 0, first = 0, last = 0, failed = 0, wrong = 0, all = 0;
    MPI_Init(&count, &arguments);
    if (count < 3) return 2;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *path = arguments[1];
    int is_full = strcmp(arguments[2], "full") == 0;
    snprintf(none, sizeof none, "%s.none", path);
    memset(bytes, 'a', sizeof bytes);
    for (int round = 0; round < ROUNDS && wrong == 0; round++) {
        // One that works, with data, then one that does not.
        int mode = MPI_MODE_CREATE | MPI_MODE_RDWR;
        wrong |= MPI_File_open(MPI_COMM_WORLD, path, mode, MPI_INFO_NULL, &file) != 0;
        if (wrong) break;
        MPI_Offset at = rank * (MPI_Offset)sizeof bytes;
        MPI_File_write_at_all(file, at, bytes, sizeof bytes, MPI_CHAR, MPI_STATUS_IGNORE);
        MPI_File_close(&file);
        if (rank == 1 && is_full) allow_files(0);
        const char *mine = rank == 1 && !is_full ? none : path;
        int result = MPI_File_open(MPI_COMM_WORLD, mine, MPI_MODE_RDWR, MPI_INFO_NULL, &file);
        if (rank == 1 && is_full) allow_files(1);
        failed += result != MPI_SUCCESS;
        if (result == MPI_SUCCESS) wrong = 1;
        last = descriptors();
        if (round == WARM) first = last;
    }
    if (wrong || last != first) {
        printf("rank %d: %d opens failed, %d descriptors, then %d\n", rank, failed, first, last);
        wrong = 1;
    }
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0 && all == 0) printf("all right\n");
    MPI_Finalize();
    return wrong;
}
