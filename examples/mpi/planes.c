// Queries of a climate model's output, as in Liu, Chen and Zhuang: collective reads of 2-D planes
// of a 3-D data set, chosen by a seed.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"

static const char about[] =
    "A data set of planes, each of rows and columns of 8-byte words. Each query is a collective\n"
    "read of one plane, or of rows of it; the ranks take rows in turns, or rank 0 takes --lead\n"
    "percent of them and the others share the rest. With --create rank 0 writes the data set\n"
    "first. With --pace all ranks wait before each query for a line of rank 0's standard input,\n"
    "so that several programs can be made to ask at once.";

static int64_t planes = 8, rows = 64, columns = 4096, queries = 20, seed = 1, lead = 0;
static int64_t aggregators = 0;
static int create, pace, create_only;

static void make(const char *path) {
    uint64_t *row = load_memory(columns * 8);
    MPI_File file = load_open(MPI_COMM_SELF, path, MPI_MODE_CREATE | MPI_MODE_WRONLY);
    for (int64_t i = 0; i < planes * rows; i++) {
        load_fill(row, columns, i * columns, 0);
        MUST(MPI_File_write_at(file, i * columns * 8, row, (int)columns, MPI_UINT64_T,
                               MPI_STATUS_IGNORE));
    }
    MUST(MPI_File_close(&file));
    free(row);
}

// Chance from a seed, alike on all ranks and machines.
static int64_t chosen(int64_t query) {
    return (int64_t)(load_word(query + 1, seed) % (uint64_t)planes);
}

// Rows of a plane that belong to this rank: `count` blocks of `rows` rows each, every `step` rows.
struct share {
    int64_t first, count, rows, step;
};

static struct share share_of(void) {
    struct share share = {load_rank, 0, 1, load_ranks};
    int64_t first = rows * lead / 100, others = load_ranks - 1;
    if (lead == 0) {
        share.count = (rows - load_rank + load_ranks - 1) / load_ranks;
    } else if (load_rank == 0) {
        share = (struct share){0, 1, first, rows};
    } else {
        int64_t rest = rows - first;
        int64_t begin = first + rest * (load_rank - 1) / others;
        share = (struct share){begin, 1, first + rest * load_rank / others - begin, rows};
    }
    return share;
}

static void set_view(MPI_File file, const struct share *share, int64_t plane) {
    MPI_Datatype type;
    MUST(MPI_Type_vector((int)share->count, (int)(share->rows * columns),
                         (int)(share->step * columns), MPI_UINT64_T, &type));
    MUST(MPI_Type_commit(&type));
    MUST(MPI_File_set_view(file, (plane * rows + share->first) * columns * 8, MPI_UINT64_T, type,
                           "native", MPI_INFO_NULL));
    MUST(MPI_Type_free(&type));
}

// Opens the data set; with a number of aggregators ROMIO always reads in two phases, by that many
// ranks (by itself it takes one rank of a node, and leaves two phases out where ranks do not
// interleave).
static MPI_File open_set(const char *path) {
    MPI_Info info = MPI_INFO_NULL;
    MPI_File file;
    if (aggregators > 0) {
        char text[24];
        snprintf(text, sizeof text, "%lld", (long long)aggregators);
        MUST(MPI_Info_create(&info));
        MUST(MPI_Info_set(info, "romio_cb_read", "enable"));
        MUST(MPI_Info_set(info, "cb_config_list", "*:*"));
        MUST(MPI_Info_set(info, "cb_nodes", text));
    }
    MUST(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, info, &file));
    if (info != MPI_INFO_NULL) MUST(MPI_Info_free(&info));
    return file;
}

// Waits until rank 0 was told to go on; false at the end of its input.
static int told(void) {
    int go = 1;
    char line[64];
    if (!pace) return 1;
    if (load_rank == 0) go = fgets(line, sizeof line, stdin) != NULL;
    MUST(MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD));
    return go;
}

static void query(MPI_File file, const struct share *share, uint64_t *memory, int64_t number) {
    int64_t plane = chosen(number), count = share->count * share->rows * columns;
    double started;
    set_view(file, share, plane);
    started = load_start();
    MUST(MPI_File_read_at_all(file, 0, memory, (int)count, MPI_UINT64_T, MPI_STATUS_IGNORE));
    load_report("query", started, rows * columns * 8);
    for (int64_t i = 0; i < share->count; i++) {
        int64_t row = plane * rows + share->first + i * share->step;
        load_expect(memory + i * share->rows * columns, share->rows * columns, row * columns, 0);
    }
    memset(memory, 0, (size_t)count * 8);
}

int main(int argc, char **argv) {
    const struct load_option options[] = {
        {.name = "planes", .number = &planes, .help = "planes of the data set"},
        {.name = "rows", .number = &rows, .help = "rows of a plane"},
        {.name = "columns", .number = &columns, .help = "words of a row"},
        {.name = "queries", .number = &queries, .help = "planes that are read"},
        {.name = "seed", .number = &seed, .help = "chooses the planes"},
        {.name = "lead",
         .number = &lead,
         .help = "percent of the rows that rank 0 takes; 0: in turns"},
        {.name = "aggregators",
         .number = &aggregators,
         .help = "ranks that read for all, always; 0: as ROMIO does by itself"},
        {.name = "create", .flag = &create, .help = "write the data set first"},
        {.name = "create-only", .flag = &create_only, .help = "write it, and end"},
        {.name = "pace", .flag = &pace, .help = "a query for each line of standard input"},
        {0},
    };
    const char *path = load_begin(argc, argv, about, options);
    struct share share;
    uint64_t *memory;
    MPI_File file;
    if (planes < 1 || rows < load_ranks || columns < 1) load_refuse("no planes, or too few rows");
    if (rows * columns > INT32_MAX) load_refuse("a plane has 16 GiB at most");
    if (lead > 100) load_refuse("--lead is a percentage");
    if ((create || create_only) && load_rank == 0) make(path);
    MPI_Barrier(MPI_COMM_WORLD);
    if (create_only) return load_end();
    share = share_of();
    memory = load_memory(share.count * share.rows * columns * 8);
    file = open_set(path);
    for (int64_t number = 0; number < queries && told(); number++)
        query(file, &share, memory, number);
    MUST(MPI_File_close(&file));
    free(memory);
    return load_end();
}
