// Checkpoints: every rank saves its memory, all into one file (N to 1) or each into its own (N to
// N).
#include <stdio.h>
#include <stdlib.h>

#include "load.h"

static const char about[] =
    "Each step every rank saves its memory, in pieces: into one file that all share, where the\n"
    "ranks lie side by side, or piece by piece in turns (--strided), or into FILE.RANK\n"
    "(--separate). A step ends with MPI_File_sync. At the end the last step is read again and\n"
    "verified, as a restart would.";

static int64_t bytes = 1 << 20, piece = 256 << 10, steps = 2, think_ms = 0;
static int separate, strided, collective;

// Where piece `i` of this rank lies, in bytes.
static int64_t offset_of(int64_t i) {
    if (separate) return i * piece;
    if (strided) return (i * load_ranks + load_rank) * piece;
    return load_rank * bytes + i * piece;
}

// The contents follow the place in the file; those of separate files differ by rank.
static int64_t version_of(int64_t step) { return separate ? step * load_ranks + load_rank : step; }

static void save(MPI_File file, uint64_t *memory, int64_t step) {
    int64_t words = piece / 8;
    double started;
    for (int64_t i = 0; i * piece < bytes; i++)
        load_fill(memory + i * words, words, offset_of(i) / 8, version_of(step));
    started = load_start();
    for (int64_t i = 0; i * piece < bytes; i++) {
        uint64_t *at = memory + i * words;
        int count = (int)words;
        if (collective)
            MUST(MPI_File_write_at_all(file, offset_of(i), at, count, MPI_UINT64_T,
                                       MPI_STATUS_IGNORE));
        else
            MUST(MPI_File_write_at(file, offset_of(i), at, count, MPI_UINT64_T, MPI_STATUS_IGNORE));
    }
    MUST(MPI_File_sync(file));
    load_report("checkpoint", started, load_ranks * bytes);
}

static void restart(MPI_File file, uint64_t *memory) {
    int64_t words = piece / 8;
    double started = load_start();
    for (int64_t i = 0; i * piece < bytes; i++)
        MUST(MPI_File_read_at(file, offset_of(i), memory + i * words, (int)words, MPI_UINT64_T,
                              MPI_STATUS_IGNORE));
    load_report("restart", started, load_ranks * bytes);
    for (int64_t i = 0; i * piece < bytes; i++)
        load_expect(memory + i * words, words, offset_of(i) / 8, version_of(steps - 1));
}

int main(int argc, char **argv) {
    const struct load_option options[] = {
        {.name = "bytes", .number = &bytes, .help = "bytes of a rank, a multiple of a piece"},
        {.name = "piece", .number = &piece, .help = "bytes of a call, a multiple of 8"},
        {.name = "steps", .number = &steps, .help = "checkpoints"},
        {.name = "think-ms", .number = &think_ms, .help = "between two checkpoints, milliseconds"},
        {.name = "separate", .flag = &separate, .help = "N to N: a file for each rank"},
        {.name = "strided", .flag = &strided, .help = "N to 1: the ranks' pieces take turns"},
        {.name = "collective", .flag = &collective, .help = "collective calls"},
        {0},
    };
    const char *path = load_begin(argc, argv, about, options);
    char own[4096];
    uint64_t *memory;
    MPI_File file;
    if (piece < 8 || piece % 8 || piece > 1 << 30) load_refuse("a piece has 8, 16, ... 1G bytes");
    if (bytes < piece || bytes % piece)
        load_refuse("the bytes of a rank are no multiple of a piece");
    if (separate && strided) load_refuse("--strided needs one file for all");
    if (steps < 1) load_refuse("one step at least");
    if (separate && snprintf(own, sizeof own, "%s.%d", path, load_rank) >= (int)sizeof own)
        load_refuse("the name of the file is too long");
    memory = load_memory(bytes);
    file = load_open(separate ? MPI_COMM_SELF : MPI_COMM_WORLD, separate ? own : path,
                     MPI_MODE_CREATE | MPI_MODE_RDWR);
    for (int64_t step = 0; step < steps; step++) {
        double resume = MPI_Wtime() + (double)think_ms / 1e3;
        while (step && MPI_Wtime() < resume) continue;
        save(file, memory, step);
    }
    for (int64_t i = 0; i < bytes / 8; i++) memory[i] = 0;
    restart(file, memory);
    MUST(MPI_File_close(&file));
    free(memory);
    return load_end();
}
