// Flattens an MPI datatype by walking its constructors with the envelope and contents calls, which
// every MPI has.
#include "flatten.h"

#include <stdlib.h>
#include <string.h>

#include "real.h"

// What a constructor was called with: numbers in one order, whether it was the int or the
// MPI_Count form, and the types it was given.
struct contents {
    int combiner;
    int64_t *numbers, numbers_len;
    MPI_Datatype *types;
    int64_t types_len;
};

static int child_of(MPI_Datatype type, enum flatten_rule rule, struct child *child, int depth);

static int append(struct blocks *to, int64_t offset, int64_t length) {
    if (++to->steps > FLATTEN_STEPS_MAX) return -1;
    if (length == 0) return 0;
    if (to->count > 0) {
        struct block *last = &to->at[to->count - 1];
        if (last->offset + last->length == offset) {
            last->length += length;
            return 0;
        }
    }
    if (to->count == to->space) {
        int64_t space = to->space ? to->space * 2 : 16;
        struct block *grown;
        if (to->count >= FLATTEN_BLOCKS_MAX) return -1;
        grown = realloc(to->at, (size_t)space * sizeof *grown);
        if (!grown) return -1;
        to->at = grown;
        to->space = space;
    }
    to->at[to->count++] = (struct block){offset, length};
    return 0;
}

int blocks_repeat(struct blocks *to, const struct child *child, int64_t at, int64_t times) {
    const struct blocks *blocks = &child->blocks;
    if (blocks->count == 0 || times <= 0) return 0;
    // Copies that touch are one block: a row of 2^40 bytes costs no more than a byte.
    if (blocks->count == 1 && blocks->at[0].length == child->extent)
        return append(to, at + blocks->at[0].offset, times * child->extent);
    for (int64_t i = 0; i < times; i++, at += child->extent)
        for (int64_t j = 0; j < blocks->count; j++)
            if (append(to, at + blocks->at[j].offset, blocks->at[j].length)) return -1;
    return 0;
}

// Predefined types of Fortran's kinds are not named, and must not be freed either.
static int is_leaf(int combiner) {
    return combiner == MPI_COMBINER_NAMED || combiner == MPI_COMBINER_F90_REAL ||
           combiner == MPI_COMBINER_F90_COMPLEX || combiner == MPI_COMBINER_F90_INTEGER;
}

static int envelope_of(MPI_Datatype type, MPI_Count *integers, MPI_Count *addresses,
                       MPI_Count *counts, MPI_Count *types, int *combiner) {
    int small[3];
    if (real_MPI_Type_get_envelope_c)
        return real_MPI_Type_get_envelope_c(type, integers, addresses, counts, types, combiner);
    if (real_MPI_Type_get_envelope(type, &small[0], &small[1], &small[2], combiner)) return -1;
    *integers = small[0], *addresses = small[1], *counts = 0, *types = small[2];
    return 0;
}

void flatten_release(MPI_Datatype *type) {
    MPI_Count n[4];
    int combiner;
    if (envelope_of(*type, &n[0], &n[1], &n[2], &n[3], &combiner) == 0 && !is_leaf(combiner))
        real_MPI_Type_free(type);
}

static void contents_free(struct contents *contents) {
    for (int64_t i = 0; i < contents->types_len; i++)
        flatten_release(&contents->types[i]);
    free(contents->numbers);
    free(contents->types);
    memset(contents, 0, sizeof *contents);
}

// Where the large numbers lie among the integers: after the dimensions for arrays (which keep their
// order or distribution as integers), in front for all others.
static int64_t integers_in_front(int combiner) {
    return combiner == MPI_COMBINER_SUBARRAY ? 1 : combiner == MPI_COMBINER_DARRAY ? 3 : 0;
}

