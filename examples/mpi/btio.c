// Shaped like NPB's BT-IO (full): a cube that is cut diagonally, appended to a file every few steps
// by collective calls of many small blocks, from memory with ghost cells around.
#include <stdlib.h>

#include "load.h"

static const char about[] =
    "A cube of points with 5 words each. c*c ranks have c cells each, one on every level, so\n"
    "that each rank has work in every phase of a sweep (diagonal multi-partitioning). Each\n"
    "output is one collective call that appends the cube; cells lie in memory with ghost points\n"
    "around them. At the end all outputs are read again and verified.";

enum { WORDS = 5, GHOST = 2, SIDE_MAX = 16 };
static int64_t points = 24, outputs = 3, compute_ms = 0;
static int side; // cells along a direction, and of a rank

// A cell of this rank: on level `level` it is displaced by one in both other directions.
struct cell {
    int start[3], len[3]; // z, y, x, in points
};

static int cut(int index) { return (int)(points * index / side); }

static struct cell cell_of(int level) {
    int at[3] = {level, (load_rank / side + level) % side, (load_rank % side + level) % side};
    struct cell cell;
    for (int d = 0; d < 3; d++) {
        cell.start[d] = cut(at[d]);
        cell.len[d] = cut(at[d] + 1) - cell.start[d];
    }
    return cell;
}

static int64_t padded(const struct cell *cell) {
    int64_t words = WORDS;
    for (int d = 0; d < 3; d++) words *= cell->len[d] + 2 * GHOST;
    return words;
}

// The word in memory of point (z, y, 0) of a cell.
static int64_t in_memory(const struct cell *cell, int z, int y) {
    int64_t row = (int64_t)(z + GHOST) * (cell->len[1] + 2 * GHOST) + y + GHOST;
    return (row * (cell->len[2] + 2 * GHOST) + GHOST) * WORDS;
}

static MPI_Datatype joined(MPI_Datatype *parts, const MPI_Aint *at) {
    int ones[SIDE_MAX];
    MPI_Datatype type;
    for (int i = 0; i < side; i++) ones[i] = 1;
    MUST(MPI_Type_create_struct(side, ones, at, parts, &type));
    MUST(MPI_Type_commit(&type));
    for (int i = 0; i < side; i++) MUST(MPI_Type_free(&parts[i]));
    return type;
}

// The cells in memory, or in the cube.
static MPI_Datatype cells_type(int memory) {
    MPI_Datatype parts[SIDE_MAX];
    MPI_Aint at[SIDE_MAX], next = 0;
    for (int i = 0; i < side; i++) {
        struct cell cell = cell_of(i);
        int sizes[4], lens[4], starts[4];
        for (int d = 0; d < 3; d++) {
            sizes[d] = memory ? cell.len[d] + 2 * GHOST : (int)points;
            lens[d] = cell.len[d];
            starts[d] = memory ? GHOST : cell.start[d];
        }
        sizes[3] = lens[3] = WORDS;
        starts[3] = 0;
        MUST(
            MPI_Type_create_subarray(4, sizes, lens, starts, MPI_ORDER_C, MPI_UINT64_T, &parts[i]));
        at[i] = next;
        if (memory) next += padded(&cell) * 8;
    }
    return joined(parts, at);
}

static void each_row(uint64_t *memory, int64_t output, int checks) {
    for (int i = 0; i < side; i++) {
        struct cell cell = cell_of(i);
        for (int z = 0; z < cell.len[0]; z++) {
            for (int y = 0; y < cell.len[1]; y++) {
                int64_t row = (cell.start[0] + z) * points + cell.start[1] + y;
                int64_t index = ((output * points * points + row) * points + cell.start[2]) * WORDS;
                uint64_t *at = memory + in_memory(&cell, z, y);
                if (checks) load_expect(at, (int64_t)cell.len[2] * WORDS, index, 0);
                else load_fill(at, (int64_t)cell.len[2] * WORDS, index, 0);
            }
        }
        memory += padded(&cell);
    }
}

static int64_t check_options(void) {
    int64_t words = 0;
    while (side * side < load_ranks) side++;
    if (side * side != load_ranks || side > SIDE_MAX)
        load_refuse("%d ranks: they must be 1, 4, 9, ... 256", load_ranks);
    if (points < side || points > 1024) load_refuse("points are %d to 1024", side);
    for (int i = 0; i < side; i++) {
        struct cell cell = cell_of(i);
        words += padded(&cell);
    }
    return words;
}

int main(int argc, char **argv) {
    const struct load_option options[] = {
        {.name = "points", .number = &points, .help = "points along a side of the cube"},
        {.name = "outputs", .number = &outputs, .help = "times that the cube is written"},
        {.name = "compute-ms", .number = &compute_ms, .help = "before an output, milliseconds"},
        {0},
    };
    const char *path = load_begin(argc, argv, about, options);
    int64_t words = check_options(), cube = points * points * points * WORDS * 8, own;
    uint64_t *memory = load_memory(words * 8);
    MPI_Datatype in_cells = cells_type(1), in_cube = cells_type(0);
    MPI_File file = load_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR);
    int size = 0;
    MUST(MPI_Type_size(in_cube, &size));
    own = size / 8;
    MUST(MPI_File_set_view(file, 0, MPI_UINT64_T, in_cube, "native", MPI_INFO_NULL));
    for (int64_t output = 0; output < outputs; output++) {
        double resume = MPI_Wtime() + (double)compute_ms / 1e3, started;
        while (MPI_Wtime() < resume) continue;
        each_row(memory, output, 0);
        started = load_start();
        MUST(MPI_File_write_at_all(file, output * own, memory, 1, in_cells, MPI_STATUS_IGNORE));
        load_report("output", started, cube);
    }
    MUST(MPI_File_sync(file));
    for (int64_t output = 0; output < outputs; output++) {
        double started;
        for (int64_t i = 0; i < words; i++) memory[i] = 0;
        started = load_start();
        MUST(MPI_File_read_at_all(file, output * own, memory, 1, in_cells, MPI_STATUS_IGNORE));
        load_report("verify", started, cube);
        each_row(memory, output, 1);
    }
    MUST(MPI_File_close(&file));
    MUST(MPI_Type_free(&in_cells));
    MUST(MPI_Type_free(&in_cube));
    free(memory);
    return load_end();
}
