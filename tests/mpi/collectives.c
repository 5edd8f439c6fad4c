// Collective I/O by every call that the shim stands before: each rank writes its columns of a
// matrix and reads them back.
//
// usage: collectives FILE [aggregators] [width]
// prints "N collectives, all right", or what was wrong
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 64, WIDTH_MAX = 32768 };

static int width = 1024, bytes; // of a column, of a rank
static int rank, ranks, collectives, wrong;
static MPI_File file;
static char out[ROWS * WIDTH_MAX], in[ROWS * WIDTH_MAX];

static void must(int result, const char *what) {
    char text[MPI_MAX_ERROR_STRING];
    int len;
    collectives++;
    if (result == MPI_SUCCESS) return;
    MPI_Error_string(result, text, &len);
    printf("rank %d: %s: %s\n", rank, what, text);
    wrong++;
}

static void fresh(void) {
    static int round;
    round++;
    for (int i = 0; i < bytes; i++) out[i] = (char)(rank * 31 + round * 7 + i % 251);
    memset(in, 0, (size_t)bytes);
}

static void same(const char *what) {
    if (memcmp(in, out, bytes) == 0) return;
    printf("rank %d: %s: other bytes than were written\n", rank, what);
    wrong++;
}

static void rewind_file(void) {
    MPI_File_seek(file, 0, MPI_SEEK_SET);
}

// As compiled programs and Fortran's bindings do it.
static void blocking(void) {
    fresh();
    must(MPI_File_write_at_all(file, 0, out, bytes, MPI_CHAR, MPI_STATUS_IGNORE), "write_at_all");
    must(MPI_File_read_at_all(file, 0, in, bytes, MPI_CHAR, MPI_STATUS_IGNORE), "read_at_all");
    same("at_all");
    fresh();
    rewind_file();
    must(PMPI_File_write_all(file, out, bytes, MPI_CHAR, MPI_STATUS_IGNORE), "PMPI write_all");
    rewind_file();
    must(MPI_File_read_all(file, in, bytes, MPI_CHAR, MPI_STATUS_IGNORE), "read_all");
    same("PMPI and MPI");
}

static void split(void) {
    fresh();
    must(MPI_File_write_at_all_begin(file, 0, out, bytes, MPI_CHAR), "write_at_all_begin");
    MPI_File_write_at_all_end(file, out, MPI_STATUS_IGNORE);
    rewind_file();
    must(MPI_File_read_all_begin(file, in, bytes, MPI_CHAR), "read_all_begin");
    MPI_File_read_all_end(file, in, MPI_STATUS_IGNORE);
    same("split");
}

// Ranks begin in any order: one waits for a message that the other sends when it has begun. Not so
// with IN_ORDER in the environment.
static void nonblocking(void) {
    MPI_Request request;
    fresh();
    int token = 0, other = getenv("IN_ORDER") == NULL ? rank ^ 1 : ranks;
    if (rank % 2 == 1 && other < ranks) {
        MPI_Recv(&token, 1, MPI_INT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    must(MPI_File_iwrite_all(file, out, bytes, MPI_CHAR, &request), "iwrite_all");
    if (rank % 2 == 0 && other < ranks) MPI_Send(&token, 1, MPI_INT, other, 0, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    must(MPI_File_iread_at_all(file, 0, in, bytes, MPI_CHAR, &request), "iread_at_all");
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    same("nonblocking");
}

#if MPI_VERSION >= 4
static void large(void) {
    fresh();
    must(MPI_File_write_at_all_c(file, 0, out, bytes, MPI_CHAR, MPI_STATUS_IGNORE), "_c write");
    must(MPI_File_read_at_all_c(file, 0, in, bytes, MPI_CHAR, MPI_STATUS_IGNORE), "_c read");
    same("_c");
}
#endif

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count < 2) MPI_Abort(MPI_COMM_WORLD, 2);
    if (count > 3) width = atoi(arguments[3]);
    if (width < 1 || width > WIDTH_MAX) MPI_Abort(MPI_COMM_WORLD, 2);
    bytes = ROWS * width;
    MPI_Info info;
    MPI_Info_create(&info);
    if (count > 2) {
        MPI_Info_set(info, "cb_nodes", arguments[2]);
        MPI_Info_set(info, "cb_config_list", "*:2");
        MPI_Info_set(info, "cb_buffer_size", width > 1024 ? "1048576" : "65536");
    }
    MPI_Datatype columns;
    MPI_Type_vector(ROWS, width, width * ranks, MPI_CHAR, &columns);
    MPI_Type_commit(&columns);
    int mode = MPI_MODE_CREATE | MPI_MODE_RDWR;
    if (MPI_File_open(MPI_COMM_WORLD, arguments[1], mode, info, &file) != MPI_SUCCESS) {
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    MPI_File_set_view(file, rank * width, MPI_CHAR, columns, "native", info);
    blocking();
    split();
    rewind_file();
    nonblocking();
#if MPI_VERSION >= 4
    large();
#endif
    MPI_File_close(&file);
    MPI_Info_free(&info);
    MPI_Type_free(&columns);
    int all = 0;
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0 && all == 0) printf("%d collectives, all right\n", collectives);
    MPI_Finalize();
    return wrong != 0;
}