// The numbers of the int form are integers, then addresses; of the MPI_Count form, large numbers
// in the same order.
static int contents_of(MPI_Datatype type, struct contents *contents) {
    MPI_Count n_integers, n_addresses, n_counts, n_types;
    int failed, *integers;
    MPI_Aint *addresses;
    MPI_Count *counts;
    int64_t *to, front;

    memset(contents, 0, sizeof *contents);
    if (envelope_of(type, &n_integers, &n_addresses, &n_counts, &n_types, &contents->combiner))
        return -1;
    if (is_leaf(contents->combiner)) return 0;
    if (n_integers + n_addresses + n_counts > 4 * FLATTEN_BLOCKS_MAX) return -1;
    contents->numbers_len = n_integers + n_addresses + n_counts;
    contents->numbers = malloc(((size_t)contents->numbers_len + 1) * sizeof *contents->numbers);
    contents->types = malloc(((size_t)n_types + 1) * sizeof *contents->types);
    integers = malloc(((size_t)n_integers + 1) * sizeof *integers);
    addresses = malloc(((size_t)n_addresses + 1) * sizeof *addresses);
    counts = malloc(((size_t)n_counts + 1) * sizeof *counts);
    failed = !contents->numbers || !contents->types || !integers || !addresses || !counts;
    if (!failed) {
        if (real_MPI_Type_get_envelope_c)
            failed = real_MPI_Type_get_contents_c(type, n_integers, n_addresses, n_counts, n_types,
                                                  integers, addresses, counts, contents->types);
        else
            failed = real_MPI_Type_get_contents(type, (int)n_integers, (int)n_addresses,
                                                (int)n_types, integers, addresses, contents->types);
    }
    if (!failed) {
        contents->types_len = n_types;
        to = contents->numbers;
        front = n_counts ? integers_in_front(contents->combiner) : n_integers;
        for (int64_t i = 0; i < front; i++)
            *to++ = integers[i];
        for (int64_t i = 0; i < n_counts; i++)
            *to++ = counts[i];
        for (int64_t i = front; i < n_integers; i++)
            *to++ = integers[i];
        for (int64_t i = 0; i < n_addresses; i++)
            *to++ = addresses[i];
    }
    free(integers);
    free(addresses);
    free(counts);
    if (failed) contents_free(contents);
    return failed ? -1 : 0;
}

// A predefined type is one run of bytes, but for the pair of a short and an int, whose int is
// aligned; a pair with padding behind it is a run shorter than its extent.
static int leaf(MPI_Datatype type, enum flatten_rule rule, struct child *to) {
    MPI_Count size;
    if (real_MPI_Type_size_x(type, &size)) return -1;
    if (rule == FLATTEN_ROMIO && size != to->extent) {
        to->extent = size;
        to->squeezed = 1;
    }
    if (type == MPI_SHORT_INT && rule == FLATTEN_STANDARD) {
        struct {
            short value;
            int index;
        } pair;
        int64_t gap = (char *)&pair.index - (char *)&pair;
        return append(&to->blocks, 0, sizeof pair.value) ||
                       append(&to->blocks, gap, sizeof pair.index)
                   ? -1
                   : 0;
    }
    return append(&to->blocks, 0, size);
}

// Blocks at the given displacements, each `scale` bytes a unit; `lengths` NULL means that every
// block has `length` copies.
static int indexed(struct blocks *to, const struct child *child, int64_t count,
                   const int64_t *lengths, int64_t length, const int64_t *at, int64_t scale) {
    for (int64_t i = 0; i < count; i++)
        if (blocks_repeat(to, child, at[i] * scale, lengths ? lengths[i] : length)) return -1;
    return 0;
}

static int vector(struct blocks *to, const struct child *child, const int64_t *v, int64_t scale) {
    if (child->blocks.count == 0 || v[1] <= 0) return 0;
    for (int64_t i = 0; i < v[0]; i++)
        if (blocks_repeat(to, child, i * v[2] * scale, v[1])) return -1;
    return 0;
}

// Every constructor with one type below it.
static int construct(struct blocks *to, const struct contents *contents,
                     const struct child *child) {
    const int64_t *v = contents->numbers;
    int64_t n = contents->numbers_len > 0 ? v[0] : 0;
    int combiner = contents->combiner, dims;
    if (child->squeezed && combiner != MPI_COMBINER_CONTIGUOUS && combiner != MPI_COMBINER_VECTOR &&
        combiner != MPI_COMBINER_HVECTOR)
        return -1;
    switch (combiner) {
    case MPI_COMBINER_CONTIGUOUS:
        return blocks_repeat(to, child, 0, n);
    case MPI_COMBINER_VECTOR:
        return vector(to, child, v, child->extent);
    case MPI_COMBINER_HVECTOR:
        return vector(to, child, v, 1);
    case MPI_COMBINER_INDEXED:
        return indexed(to, child, n, v + 1, 0, v + 1 + n, child->extent);
    case MPI_COMBINER_HINDEXED:
        return indexed(to, child, n, v + 1, 0, v + 1 + n, 1);
    case MPI_COMBINER_INDEXED_BLOCK:
        return indexed(to, child, n, NULL, v[1], v + 2, child->extent);
    case MPI_COMBINER_HINDEXED_BLOCK:
        return indexed(to, child, n, NULL, v[1], v + 2, 1);
    case MPI_COMBINER_SUBARRAY:
        dims = (int)n;
        return blocks_subarray(to, child, dims, v + 1, v + 1 + dims, v + 1 + 2 * dims,
                               (int)v[1 + 3 * dims]);
    case MPI_COMBINER_DARRAY:
        dims = (int)v[2];
        return blocks_darray(to, child, v[1], dims, v + 3, v + 3 + dims, v + 3 + 2 * dims,
                             v + 3 + 3 * dims, (int)v[3 + 4 * dims]);
    default:
        return -1;
    }
}

