// Collective strided calls: the ranks' blocks take turns in the file, one call after another.
#include <stdlib.h>
#include <string.h>

#include "load.h"

static const char about[] =
    "Calls of all ranks, one after another, each on its own part of the file, in which the\n"
    "ranks' blocks take turns. --how says by which calls: blocking (write_at_all), nonblocking\n"
    "(iwrite_at_all, then wait), split (write_at_all_begin, end) or pointer (seek, write_all).";

static int64_t block = 4096, blocks = 64, calls = 4;
static const char *how = "blocking";

static void write_call(MPI_File file, int64_t at, const void *memory, int count) {
    if (strcmp(how, "blocking") == 0) {
        MUST(MPI_File_write_at_all(file, at, memory, count, MPI_UINT64_T, MPI_STATUS_IGNORE));
    } else if (strcmp(how, "nonblocking") == 0) {
        MPI_Request request;
        MUST(MPI_File_iwrite_at_all(file, at, memory, count, MPI_UINT64_T, &request));
        MUST(MPI_Wait(&request, MPI_STATUS_IGNORE));
    } else if (strcmp(how, "split") == 0) {
        MUST(MPI_File_write_at_all_begin(file, at, memory, count, MPI_UINT64_T));
        MUST(MPI_File_write_at_all_end(file, memory, MPI_STATUS_IGNORE));
    } else {
        MUST(MPI_File_seek(file, at, MPI_SEEK_SET));
        MUST(MPI_File_write_all(file, memory, count, MPI_UINT64_T, MPI_STATUS_IGNORE));
    }
}

static void read_call(MPI_File file, int64_t at, void *memory, int count) {
    if (strcmp(how, "blocking") == 0) {
        MUST(MPI_File_read_at_all(file, at, memory, count, MPI_UINT64_T, MPI_STATUS_IGNORE));
    } else if (strcmp(how, "nonblocking") == 0) {
        MPI_Request request;
        MUST(MPI_File_iread_at_all(file, at, memory, count, MPI_UINT64_T, &request));
        MUST(MPI_Wait(&request, MPI_STATUS_IGNORE));
    } else if (strcmp(how, "split") == 0) {
        MUST(MPI_File_read_at_all_begin(file, at, memory, count, MPI_UINT64_T));
        MUST(MPI_File_read_at_all_end(file, memory, MPI_STATUS_IGNORE));
    } else {
        MUST(MPI_File_seek(file, at, MPI_SEEK_SET));
        MUST(MPI_File_read_all(file, memory, count, MPI_UINT64_T, MPI_STATUS_IGNORE));
    }
}

// The words of a call: block i of this rank is the (i * ranks + rank)-th block of the call's part.
static void each_block(uint64_t *memory, int64_t call, int checks) {
    int64_t words = block / 8;
    for (int64_t i = 0; i < blocks; i++) {
        int64_t index = ((call * blocks + i) * load_ranks + load_rank) * words;
        if (checks) load_expect(memory + i * words, words, index, 0);
        else load_fill(memory + i * words, words, index, 0);
    }
}

int main(int argc, char **argv) {
    const struct load_option options[] = {
        {.name = "block", .number = &block, .help = "bytes of a block, a multiple of 8"},
        {.name = "blocks", .number = &blocks, .help = "blocks of a rank in a call"},
        {.name = "calls", .number = &calls, .help = "calls that write, and calls that read"},
        {.name = "how", .word = &how, .help = "blocking, nonblocking, split or pointer"},
        {0},
    };
    const char *path = load_begin(argc, argv, about, options);
    int64_t count, all = load_ranks * blocks * block;
    MPI_Datatype type;
    MPI_File file;
    uint64_t *memory;
    if (block < 8 || block % 8 || block > 1 << 26) load_refuse("a block has 8, 16, ... 64M bytes");
    if (blocks < 1 || blocks > 1 << 20 || blocks * (block / 8) > INT32_MAX)
        load_refuse("blocks are 1 to 2^20, and 16 GiB in all at most");
    if (strcmp(how, "blocking") && strcmp(how, "nonblocking") && strcmp(how, "split") &&
        strcmp(how, "pointer"))
        load_refuse("--how %s: it is blocking, nonblocking, split or pointer", how);
    count = blocks * (block / 8);
    memory = load_memory(count * 8);
    MUST(MPI_Type_vector((int)blocks, (int)(block / 8), (int)(block / 8) * load_ranks, MPI_UINT64_T,
                         &type));
    {
        MPI_Datatype resized;
        MUST(MPI_Type_create_resized(type, 0, all, &resized));
        MUST(MPI_Type_free(&type));
        type = resized;
    }
    MUST(MPI_Type_commit(&type));
    file = load_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR);
    MUST(MPI_File_set_view(file, load_rank * block, MPI_UINT64_T, type, "native", MPI_INFO_NULL));
    for (int64_t call = 0; call < calls; call++) {
        double started;
        each_block(memory, call, 0);
        started = load_start();
        write_call(file, call * count, memory, (int)count);
        load_report("write", started, all);
    }
    MUST(MPI_File_sync(file));
    for (int64_t call = 0; call < calls; call++) {
        double started;
        memset(memory, 0, (size_t)count * 8);
        started = load_start();
        read_call(file, call * count, memory, (int)count);
        load_report("read", started, all);
        each_block(memory, call, 1);
    }
    MUST(MPI_File_close(&file));
    MUST(MPI_Type_free(&type));
    free(memory);
    return load_end();
}
