// Makes the datatypes that the tests of the MPI shim use.
#include "types.h"

#include <stdio.h>
#include <stdlib.h>

#define ITEMS 24 // pieces of a type

// Gives `type` the extent that covers all ranks' parts, and frees the old handle.
static MPI_Datatype resized(MPI_Datatype type, MPI_Aint extent) {
    MPI_Datatype made;
    MPI_Type_create_resized(type, 0, extent, &made);
    MPI_Type_free(&type);
    return made;
}

static const char *vectors(int index, int rank, int ranks, MPI_Datatype *type) {
    int at[ITEMS], lengths[ITEMS];
    MPI_Aint bytes[ITEMS];
    MPI_Datatype part, shifted;
    int one = 1;
    MPI_Aint start;
    switch (index) {
    case 0: // each rank's items of 4 ints, in turn with the other ranks'
        MPI_Type_vector(ITEMS, 4, 4 * ranks, MPI_INT, &part);
        start = 16 * rank;
        MPI_Type_create_hindexed(1, &one, &start, part, &shifted);
        MPI_Type_free(&part);
        *type = resized(shifted, (MPI_Aint)ITEMS * 16 * ranks);
        return "vector";
    case 1: // a gap that no rank touches after each round
        MPI_Type_create_hvector(ITEMS, 3, (MPI_Aint)24 * ranks + 40, MPI_DOUBLE, &part);
        start = 24 * rank;
        MPI_Type_create_hindexed_block(1, 1, &start, part, &shifted);
        MPI_Type_free(&part);
        *type = resized(shifted, ITEMS * ((MPI_Aint)24 * ranks + 40));
        return "hvector";
    case 2: // blocks that grow
        for (int i = 0, from = 0; i < ITEMS; i++) {
            lengths[i] = 1 + i % 7;
            at[i] = from + rank * lengths[i];
            from += ranks * lengths[i];
        }
        MPI_Type_indexed(ITEMS, lengths, at, MPI_INT, &part);
        *type = resized(part, (MPI_Aint)4 * ranks * (24 / 7 * 28 + 6));
        return "indexed";
    case 3: // some blocks are empty
        for (int i = 0; i < ITEMS; i++) {
            lengths[i] = i % 5 == rank % 5 ? 0 : 5 + i % 3;
            bytes[i] = (MPI_Aint)i * 9 * ranks + 9 * rank;
        }
        MPI_Type_create_hindexed(ITEMS, lengths, bytes, MPI_CHAR, &part);
        *type = resized(part, (MPI_Aint)ITEMS * 9 * ranks);
        return "hindexed";
    case 4:
        for (int i = 0; i < ITEMS; i++)
            at[i] = (i * ranks + rank) * 6;
        MPI_Type_create_indexed_block(ITEMS, 6, at, MPI_SHORT, &part);
        *type = resized(part, (MPI_Aint)ITEMS * ranks * 12);
        return "indexed_block";
    default:
        for (int i = 0; i < ITEMS; i++)
            bytes[i] = ((MPI_Aint)i * ranks + rank) * 17 + i * i;
        MPI_Type_create_hindexed_block(ITEMS, 17, bytes, MPI_BYTE, &part);
        *type = resized(part, (MPI_Aint)ITEMS * ranks * 17 + ITEMS * ITEMS);
        return "hindexed_block";
    }
}