// The same blocks: they are not copied. `to` is still empty.
static int handed_on(struct blocks *to, MPI_Datatype type, enum flatten_rule rule, int depth) {
    struct child child;
    memset(&child, 0, sizeof child);
    child.blocks.steps = to->steps;
    int failed = child_of(type, rule, &child, depth) || child.squeezed;
    *to = child.blocks;
    return failed ? -1 : 0;
}

// Appends what the constructor makes of its types: one for each block in a struct, else one.
static int blocks_of(struct blocks *to, const struct contents *contents, enum flatten_rule rule,
                     int depth) {
    int is_struct = contents->combiner == MPI_COMBINER_STRUCT, failed = 0;
    int64_t n = is_struct ? contents->numbers[0] : 1;
    const int64_t *lengths = contents->numbers + 1, *at = lengths + n;
    if (contents->types_len != n) return -1;
    if (contents->combiner == MPI_COMBINER_DUP || contents->combiner == MPI_COMBINER_RESIZED)
        return handed_on(to, contents->types[0], rule, depth);
    for (int64_t i = 0; i < n && !failed; i++) {
        struct child child;
        int64_t steps = to->steps;
        memset(&child, 0, sizeof child);
        child.blocks.steps = steps;
        failed = child_of(contents->types[i], rule, &child, depth) ||
                 (is_struct && child.squeezed) ||
                 (is_struct ? blocks_repeat(to, &child, at[i], lengths[i])
                            : construct(to, contents, &child));
        to->steps += child.blocks.steps - steps;
        free(child.blocks.at);
    }
    return failed ? -1 : 0;
}

static int child_of(MPI_Datatype type, enum flatten_rule rule, struct child *child, int depth) {
    struct contents contents;
    MPI_Aint lb, extent;
    int failed;
    if (depth > FLATTEN_DEPTH_MAX || real_MPI_Type_get_extent(type, &lb, &extent) ||
        contents_of(type, &contents))
        return -1;
    child->extent = extent;
    failed = is_leaf(contents.combiner) ? leaf(type, rule, child)
                                        : blocks_of(&child->blocks, &contents, rule, depth + 1);
    contents_free(&contents);
    return failed;
}

uint64_t flatten_mixed(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ (hash >> 29);
}

enum flatten_rule flatten_file_rule(void) {
    return real_has_type_iov ? FLATTEN_STANDARD : FLATTEN_ROMIO;
}

int flatten(MPI_Datatype type, enum flatten_rule rule, struct layout *layout) {
    struct child all;
    struct blocks blocks;
    MPI_Aint lb, extent;
    int64_t size = 0, end = INT64_MIN;

    memset(layout, 0, sizeof *layout);
    memset(&all, 0, sizeof all);
    if (real_MPI_Type_get_extent(type, &lb, &extent) || child_of(type, rule, &all, 0) ||
        all.squeezed ||
        !(layout->before = malloc(((size_t)all.blocks.count + 1) * sizeof *layout->before))) {
        free(all.blocks.at);
        return -1;
    }
    blocks = all.blocks;
    layout->blocks = blocks.at;
    layout->count = blocks.count;
    layout->lb = lb;
    layout->extent = extent;
    layout->monotone = 1;
    layout->hash = flatten_mixed((uint64_t)extent, (uint64_t)blocks.count);
    for (int64_t i = 0; i < blocks.count; i++) {
        const struct block *block = &blocks.at[i];
        layout->before[i] = size;
        size += block->length;
        layout->monotone &= block->offset >= end;
        end = block->offset + block->length;
        layout->hash = flatten_mixed(layout->hash, (uint64_t)(block->offset - blocks.at[0].offset));
        layout->hash = flatten_mixed(layout->hash, (uint64_t)block->length);
    }
    layout->before[blocks.count] = size;
    layout->size = size;
    return 0;
}

void flatten_free(struct layout *layout) {
    free(layout->blocks);
    free(layout->before);
    memset(layout, 0, sizeof *layout);
}
