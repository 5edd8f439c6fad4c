// A file view, flattened, and the part of it that one collective call touches on this rank.
#ifndef TIDEGATE_MPI_VIEW_H
#define TIDEGATE_MPI_VIEW_H

#include "flatten.h"

struct view {
    struct layout layout; // of one tile
    int64_t displacement; // bytes
    int64_t etype_size;
    int64_t gap_max; // the longest run of bytes without data between two blocks, also of two tiles
    int contiguous;  // one block that fills its extent: as a file without a view
    int empty;       // no data in it
    int usable;      // its data lies in the file in the order in which it is numbered
};

// One rank's data in one call: `size` bytes from `position` on, counted in bytes of data.
struct access {
    int64_t position, size;
    int64_t first, last; // offsets in the file, by ROMIO's rules where there is no data
};

// Reads the view that the file has now. An unusable view is no error.
void view_read(struct view *view, MPI_File file);
void view_free(struct view *view);

// `offset` in etypes. 0, or -1 where the view cannot be used for it.
int view_access(const struct view *view, int64_t offset, int64_t size, struct access *access);
// Bytes of the access that lie before offset `at`.
int64_t view_below(const struct view *view, const struct access *access, int64_t at);
// The offset in the file of that byte of data.
int64_t view_at(const struct view *view, int64_t position);
// A number that two accesses share when they touch the same bytes relative to their first one.
uint64_t view_shape(const struct view *view, const struct access *access);

#endif