static const char *structures(int index, int rank, int ranks, MPI_Datatype *type) {
    int lengths[4] = {3, 2, 5, 1};
    MPI_Aint at[4];
    MPI_Datatype parts[4] = {MPI_INT, MPI_DOUBLE, MPI_CHAR, MPI_SHORT}, part, whole;
    switch (index) {
    case 0: // pieces of several types, a round of 12 + 16 + 5 + 2 bytes a rank
        for (int i = 0, from = 0; i < 4; i++) {
            static const int size[4] = {12, 16, 5, 2};
            at[i] = from + rank * size[i];
            from += ranks * size[i];
        }
        MPI_Type_create_struct(4, lengths, at, parts, &part);
        part = resized(part, (MPI_Aint)35 * ranks);
        MPI_Type_contiguous(5, part, type);
        MPI_Type_free(&part);
        return "struct";
    case 1: // vectors in a struct in a vector
        MPI_Type_vector(3, 1, 2, MPI_INT, &part);
        lengths[0] = 2, lengths[1] = 1;
        at[0] = 0, at[1] = 64;
        parts[0] = part, parts[1] = MPI_DOUBLE;
        MPI_Type_create_struct(2, lengths, at, parts, &whole);
        MPI_Type_free(&part);
        whole = resized(whole, 72);
        MPI_Type_create_hvector(4, 1, (MPI_Aint)72 * ranks, whole, &part);
        MPI_Type_free(&whole);
        lengths[0] = 1;
        at[0] = 72 * rank;
        MPI_Type_create_struct(1, lengths, at, &part, &whole);
        MPI_Type_free(&part);
        *type = resized(whole, (MPI_Aint)4 * 72 * ranks);
        return "nested";
    case 2: // one item of each rank, resized to the round
        MPI_Type_contiguous(32, MPI_CHAR, &part);
        at[0] = 32 * rank;
        lengths[0] = 1;
        MPI_Type_create_hindexed(1, lengths, at, part, &whole);
        MPI_Type_free(&part);
        *type = resized(whole, (MPI_Aint)32 * ranks);
        return "resized";
    default: // all bytes, no holes: every rank has its share of the whole file
        MPI_Type_contiguous(500 + 10 * ranks, MPI_BYTE, type);
        return "contiguous";
    }
}

// Columns of a matrix, planes of a cube.
static const char *arrays(int index, int rank, int ranks, MPI_Datatype *type) {
    int sizes[3], parts[3], starts[3] = {0, 0, 0}, order = MPI_ORDER_C;
    const char *name;
    switch (index) {
    case 0:
        sizes[0] = 12, sizes[1] = 5 * ranks;
        parts[0] = 12, parts[1] = 5;
        starts[1] = 5 * rank;
        MPI_Type_create_subarray(2, sizes, parts, starts, order, MPI_DOUBLE, type);
        return "subarray 2-D";
    case 1: // whole inner rows are joined
        sizes[0] = 6, sizes[1] = 3 * ranks, sizes[2] = 7;
        parts[0] = 5, parts[1] = 3, parts[2] = 7;
        starts[0] = 1, starts[1] = 3 * rank;
        name = "subarray 3-D";
        break;
    case 2:
        order = MPI_ORDER_FORTRAN;
        sizes[0] = 4 * ranks, sizes[1] = 5, sizes[2] = 4;
        parts[0] = 4, parts[1] = 3, parts[2] = 4;
        starts[0] = 4 * rank, starts[1] = 1;
        name = "subarray Fortran";
        break;
    default: { // elements with a hole
        MPI_Datatype item;
        MPI_Type_vector(2, 1, 2, MPI_INT, &item);
        item = resized(item, 16);
        sizes[0] = 2 * ranks, sizes[1] = 6;
        parts[0] = 2, parts[1] = 4;
        starts[0] = 2 * rank, starts[1] = 1;
        MPI_Type_create_subarray(2, sizes, parts, starts, order, item, type);
        MPI_Type_free(&item);
        return "subarray of vectors";
    }
    }
    MPI_Type_create_subarray(3, sizes, parts, starts, order, MPI_INT, type);
    return name;
}

