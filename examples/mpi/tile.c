// Tile I/O: a 2-D array in a file, each rank writes its tile and reads it back with a border that
// belongs to its neighbours.
#include <stdlib.h>

#include "load.h"

static const char about[] =
    "A 2-D array of 8-byte words in one file. Each rank writes one tile of it\n"
    "(MPI_Type_create_subarray) and reads it again with a border of the neighbours' words,\n"
    "collectively or each rank for itself.";

static int64_t rows = 256, columns = 256, border = 2, repeat = 1;
static int independent;

// The part of the array that a rank touches: its tile, widened by `wider` where there is a
// neighbour.
struct part {
    int sizes[2], lens[2], starts[2];
};

static struct part part_of(const int tiles[2], int rank, int wider) {
    struct part part;
    const int tile[2] = {(int)rows, (int)columns}, at[2] = {rank / tiles[1], rank % tiles[1]};
    for (int d = 0; d < 2; d++) {
        int first = at[d] * tile[d] - wider, last = (at[d] + 1) * tile[d] + wider;
        part.sizes[d] = tiles[d] * tile[d];
        if (first < 0) first = 0;
        if (last > part.sizes[d]) last = part.sizes[d];
        part.starts[d] = first;
        part.lens[d] = last - first;
    }
    return part;
}

static void view(MPI_File file, const struct part *part) {
    MPI_Datatype type;
    MUST(MPI_Type_create_subarray(2, part->sizes, part->lens, part->starts, MPI_ORDER_C,
                                  MPI_UINT64_T, &type));
    MUST(MPI_Type_commit(&type));
    MUST(MPI_File_set_view(file, 0, MPI_UINT64_T, type, "native", MPI_INFO_NULL));
    MUST(MPI_Type_free(&type));
}

static int64_t word_at(const struct part *part, int row) {
    return (int64_t)(part->starts[0] + row) * part->sizes[1] + part->starts[1];
}

static void once(MPI_File file, const int tiles[2], int64_t version) {
    struct part own = part_of(tiles, load_rank, 0), wide = part_of(tiles, load_rank, (int)border);
    int64_t all = (int64_t)own.sizes[0] * own.sizes[1] * 8;
    int count = own.lens[0] * own.lens[1], more = wide.lens[0] * wide.lens[1];
    uint64_t *words = load_memory((int64_t)more * 8);
    double started;
    for (int row = 0; row < own.lens[0]; row++)
        load_fill(words + (int64_t)row * own.lens[1], own.lens[1], word_at(&own, row), version);
    view(file, &own);
    started = load_start();
    if (independent)
        MUST(MPI_File_write_at(file, 0, words, count, MPI_UINT64_T, MPI_STATUS_IGNORE));
    else MUST(MPI_File_write_at_all(file, 0, words, count, MPI_UINT64_T, MPI_STATUS_IGNORE));
    load_report("write", started, all);
    // What others wrote is there for this rank once both sides have synchronised.
    MUST(MPI_File_sync(file));
    view(file, &wide);
    started = load_start();
    if (independent) MUST(MPI_File_read_at(file, 0, words, more, MPI_UINT64_T, MPI_STATUS_IGNORE));
    else MUST(MPI_File_read_at_all(file, 0, words, more, MPI_UINT64_T, MPI_STATUS_IGNORE));
    load_report("read", started, all);
    for (int row = 0; row < wide.lens[0]; row++)
        load_expect(words + (int64_t)row * wide.lens[1], wide.lens[1], word_at(&wide, row),
                    version);
    free(words);
}

int main(int argc, char **argv) {
    const struct load_option options[] = {
        {.name = "rows", .number = &rows, .help = "rows of a tile"},
        {.name = "columns", .number = &columns, .help = "columns of a tile"},
        {.name = "border", .number = &border, .help = "words of the neighbours around a tile"},
        {.name = "repeat", .number = &repeat, .help = "times that all of it is done"},
        {.name = "independent", .flag = &independent, .help = "no collective calls"},
        {0},
    };
    const char *path = load_begin(argc, argv, about, options);
    int tiles[2] = {0, 0};
    MPI_File file;
    if (rows < 1 || columns < 1 || rows > 1 << 15 || columns > 1 << 15)
        load_refuse("rows and columns of a tile are 1 to 32768");
    if (border > rows || border > columns) load_refuse("the border is wider than a tile");
    MUST(MPI_Dims_create(load_ranks, 2, tiles));
    file = load_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR);
    for (int64_t i = 0; i < repeat; i++) once(file, tiles, i);
    MUST(MPI_File_close(&file));
    return load_end();
}
