// Checks flattening against what the MPI library does itself: MPI_Pack of numbered bytes, and
// MPI_File_get_byte_offset for the types that a file view can have.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../mpi/src/flatten.h"
#include "../../mpi/src/real.h"
#include "types.h"

static int failures;

static void *find(const char *name) {
    return dlsym(RTLD_DEFAULT, name);
}

static void fail(const char *name, int rank, const char *what, long long at) {
    printf("FAIL %s of rank %d: %s at %lld\n", name, rank, what, at);
    failures++;
}

// The data bytes of two copies, in the order of the type map: `where` gets their offsets.
static long long listed(const struct layout *layout, long long *where, long long max) {
    long long n = 0;
    for (int copy = 0; copy < 2; copy++)
        for (int64_t i = 0; i < layout->count; i++)
            for (int64_t b = 0; b < layout->blocks[i].length && n < max; b++)
                where[n++] = copy * layout->extent + layout->blocks[i].offset + b;
    return n;
}

// Packs the low and the high bytes of each place's number, so that each packed byte names its
// place.
static void against_pack(MPI_Datatype type, const struct layout *layout, const char *name,
                         int rank) {
    enum { SPAN = 1 << 16, FRONT = 1 << 12 };
    static unsigned char low[SPAN], high[SPAN], packed_low[SPAN], packed_high[SPAN];
    static long long where[SPAN];
    int low_len = 0, high_len = 0;
    long long n = listed(layout, where, SPAN);
    for (int i = 0; i < SPAN; i++)
        low[i] = i & 255, high[i] = i >> 8;
    MPI_Pack(low + FRONT, 2, type, packed_low, SPAN, &low_len, MPI_COMM_SELF);
    MPI_Pack(high + FRONT, 2, type, packed_high, SPAN, &high_len, MPI_COMM_SELF);
    if (low_len != n || high_len != n || layout->before[layout->count] * 2 != n)
        fail(name, rank, "another size", n);
    for (long long i = 0; i < n && i < low_len; i++)
        if (packed_low[i] + 256 * packed_high[i] != FRONT + where[i]) {
            fail(name, rank, "another byte", i);
            break;
        }
}

static void against_file(MPI_File file, MPI_Datatype type, const struct layout *layout,
                         const char *name, int rank) {
    static long long where[1 << 16];
    long long n = listed(layout, where, 1 << 16);
    if (!layout->monotone) {
        fail(name, rank, "not monotone", 0);
        return;
    }
    MPI_File_set_view(file, 100, MPI_BYTE, type, "native", MPI_INFO_NULL);
    for (long long i = 0; i < n; i++) {
        MPI_Offset at;
        MPI_File_get_byte_offset(file, i, &at);
        if (at != 100 + where[i]) {
            fail(name, rank, "another file offset", i);
            break;
        }
    }
}

#if MPI_VERSION >= 4
// Types made with the calls for large counts have to be asked with their own calls.
static void large_counts(void) {
    MPI_Count lengths[2] = {3, (MPI_Count)5 << 32}, at[2] = {1, 100};
    MPI_Count sizes[2] = {8, 9}, parts[2] = {3, 4}, starts[2] = {1, 2};
    MPI_Datatype type;
    struct layout layout;
    MPI_Type_create_hindexed_c(2, lengths, at, MPI_INT, &type);
    if (flatten(type, FLATTEN_STANDARD, &layout) || layout.count != 2 ||
        layout.blocks[1].length != lengths[1] * 4 || layout.blocks[0].offset != 1 ||
        layout.size != 12 + lengths[1] * 4)
        fail("hindexed_c", 0, "blocks", layout.count);
    flatten_free(&layout);
    MPI_Type_free(&type);
    MPI_Type_create_subarray_c(2, sizes, parts, starts, MPI_ORDER_C, MPI_INT, &type);
    MPI_Type_commit(&type);
    if (flatten(type, FLATTEN_STANDARD, &layout) || layout.count != 3 ||
        layout.blocks[2].offset != (3 * 9 + 2) * 4)
        fail("subarray_c", 0, "blocks", layout.count);
    against_pack(type, &layout, "subarray_c", 0);
    flatten_free(&layout);
    MPI_Type_free(&type);
}
#else
static void large_counts(void) {
}
#endif

// Types beyond the bounds are refused, and leave nothing behind.
static void bounds(void) {
    MPI_Datatype type, deeper;
    struct layout layout;
    MPI_Type_vector(3 << 20, 1, 2, MPI_INT, &type);
    if (flatten(type, FLATTEN_STANDARD, &layout) == 0 || layout.blocks)
        fail("3 Mi blocks", 0, "not refused", layout.count);
    MPI_Type_free(&type);
    MPI_Type_contiguous(1 << 30, MPI_DOUBLE, &type);
    if (flatten(type, FLATTEN_STANDARD, &layout) || layout.count != 1 ||
        layout.size != (int64_t)8 << 30)
        fail("8 GiB", 0, "not one block", layout.count);
    flatten_free(&layout);
    MPI_Type_free(&type);
    MPI_Type_dup(MPI_INT, &type);
    for (int i = 0; i < 100; i++) {
        MPI_Type_dup(type, &deeper);
        MPI_Type_free(&type);
        type = deeper;
    }
    if (flatten(type, FLATTEN_STANDARD, &layout) == 0)
        fail("100 levels", 0, "not refused", layout.count);
    MPI_Type_free(&type);
}

int main(int argc, char **argv) {
    MPI_File file;
    int types = 0;
    MPI_Init(&argc, &argv);
    if (argc < 2 || real_load(find)) {
        fprintf(stderr, "usage: flatten_test FILE\n");
        return 2;
    }
    MPI_File_open(MPI_COMM_SELF, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    for (int ranks = 1; ranks <= 6; ranks++)
        for (int index = 0; index < ALL_TYPES; index++) {
            int rank = (index + ranks) % ranks;
            MPI_Datatype type;
            struct layout layout;
            const char *name = test_type(index, rank, ranks, &type);
            MPI_Type_commit(&type);
            if (flatten(type, FLATTEN_STANDARD, &layout)) fail(name, rank, "not flattened", 0);
            against_pack(type, &layout, name, rank);
            flatten_free(&layout);
            if (index < FILE_TYPES) {
                if (flatten(type, flatten_file_rule(), &layout))
                    fail(name, rank, "not flattened for files", 0);
                against_file(file, type, &layout, name, rank);
                flatten_free(&layout);
            }
            MPI_Type_free(&type);
            types++;
        }
    large_counts();
    bounds();
    MPI_File_close(&file);
    MPI_Finalize();
    printf("%d datatypes flattened, %d failures\n", types, failures);
    return failures > 0;
}
