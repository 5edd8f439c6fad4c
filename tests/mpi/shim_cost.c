// Measures what predicting costs a rank at each collective call: its CPU time without what the
// exchanges take, and with a pretended number of ranks for counting instructions.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../mpi/src/predict.h"
#include "../../mpi/src/real.h"

enum { BLOCK = 64, CALLS = 1000 };

static double exchanging_us;
static int exchanges, pretended;
static __typeof__(MPI_Allgather) *allgather;
static __typeof__(MPI_Alltoall) *alltoall;

static void *find(const char *name) {
    return dlsym(RTLD_DEFAULT, name);
}

static double cpu_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

// With pretended ranks: each has what rank 0 has, one block further for each rank.
static int timed_allgather(const void *from, int count, MPI_Datatype type, void *to, int to_count,
                           MPI_Datatype to_type, MPI_Comm comm) {
    double begun = cpu_us();
    int result = MPI_SUCCESS;
    exchanges++;
    for (int i = 0; i < pretended; i++) {
        int64_t *record = (int64_t *)to + (size_t)i * (size_t)count;
        memcpy(record, from, (size_t)count * sizeof *record);
        if (count > 1) record[0] += i * BLOCK, record[1] += i * BLOCK;
    }
    if (!pretended) result = allgather(from, count, type, to, to_count, to_type, comm);
    exchanging_us += cpu_us() - begun;
    return result;
}

static int timed_alltoall(const void *from, int count, MPI_Datatype type, void *to, int to_count,
                          MPI_Datatype to_type, MPI_Comm comm) {
    double begun = cpu_us();
    int result = MPI_SUCCESS;
    exchanges++;
    for (int i = 0; i < pretended; i++)
        memcpy((int64_t *)to + (size_t)i * (size_t)count, from, (size_t)count * 8);
    if (!pretended) result = alltoall(from, count, type, to, to_count, to_type, comm);
    exchanging_us += cpu_us() - begun;
    return result;
}

static int pretended_size(MPI_Comm comm, int *size) {
    (void)comm;
    *size = pretended;
    return MPI_SUCCESS;
}

// Not inlined, so that a profiler finds them: see docs/mpi-prediction.md.
__attribute__((noinline)) void known_call(struct predictor *it, int64_t size, int bytes) {
    struct predicted out;
    uint64_t stamp = 1;
    if (predictor_collective(it, size, bytes, MPI_BYTE, 1, &stamp, &out) || !out.two_phase) abort();
}

__attribute__((noinline)) void new_call(struct predictor *it, int64_t size, int bytes) {
    struct predicted out;
    uint64_t stamp = 1;
    if (predictor_collective(it, size, bytes, MPI_BYTE, 1, &stamp, &out) || !out.two_phase) abort();
}

__attribute__((noinline)) void changed_view(struct predictor *it) {
    predictor_changed(it);
}

static double begun_us;
static int begun_exchanges;
static void begin(void) {
    exchanging_us = 0;
    begun_exchanges = exchanges;
    begun_us = cpu_us();
}
static void end(const char *what, int rank) {
    double spent = (cpu_us() - begun_us - exchanging_us) / CALLS;
    if (rank == 0)
        printf("%-34s %7.2f us CPU, %d exchanges a call\n", what, spent,
               (exchanges - begun_exchanges) / CALLS);
}

int main(int argc, char **argv) {
    int rank, ranks, blocks;
    MPI_Datatype part, type;
    MPI_File file;
    MPI_Info info;
    struct predictor *it;
    MPI_Init(&argc, &argv);
    if (argc < 3 || real_load(find)) {
        fprintf(stderr, "usage: shim_cost FILE BLOCKS [PRETENDED RANKS]\n");
        return 2;
    }
    blocks = atoi(argv[2]);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Info_create(&info);
    MPI_Info_set(info, "cb_config_list", "*:*");
    MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file);
    if (argc > 3) {
        ranks = pretended = atoi(argv[3]);
        real_MPI_Comm_size = pretended_size;
    }
    allgather = real_MPI_Allgather, real_MPI_Allgather = timed_allgather;
    alltoall = real_MPI_Alltoall, real_MPI_Alltoall = timed_alltoall;
    if (pretended) setenv("TIDEGATE_MPI_NODES", "1", 1);
    it = predictor_open(file, MPI_COMM_WORLD);
    if (!it) {
        fprintf(stderr, "shim_cost: MPI-IO is not ROMIO's\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    MPI_Type_vector(blocks, BLOCK, BLOCK * ranks, MPI_BYTE, &part);
    MPI_Type_create_resized(part, 0, (MPI_Aint)BLOCK * ranks * blocks, &type);
    MPI_Type_commit(&type);
    MPI_File_set_view(file, BLOCK * (pretended ? 0 : rank), MPI_BYTE, type, "native",
                      MPI_INFO_NULL);
    if (rank == 0) printf("%d blocks, %d ranks\n", blocks, ranks);
    begin();
    for (int i = 0; i < CALLS; i++)
        changed_view(it);
    end("a new view (flattened, hints read)", rank);
    known_call(it, 0, blocks * BLOCK);
    begin();
    for (int i = 0; i < CALLS; i++)
        known_call(it, (int64_t)i * blocks * BLOCK, blocks * BLOCK);
    end("a call of a known shape", rank);
    begin();
    for (int i = 0; i < CALLS; i++)
        new_call(it, i + 1, blocks * BLOCK);
    end("a call of a new shape", rank);
    predictor_close(it);
    MPI_File_close(&file);
    MPI_Type_free(&part);
    MPI_Type_free(&type);
    MPI_Info_free(&info);
    MPI_Finalize();
    return 0;
}
