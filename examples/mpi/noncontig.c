// Noncontiguous access: blocks with holes between them, in the file, in memory, or both.
#include <stdlib.h>

#include "load.h"

static const char about[] =
    "Each rank writes and reads blocks. In the file the ranks' blocks take turns, or each rank\n"
    "has one piece (--file-contiguous); in memory there is a hole behind each block, or none\n"
    "(--memory-contiguous). Collectively, or each rank for itself, where MPI-IO sieves data\n"
    "under locks.";

static int64_t block = 512, blocks = 256;
static int file_contiguous, memory_contiguous, independent;

static int64_t index_of(int64_t i) {
    int64_t words = block / 8;
    if (file_contiguous) return (load_rank * blocks + i) * words;
    return (i * load_ranks + load_rank) * words;
}

static MPI_Datatype vector(int64_t stride_words) {
    MPI_Datatype type, resized;
    int words = (int)(block / 8);
    MUST(MPI_Type_vector((int)blocks, words, (int)stride_words, MPI_UINT64_T, &type));
    MUST(MPI_Type_create_resized(type, 0, blocks * stride_words * 8, &resized));
    MUST(MPI_Type_commit(&resized));
    MUST(MPI_Type_free(&type));
    return resized;
}

int main(int argc, char **argv) {
    const struct load_option options[] = {
        {.name = "block", .number = &block, .help = "bytes of a block, a multiple of 8"},
        {.name = "blocks", .number = &blocks, .help = "blocks of a rank"},
        {.name = "file-contiguous", .flag = &file_contiguous, .help = "no holes in the file"},
        {.name = "memory-contiguous", .flag = &memory_contiguous, .help = "no holes in memory"},
        {.name = "independent", .flag = &independent, .help = "no collective calls"},
        {0},
    };
    const char *path = load_begin(argc, argv, about, options);
    int64_t words = block / 8, step, shift;
    MPI_Datatype in_file, in_memory;
    MPI_File file;
    uint64_t *memory;
    double started;
    if (block < 8 || block % 8 || block > 1 << 26) load_refuse("a block has 8, 16, ... 64M bytes");
    if (blocks < 1 || blocks > 1 << 20) load_refuse("blocks are 1 to 2^20");
    step = memory_contiguous ? words : 2 * words;
    shift = file_contiguous ? load_rank * blocks * block : load_rank * block;
    in_file = vector(file_contiguous ? words : words * load_ranks);
    in_memory = vector(step);
    memory = load_memory(blocks * step * 8);
    for (int64_t i = 0; i < blocks; i++) load_fill(memory + i * step, words, index_of(i), 0);
    file = load_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR);
    MUST(MPI_File_set_view(file, shift, MPI_UINT64_T, in_file, "native", MPI_INFO_NULL));
    started = load_start();
    if (independent) MUST(MPI_File_write_at(file, 0, memory, 1, in_memory, MPI_STATUS_IGNORE));
    else MUST(MPI_File_write_at_all(file, 0, memory, 1, in_memory, MPI_STATUS_IGNORE));
    load_report("write", started, load_ranks * blocks * block);
    MUST(MPI_File_sync(file));
    for (int64_t i = 0; i < blocks * step; i++) memory[i] = 0;
    started = load_start();
    if (independent) MUST(MPI_File_read_at(file, 0, memory, 1, in_memory, MPI_STATUS_IGNORE));
    else MUST(MPI_File_read_at_all(file, 0, memory, 1, in_memory, MPI_STATUS_IGNORE));
    load_report("read", started, load_ranks * blocks * block);
    for (int64_t i = 0; i < blocks; i++) load_expect(memory + i * step, words, index_of(i), 0);
    MUST(MPI_File_close(&file));
    MPI_Type_free(&in_file);
    MPI_Type_free(&in_memory);
    free(memory);
    return load_end();
}
