// Threads that do collective I/O at the same time, each with a communicator and a file of its own:
// interleaved blocks are written, overwritten and read back, and the file is opened a few times.
//
// usage: threads FILE
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 3, OPENS = 4, ROUNDS = 8, BLOCKS = 64, BLOCK = 512, BYTES = BLOCKS * BLOCK };

static int rank, ranks;
static const char *path;

struct thread {
    pthread_t id;
    MPI_Comm comm;
    int number, wrong;
};

static int rounds(MPI_File file, int seed) {
    static _Thread_local char out[BYTES], in[BYTES];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BYTES; i++) out[i] = (char)(rank * 31 + seed * 17 + round * 7 + i % 251);
        memset(in, 0, sizeof in);
        if (MPI_File_write_at_all(file, 0, out, BYTES, MPI_CHAR, MPI_STATUS_IGNORE) != 0) return 1;
        if (MPI_File_read_at_all(file, 0, in, BYTES, MPI_CHAR, MPI_STATUS_IGNORE) != 0) return 1;
        if (memcmp(in, out, BYTES) != 0) return 1;
    }
    return 0;
}

static void *run(void *of) {
    struct thread *thread = of;
    char name[4096];
    MPI_Datatype view;
    snprintf(name, sizeof name, "%s.%d", path, thread->number);
    MPI_Type_vector(BLOCKS, BLOCK, BLOCK * ranks, MPI_CHAR, &view);
    MPI_Type_commit(&view);
    for (int i = 0; i < OPENS; i++) {
        MPI_File file;
        int mode = MPI_MODE_CREATE | MPI_MODE_RDWR;
        if (MPI_File_open(thread->comm, name, mode, MPI_INFO_NULL, &file) != 0) {
            thread->wrong = 1;
            break;
        }
        MPI_File_set_view(file, rank * BLOCK, MPI_CHAR, view, "native", MPI_INFO_NULL);
        thread->wrong |= rounds(file, thread->number * OPENS + i);
        MPI_File_close(&file);
    }
    MPI_Type_free(&view);
    return NULL;
}

int main(int count, char **arguments) {
    struct thread threads[THREADS];
    int provided, wrong = 0, all = 0;
    if (count < 2) return 2;
    path = arguments[1];
    MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &provided);
    if (provided < MPI_THREAD_MULTIPLE) MPI_Abort(MPI_COMM_WORLD, 3);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 0; i < THREADS; i++) {
        threads[i] = (struct thread){.number = i};
        MPI_Comm_dup(MPI_COMM_WORLD, &threads[i].comm);
    }
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i].id, NULL, run, &threads[i]);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i].id, NULL);
        wrong |= threads[i].wrong;
        MPI_Comm_free(&threads[i].comm);
    }
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0 && all == 0) printf("all right\n");
    MPI_Finalize();
    return wrong;
}
