// Flattening: the bytes that an MPI datatype covers, as a list of blocks in the order of its type
// map.
#ifndef TIDEGATE_MPI_FLATTEN_H
#define TIDEGATE_MPI_FLATTEN_H

#include <mpi.h>
#include <stdint.h>

struct block {
    int64_t offset, length; // bytes; the offset is relative to the buffer's or the view's start
};

struct layout {
    struct block *blocks; // neighbours in the list never touch: touching ones are joined
    int64_t *before;      // before[i]: bytes in the blocks before block i; before[count] == size
    int64_t count;
    int64_t size; // bytes of data
    int64_t lb, extent;
    int monotone;  // offsets never fall, and no byte occurs twice
    uint64_t hash; // of the blocks relative to the first, and of the extent
};

// More blocks than this are not flattened (64 MiB with their sums), and neither is deeper nesting.
#define FLATTEN_BLOCKS_MAX ((int64_t)2 << 20)
#define FLATTEN_DEPTH_MAX 64
// And no more steps than this are made, also where all blocks join: 0.1 s.
#define FLATTEN_STEPS_MAX ((int64_t)16 << 20)

// ROMIO before MPICH 4.1 takes a predefined pair such as MPI_DOUBLE_INT for a run of bytes without
// the gap that the standard gives it, and files are written so. Its rule differs between
// constructors; where it is not that of contiguous, vector and hvector, such a pair is not
// flattened.
enum flatten_rule { FLATTEN_STANDARD, FLATTEN_ROMIO };
// The rule by which this process's MPI lays out files.
enum flatten_rule flatten_file_rule(void);

// Fills `layout` from the type; every handle that MPI makes on the way is freed. 0, or -1 where the
// type has too many blocks, is nested too deep, has a combiner that is not known here, or memory
// ends: then `layout` is empty.
int flatten(MPI_Datatype type, enum flatten_rule rule, struct layout *layout);
void flatten_free(struct layout *layout);

// Frees a handle that MPI handed out, unless it is a predefined type's.
void flatten_release(MPI_Datatype *type);
// `value` stirred into `hash`.
uint64_t flatten_mixed(uint64_t hash, uint64_t value);

// --- between flatten.c and arrays.c ---

struct blocks {
    struct block *at;
    int64_t count, space, steps;
};

// What a constructor repeats: the blocks of the type below it.
struct child {
    struct blocks blocks;
    int64_t extent; // the unit of displacements, and the distance of neighbours
    int squeezed;   // a pair without its gap, as ROMIO has it: extent is its size
};

// Appends `times` copies of the child, the first displaced by `at`.
int blocks_repeat(struct blocks *to, const struct child *child, int64_t at, int64_t times);

// A subarray of `dims` dimensions; each array has one number for each dimension.
int blocks_subarray(struct blocks *to, const struct child *child, int dims, const int64_t *sizes,
                    const int64_t *parts, const int64_t *starts, int order);
// The part of process `rank` in a distributed array.
int blocks_darray(struct blocks *to, const struct child *child, int64_t rank, int dims,
                  const int64_t *sizes, const int64_t *distributions, const int64_t *arguments,
                  const int64_t *processes, int order);

#endif
