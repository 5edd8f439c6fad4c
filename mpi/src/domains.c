// Cuts the range of a collective call into the file domains of ROMIO's aggregators.
#include "domains.h"

#include <stdlib.h>

int domains_interleaved(const void *spans, int stride, int ranks) {
    const char *at = spans;
    for (int i = 1; i < ranks; i++) {
        const struct span *before = (const struct span *)at;
        const struct span *span = (const struct span *)(at += stride);
        if (span->first < before->last && span->first <= span->last) return 1;
    }
    return 0;
}

// The multiple of `unit` that is nearest to `end`; in the middle, the higher one.
static int64_t rounded(int64_t end, int64_t unit) {
    int64_t above = end % unit;
    return above < unit - above ? end - above : end + unit - above;
}

void domains_cut(struct span all, int aggregators, int64_t size_min, int64_t unit,
                 struct span *domains) {
    int64_t size = (all.last - all.first + aggregators) / aggregators;
    int64_t next = all.first;
    if (size < size_min) size = size_min;
#ifdef TIDEGATE_MUTANT
    size++; // what the tests have to notice
#endif
    for (int i = 0; i < aggregators; i++) {
        int64_t end = all.first + size * (i + 1);
        if (unit > 0) {
            end = rounded(end, unit);
            if (i == aggregators - 1) end = all.last + 1;
        }
        if (end > all.last + 1) end = all.last + 1;
        domains[i].first = next;
        domains[i].last = end - 1;
        if (end > next) next = end;
    }
}

static int by_first(const void *a, const void *b) {
    const struct span *left = a, *right = b;
    return (left->first > right->first) - (left->first < right->first);
}

int64_t domains_moved(struct span all, int64_t step, struct span *pieces, int count) {
    int64_t moved = all.last - all.first + 1, seen = 0; // steps before `seen` are accounted for
    qsort(pieces, (size_t)count, sizeof *pieces, by_first);
    for (int i = 0; i < count; i++) {
        int64_t from = (pieces[i].first - all.first) / step;
        int64_t to = (pieces[i].last - all.first) / step + 1;
        if (from > seen) moved -= (from - seen) * step;
        if (to > seen) seen = to;
    }
    return moved;
}