static const char *spread(int index, int rank, int ranks, MPI_Datatype *type) {
    int sizes[2] = {15, 5 * ranks - 2}, distributions[2], arguments[2], processes[2] = {1, ranks};
    arguments[0] = arguments[1] = MPI_DISTRIBUTE_DFLT_DARG;
    distributions[0] = MPI_DISTRIBUTE_NONE, distributions[1] = MPI_DISTRIBUTE_BLOCK;
    if (index == 1) {
        distributions[0] = MPI_DISTRIBUTE_BLOCK, distributions[1] = MPI_DISTRIBUTE_CYCLIC;
        arguments[1] = 2;
    } else if (index == 2) {
        distributions[0] = MPI_DISTRIBUTE_CYCLIC, distributions[1] = MPI_DISTRIBUTE_NONE;
        processes[0] = ranks, processes[1] = 1;
    }
    MPI_Type_create_darray(ranks, rank, 2, sizes, distributions, arguments, processes,
                           index == 2 ? MPI_ORDER_FORTRAN : MPI_ORDER_C, MPI_INT, type);
    return index == 0 ? "darray block" : index == 1 ? "darray cyclic" : "darray Fortran";
}

// Predefined pairs with gaps.
static const char *pairs(int index, int rank, int ranks, MPI_Datatype *type) {
    int one = 1;
    MPI_Aint at = (index == 0 ? 8 : 32) * rank;
    MPI_Datatype part, whole;
    if (index == 0) // an int that is aligned behind a short
        MPI_Type_create_hvector(ITEMS, 1, (MPI_Aint)8 * ranks, MPI_SHORT_INT, &part);
    else // padding behind the int
        MPI_Type_vector(ITEMS, 2, 2 * ranks, MPI_DOUBLE_INT, &part);
    MPI_Type_create_hindexed(1, &one, &at, part, &whole);
    MPI_Type_free(&part);
    *type = resized(whole, (MPI_Aint)ITEMS * (index == 0 ? 8 : 32) * ranks);
    return index == 0 ? "short_int" : "double_int";
}

// What only memory can have: falling offsets, negative ones, overlap, and oddities of constructors.
static const char *memory_only(int index, int rank, int ranks, MPI_Datatype *type) {
    int lengths[3] = {2, 0, 3}, at[3] = {9, 4, 1};
    int sizes[2] = {9, 10}, kinds[2] = {MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_CYCLIC};
    int arguments[2] = {2, 3}, processes[2] = {2, 2};
    MPI_Datatype part;
    (void)ranks;
    switch (index) {
    case 0:
        MPI_Type_indexed(3, lengths, at, MPI_INT, type);
        return "falling";
    case 1:
        MPI_Type_vector(4, 2, -3, MPI_INT, type);
        return "negative stride";
    case 2:
        MPI_Type_vector(4, 3, 2, MPI_SHORT, type);
        return "overlapping";
    case 3:
        MPI_Type_create_darray(4, rank % 4, 2, sizes, kinds, arguments, processes, MPI_ORDER_C,
                               MPI_SHORT_INT, type);
        return "darray cyclic twice";
    case 4:
        MPI_Type_dup(MPI_LONG_DOUBLE_INT, &part);
        MPI_Type_contiguous(3, part, type);
        MPI_Type_free(&part);
        return "dup";
    case 5:
        MPI_Type_create_f90_real(12, MPI_UNDEFINED, &part);
        MPI_Type_vector(3, 1, 3, part, type);
        return "f90 real";
    case 6:
        MPI_Type_create_f90_integer(6, &part);
        MPI_Type_contiguous(7, part, type);
        return "f90 integer";
    default:
        MPI_Type_contiguous(0, MPI_INT, type);
        return "empty";
    }
}

const char *test_type(int index, int rank, int ranks, MPI_Datatype *type) {
    if (index < 6) return vectors(index, rank, ranks, type);
    if (index < 10) return structures(index - 6, rank, ranks, type);
    if (index < 14) return arrays(index - 10, rank, ranks, type);
    if (index < 17) return spread(index - 14, rank, ranks, type);
    if (index < 19) return pairs(index - 17, rank, ranks, type);
    return memory_only(index - 19, rank, ranks, type);
}
