// Flattens the two array constructors: parts of an array (subarray) and arrays spread over
// processes (darray).
#include <stdlib.h>

#include "flatten.h"

#define ARRAY_DIMS_MAX 64

// The indices of one dimension that belong to the part: runs of `length`, `step` apart, until
// `end`.
struct runs {
    int64_t first, length, step, end;
};

// Appends the part that `runs` describe; dimension dims - 1 varies fastest, `strides` are in bytes.
static int part(struct blocks *to, const struct child *child, int dims, const struct runs *runs,
                const int64_t *strides, int64_t at) {
    const struct runs *run = &runs[0];
    for (int64_t start = run->first; start < run->end; start += run->step) {
        int64_t length = run->end - start < run->length ? run->end - start : run->length;
        if (dims == 1) {
            if (blocks_repeat(to, child, at + start * child->extent, length)) return -1;
            continue;
        }
        for (int64_t i = start; i < start + length; i++)
            if (part(to, child, dims - 1, runs + 1, strides + 1, at + i * strides[0])) return -1;
    }
    return 0;
}

// Joins dimensions of which the inner one is taken whole, so that whole rows are one run; then
// appends the part. `runs` and `sizes` are in the order of rows (last fastest).
static int array(struct blocks *to, const struct child *child, int dims, struct runs *runs,
                 int64_t *sizes) {
    int64_t strides[ARRAY_DIMS_MAX];
    for (int i = 0; i < dims; i++)
        if (runs[i].first >= runs[i].end || runs[i].length <= 0) return 0;
    if (child->blocks.count == 0) return 0;
    while (dims > 1) {
        struct runs *inner = &runs[dims - 1], *outer = inner - 1;
        int64_t size = sizes[dims - 1];
        int whole = inner->first == 0 && inner->end == size &&
                    (inner->length >= size || inner->length == inner->step);
        if (!whole) break;
        outer->first *= size, outer->length *= size, outer->step *= size, outer->end *= size;
        sizes[dims - 2] *= size;
        dims--;
    }
    strides[dims - 1] = child->extent;
    for (int i = dims - 2; i >= 0; i--)
        strides[i] = strides[i + 1] * sizes[i + 1];
    return part(to, child, dims, runs, strides, 0);
}

// The place of MPI's dimension i in the order of rows.
static int place(int i, int dims, int order) {
    return order == MPI_ORDER_FORTRAN ? dims - 1 - i : i;
}

int blocks_subarray(struct blocks *to, const struct child *child, int dims, const int64_t *sizes,
                    const int64_t *parts, const int64_t *starts, int order) {
    struct runs runs[ARRAY_DIMS_MAX];
    int64_t rows[ARRAY_DIMS_MAX];
    if (dims < 1 || dims > ARRAY_DIMS_MAX) return -1;
    for (int i = 0; i < dims; i++) {
        int to_dim = place(i, dims, order);
        rows[to_dim] = sizes[i];
        runs[to_dim] = (struct runs){starts[i], parts[i], sizes[i], starts[i] + parts[i]};
    }
    return array(to, child, dims, runs, rows);
}

// The runs of one dimension of a distributed array, as the MPI standard defines them.
static int distribute(int64_t size, int64_t distribution, int64_t argument, int64_t processes,
                      int64_t coordinate, struct runs *runs) {
    int64_t block = argument;
    if (distribution == MPI_DISTRIBUTE_NONE) {
        *runs = (struct runs){0, size, size, size};
        return 0;
    }
    if (distribution == MPI_DISTRIBUTE_BLOCK) {
        if (argument == MPI_DISTRIBUTE_DFLT_DARG) block = (size + processes - 1) / processes;
        runs->first = coordinate * block;
        runs->length = block;
        runs->step = block * processes;
        runs->end = runs->first + block < size ? runs->first + block : size;
        return 0;
    }
    if (distribution != MPI_DISTRIBUTE_CYCLIC) return -1;
    if (argument == MPI_DISTRIBUTE_DFLT_DARG) block = 1;
    *runs = (struct runs){coordinate * block, block, block * processes, size};
    return 0;
}

int blocks_darray(struct blocks *to, const struct child *child, int64_t rank, int dims,
                  const int64_t *sizes, const int64_t *distributions, const int64_t *arguments,
                  const int64_t *processes, int order) {
    struct runs runs[ARRAY_DIMS_MAX];
    int64_t rows[ARRAY_DIMS_MAX];
    if (dims < 1 || dims > ARRAY_DIMS_MAX) return -1;
    // Processes are numbered in the order of rows, whatever the array's order is.
    for (int i = dims - 1; i >= 0; i--) {
        int to_dim = place(i, dims, order);
        rows[to_dim] = sizes[i];
        if (distribute(sizes[i], distributions[i], arguments[i], processes[i], rank % processes[i],
                       &runs[to_dim]))
            return -1;
        rank /= processes[i];
    }
    return array(to, child, dims, runs, rows);
}
