// Finds places in a flattened file view by binary search.
#include "view.h"

#include <string.h>

#include "real.h"

static void measure(struct view *view) {
    const struct layout *layout = &view->layout;
    int64_t n = layout->count, end, gap;
    if (view->etype_size <= 0) return;
    if (n == 0) {
        // A view without data: only calls without data can use it. Open MPI's ROMIO (3.2.1) takes
        // the file pointer of such a rank for its place, which can be anything.
#ifndef OPEN_MPI
        view->contiguous = view->usable = 1;
#endif
        return;
    }
    if (!layout->monotone || layout->blocks[0].offset < 0) return;
    end = layout->blocks[0].offset + layout->blocks[0].length;
    for (int64_t i = 1; i < n; i++) {
        gap = layout->blocks[i].offset - end;
        if (gap > view->gap_max) view->gap_max = gap;
        end = layout->blocks[i].offset + layout->blocks[i].length;
    }
    gap = layout->blocks[0].offset + layout->extent - end;
    // Tiles that reach into each other would have to be sorted first.
    if (gap < 0) return;
    if (gap > view->gap_max) view->gap_max = gap;
    view->contiguous = n == 1 && gap == 0 && layout->blocks[0].offset == 0;
    view->usable = 1;
}

void view_read(struct view *view, MPI_File file) {
    MPI_Offset displacement = 0;
    MPI_Datatype etype, filetype;
    MPI_Count size = 0;
    char representation[MPI_MAX_DATAREP_STRING + 1] = "";

    view_free(view);
    if (real_MPI_File_get_view(file, &displacement, &etype, &filetype, representation) != 0) return;
    view->displacement = displacement;
    if (real_MPI_Type_size_x(etype, &size) == 0) view->etype_size = size;
    // Other representations have other sizes in the file; ROMIO has none but this one.
    if (strcmp(representation, "native") == 0 || strcmp(representation, "NATIVE") == 0) {
        if (flatten(filetype, flatten_file_rule(), &view->layout) == 0) {
            view->empty = view->layout.size == 0;
            measure(view);
        }
    }
    flatten_release(&etype);
    flatten_release(&filetype);
}

void view_free(struct view *view) {
    flatten_free(&view->layout);
    memset(view, 0, sizeof *view);
}

// The last block with before[i] <= within.
static int64_t block_of(const struct layout *layout, int64_t within) {
    int64_t low = 0, high = layout->count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (layout->before[middle] <= within)
            low = middle;
        else
            high = middle;
    }
    return low;
}

int64_t view_at(const struct view *view, int64_t position) {
    const struct layout *layout = &view->layout;
    int64_t tile = position / layout->size, within = position % layout->size;
    int64_t block = block_of(layout, within);
    return view->displacement + tile * layout->extent + layout->blocks[block].offset + within -
           layout->before[block];
}

int view_access(const struct view *view, int64_t offset, int64_t size, struct access *access) {
    int64_t tiles;
    if (!view->usable || offset < 0 || size < 0) return -1;
    // Offsets beyond 2^62 would overflow below; no file is that long.
    if (offset > (INT64_MAX / 4) / view->etype_size) return -1;
    access->position = offset * view->etype_size;
    access->size = size;
    if (view->layout.size == 0) {
        access->first = view->displacement + access->position;
        access->last = access->first - 1;
        return size > 0 ? -1 : 0;
    }
    tiles = (access->position + size) / view->layout.size + 1;
    if (size > INT64_MAX / 4 || tiles > (INT64_MAX / 4) / view->layout.extent) return -1;
    access->first = view_at(view, access->position);
    if (size > 0)
        access->last = view_at(view, access->position + size - 1);
    else
        access->last = view->contiguous ? access->first - 1 : 0;
    return 0;
}

int64_t view_below(const struct view *view, const struct access *access, int64_t at) {
    const struct layout *layout = &view->layout;
    int64_t bytes, tile, within, low, high, end;
    if (access->size == 0 || at <= access->first) return 0;
    if (at > access->last) return access->size;
    within = at - view->displacement - layout->blocks[0].offset;
    tile = within / layout->extent;
    within = within % layout->extent + layout->blocks[0].offset;
    // The last block that begins before `within`.
    for (low = 0, high = layout->count; high - low > 1;) {
        int64_t middle = low + (high - low) / 2;
        if (layout->blocks[middle].offset < within)
            low = middle;
        else
            high = middle;
    }
    end = within - layout->blocks[low].offset;
    if (end > layout->blocks[low].length) end = layout->blocks[low].length;
    bytes = tile * layout->size + layout->before[low] + end - access->position;
    return bytes < 0 ? 0 : bytes > access->size ? access->size : bytes;
}

uint64_t view_shape(const struct view *view, const struct access *access) {
    uint64_t hash = flatten_mixed(0x7469646567617465, (uint64_t)access->size);
    if (access->size == 0) return flatten_mixed(hash, (uint64_t)view->contiguous);
    if (view->contiguous) return hash;
    hash = flatten_mixed(hash, view->layout.hash);
    return flatten_mixed(hash, (uint64_t)(access->position % view->layout.size));
}
