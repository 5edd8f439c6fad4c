// Joins view, hints and domains to the prediction of one collective call: the ranks exchange where
// their data begins and ends, and what an aggregator gets follows from that, from what is cached
// for calls of the same shape, or from one exchange more.
#include "predict.h"

#include <stdlib.h>
#include <string.h>

#include "cost.h"
#include "domains.h"
#include "real.h"
#include "tuning.h"
#include "view.h"

// Shapes of calls whose results are kept: loops over some variables find theirs again.
enum { SHAPES = 8 };
// Steps of all aggregators together, above which calls with large holes are not predicted.
enum { STEPS_MAX = 1 << 16 };

// What every rank tells in the exchange.
struct record {
    struct span span; // first, as domains_interleaved expects it
    int64_t key;      // the shape of its access
    int64_t flags, size, stamp_ns;
    int64_t shuffle_us; // of the call before this one
};
enum { RECORD_WORDS = sizeof(struct record) / sizeof(int64_t) };
enum { FLAG_UNUSABLE = 1, FLAG_SPREAD = 2, FLAG_SPARSE = 4 };

// One rank's data in one aggregator's domain.
struct piece {
    struct span span;
    int64_t bytes;
};

// What an aggregator gets; places are relative to the call's first byte.
struct result {
    uint64_t hash;
    int known, failed;
    struct span touched;
    int64_t moved;
    struct shuffle shuffle;
    uint32_t shuffle_us, shuffle_max_us;
    uint16_t shuffle_rank;
    int64_t *from; // bytes of each rank
};

struct predictor {
    MPI_File file;
    MPI_Comm comm;
    int rank, ranks;
    int aggregator; // index of this rank, -1: none
    int readable;   // the hints were read again without an error
    int paper_exact; // the shuffle by the equation as the paper has it
    struct tuning tuning;
    struct view view;
    struct bandwidths bandwidths;
    int64_t *node;
    struct record *records;
    struct span *domains, *spans;
    struct piece *sent, *received;
    unsigned char *touched, *touched_all; // a bit a step
    struct result shapes[SHAPES], dense, *last;
    struct result *unranked; // whose shuffle the others learn with the next call's record
    struct shuffle *shuffles;
    int next_shape;
    long hits, misses;
};

static int allocated(struct predictor *it) {
    size_t ranks = (size_t)it->ranks;
    int all;
    it->node = calloc(ranks, sizeof *it->node);
    it->records = calloc(ranks, sizeof *it->records);
    it->domains = calloc(ranks, sizeof *it->domains);
    it->spans = calloc(ranks, sizeof *it->spans);
    it->shuffles = calloc(ranks, sizeof *it->shuffles);
    it->sent = calloc(ranks, sizeof *it->sent);
    it->received = calloc(ranks, sizeof *it->received);
    it->touched = calloc(2, STEPS_MAX / 8);
    all = it->node && it->records && it->domains && it->spans && it->sent && it->received &&
          it->shuffles && it->touched;
    it->touched_all = it->touched ? it->touched + STEPS_MAX / 8 : NULL;
    for (int i = 0; i <= SHAPES && all; i++) {
        struct result *result = i < SHAPES ? &it->shapes[i] : &it->dense;
        result->from = calloc(ranks, sizeof *result->from);
        all = result->from != NULL;
    }
    return all;
}

struct predictor *predictor_open(MPI_File file, MPI_Comm comm) {
    struct predictor *it = calloc(1, sizeof *it);
    const char *shuffle = getenv("TIDEGATE_MPI_SHUFFLE");
    int rank, ranks, can = it != NULL, all_can = 0;
    if (real_MPI_Comm_rank(comm, &rank) != 0 || real_MPI_Comm_size(comm, &ranks) != 0) {
        free(it);
        return NULL;
    }
    if (it) {
        it->file = file, it->comm = comm, it->rank = rank, it->ranks = ranks;
        can = allocated(it);
    }
    // All ranks go on together, or none: later calls wait for each other.
    if (real_MPI_Allreduce(&can, &all_can, 1, MPI_INT, MPI_MIN, comm) == 0 && all_can) {
        can = tuning_open(&it->tuning, file, comm) == 0 && cost_places(comm, it->node) == 0;
        if (real_MPI_Allreduce(&can, &all_can, 1, MPI_INT, MPI_MIN, comm) != 0) all_can = 0;
    }
    if (!all_can) {
        predictor_close(it);
        return NULL;
    }
    cost_learn(&it->bandwidths, comm, it->node);
    it->paper_exact = shuffle && strcmp(shuffle, "paper_exact") == 0;
    it->readable = 1;
    it->aggregator = -1;
    for (int i = 0; i < it->tuning.aggregators; i++)
        if (it->tuning.ranks[i] == rank) it->aggregator = i;
    view_read(&it->view, file);
    return it;
}

void predictor_changed(struct predictor *it) {
    it->readable = tuning_refresh(&it->tuning, it->file) == 0;
    view_read(&it->view, it->file);
}

int predictor_empty(const struct predictor *it) {
    return it->view.empty || !it->view.usable;
}

void predictor_close(struct predictor *it) {
    if (!it) return;
    tuning_free(&it->tuning);
    view_free(&it->view);
    for (int i = 0; i < SHAPES; i++)
        free(it->shapes[i].from);
    free(it->dense.from);
    free(it->node);
    free(it->records);
    free(it->domains);
    free(it->spans);
    free(it->shuffles);
    free(it->sent);
    free(it->received);
    free(it->touched);
    free(it);
}

static void describe(const struct predictor *it, const struct access *access,
                     struct record *record) {
    record->span = (struct span){access->first, access->last};
    record->size = access->size;
    record->key = (int64_t)flatten_mixed(view_shape(&it->view, access), it->tuning.hash);
    if (access->size > 0 && access->last - access->first + 1 != access->size)
        record->flags |= FLAG_SPREAD;
    if (access->size > 0 && it->view.gap_max >= it->tuning.buffer_size &&
        (record->flags & FLAG_SPREAD))
        record->flags |= FLAG_SPARSE;
}

static void add(struct shuffle *shuffle, int near, int64_t bytes) {
    int64_t *sum = near ? &shuffle->intra : &shuffle->inter;
    int64_t *max = near ? &shuffle->intra_max : &shuffle->inter_max;
    *sum += bytes;
    if (bytes > *max) *max = bytes;
}

// The bytes from the ranks in `received`, summed up; `base` is the call's first byte.
static void sum_up(struct predictor *it, struct result *result, int64_t base) {
    int pieces = 0;
    memset(&result->shuffle, 0, sizeof result->shuffle);
    result->touched = (struct span){0, -1};
    result->moved = 0;
    result->shuffle_us = result->shuffle_max_us = 0;
    result->shuffle_rank = 0;
    for (int i = 0; i < it->ranks; i++) {
        const struct piece *piece = &it->received[i];
        result->from[i] = piece->bytes;
        if (piece->bytes == 0) continue;
        add(&result->shuffle, it->node[i] == it->node[it->rank], piece->bytes);
        if (pieces == 0 || piece->span.first < result->touched.first)
            result->touched.first = piece->span.first;
        if (pieces == 0 || piece->span.last > result->touched.last)
            result->touched.last = piece->span.last;
        it->spans[pieces++] = piece->span;
    }
    if (pieces == 0) return;
    result->moved = domains_moved(result->touched, it->tuning.buffer_size, it->spans, pieces);
    result->touched.first -= base;
    result->touched.last -= base;
    result->shuffle_us = cost_shuffle_us(&it->bandwidths, &result->shuffle, it->paper_exact);
    result->shuffle_max_us = result->shuffle_us;
}

static void rank_shuffle(struct result *result, int64_t other_us) {
    if (other_us > result->shuffle_max_us) result->shuffle_max_us = (uint32_t)other_us;
    if (other_us > result->shuffle_us && result->shuffle_rank < UINT16_MAX) result->shuffle_rank++;
}

// Every rank can say what all aggregators get where the records tell everything.
static void rank_from_records(struct predictor *it, struct result *result) {
    int aggregators = it->tuning.aggregators;
    memset(it->shuffles, 0, (size_t)aggregators * sizeof *it->shuffles);
    for (int i = 0; i < it->ranks; i++) {
        struct span span = it->records[i].span;
        int low = 0, high = aggregators;
        if (it->records[i].size == 0) continue;
        // The first domain that ends behind the first byte.
        while (low < high) {
            int middle = low + (high - low) / 2;
            if (it->domains[middle].last < span.first)
                low = middle + 1;
            else
                high = middle;
        }
        for (; low < aggregators && it->domains[low].first <= span.last; low++) {
            struct span domain = it->domains[low];
            int64_t first = span.first > domain.first ? span.first : domain.first;
            int64_t last = span.last < domain.last ? span.last : domain.last;
            if (last >= first)
                add(&it->shuffles[low], it->node[i] == it->node[it->tuning.ranks[low]],
                    last - first + 1);
        }
    }
    for (int i = 0; i < aggregators; i++)
        rank_shuffle(result, cost_shuffle_us(&it->bandwidths, &it->shuffles[i], it->paper_exact));
}

// Elsewhere an aggregator's shuffle comes with its next record.
static void rank_from_shuffles(struct predictor *it) {
    struct result *result = it->unranked;
    if (!result) return;
    it->unranked = NULL;
    for (int i = 0; i < it->tuning.aggregators; i++)
        rank_shuffle(result, it->records[it->tuning.ranks[i]].shuffle_us);
}

// Where every rank's data is one block, the records tell all that there is to know.
static void from_records(struct predictor *it, struct result *result, int64_t base) {
    struct span domain = it->domains[it->aggregator];
    for (int i = 0; i < it->ranks; i++) {
        struct piece *piece = &it->received[i];
        struct span span = it->records[i].span;
        if (span.first < domain.first) span.first = domain.first;
        if (span.last > domain.last) span.last = domain.last;
        piece->span = span;
        piece->bytes =
            it->records[i].size > 0 && span.last >= span.first ? span.last - span.first + 1 : 0;
    }
    sum_up(it, result, base);
    rank_from_records(it, result);
}

// Steps of the aggregators that this rank has data in, marked from one byte of data to the next.
static int64_t mark_steps(struct predictor *it, const struct access *access, struct span touched,
                          struct span mine, int64_t bit) {
    int64_t step = it->tuning.buffer_size;
    int64_t at = mine.first;
    while (mine.last >= mine.first && at <= mine.last) {
        int64_t index = (at - touched.first) / step, below;
        it->touched[(bit + index) / 8] |= (unsigned char)(1 << ((bit + index) % 8));
        at = touched.first + (index + 1) * step;
        if (at > mine.last) break;
        below = view_below(&it->view, access, at);
        at = view_at(&it->view, access->position + below);
    }
    return (touched.last - touched.first) / step + 1;
}

// With holes that can hold a whole step, the aggregators tell where their steps begin, and all
// ranks mark those that they have data in. -1: too many steps.
static int mark_holes(struct predictor *it, const struct access *access, struct result *result,
                      int64_t base) {
    struct span mine = {result->touched.first + base, result->touched.last + base},
                *all = it->spans;
    int64_t step = it->tuning.buffer_size, steps = 0, own = -1, own_steps = 0;
    if (real_MPI_Allgather(&mine, 2, MPI_INT64_T, all, 2, MPI_INT64_T, it->comm) != 0) return -1;
    for (int i = 0; i < it->tuning.aggregators; i++) {
        struct span touched = all[it->tuning.ranks[i]];
        if (touched.last >= touched.first) steps += (touched.last - touched.first) / step + 1;
        if (steps > STEPS_MAX) return -1;
    }
    memset(it->touched, 0, STEPS_MAX / 8);
    steps = 0;
    for (int i = 0; i < it->tuning.aggregators; i++) {
        int rank = it->tuning.ranks[i];
        struct span touched = all[rank];
        struct piece *piece = &it->sent[rank];
        struct span span = piece->bytes > 0 ? piece->span : (struct span){0, -1};
        if (touched.last < touched.first) continue;
        if (i == it->aggregator) own = steps;
        steps += mark_steps(it, access, touched, span, steps);
        if (i == it->aggregator) own_steps = steps - own;
    }
    if (real_MPI_Allreduce(it->touched, it->touched_all, (int)((steps + 7) / 8), MPI_BYTE, MPI_BOR,
                           it->comm) != 0)
        return -1;
    if (own < 0) return 0;
    result->moved = result->touched.last - result->touched.first + 1;
    for (int64_t i = own; i < own + own_steps; i++)
        if (!(it->touched_all[i / 8] & (1 << (i % 8)))) result->moved -= step;
    return 0;
}

// Tells each aggregator what this rank has in its domain.
static int from_ranks(struct predictor *it, const struct access *access, struct result *result,
                      int64_t base, int sparse) {
    int64_t below = 0;
    memset(it->sent, 0, (size_t)it->ranks * sizeof *it->sent);
    for (int i = 0; i < it->tuning.aggregators; i++) {
        struct piece *piece = &it->sent[it->tuning.ranks[i]];
        struct span domain = it->domains[i];
        int64_t until = below;
        if (domain.last >= domain.first) until = view_below(&it->view, access, domain.last + 1);
        piece->bytes = until - below;
        if (piece->bytes > 0) {
            piece->span.first = view_at(&it->view, access->position + below);
            piece->span.last = view_at(&it->view, access->position + until - 1);
        }
        below = until;
    }
    if (real_MPI_Alltoall(it->sent, 3, MPI_INT64_T, it->received, 3, MPI_INT64_T, it->comm) != 0)
        return -1;
    sum_up(it, result, base);
    return sparse ? mark_holes(it, access, result, base) : 0;
}

// All ranks compute the same number from the same records, so they agree whether it is known.
static uint64_t shape_of(const struct predictor *it, int64_t base) {
    uint64_t hash = 0;
    if (it->tuning.stripe > 0) hash = (uint64_t)(base % it->tuning.stripe) + 1;
    for (int i = 0; i < it->ranks; i++) {
        const struct record *record = &it->records[i];
        hash = flatten_mixed(hash, (uint64_t)record->key);
        hash = flatten_mixed(hash, (uint64_t)(record->span.first - base));
        if (record->size > 0) hash = flatten_mixed(hash, (uint64_t)(record->span.last - base));
    }
    return hash;
}

static struct result *known_shape(struct predictor *it, uint64_t hash, int *known) {
    struct result *result;
    *known = 1;
    for (int i = 0; i < SHAPES; i++)
        if (it->shapes[i].known && it->shapes[i].hash == hash) return &it->shapes[i];
    *known = 0;
    result = &it->shapes[it->next_shape];
    it->next_shape = (it->next_shape + 1) % SHAPES;
    result->hash = hash;
    result->known = 1;
    return result;
}

static int two_phase(struct predictor *it, const struct access *access, struct span all,
                     int64_t flags, struct predicted *out) {
    struct result *result = &it->dense;
    domains_cut(all, it->tuning.aggregators, it->tuning.domain_min, it->tuning.stripe, it->domains);
    if (!(flags & FLAG_SPREAD)) {
        if (it->aggregator >= 0) from_records(it, result, all.first);
    } else {
        int known;
        result = known_shape(it, shape_of(it, all.first), &known);
        if (known)
            it->hits++;
        else {
            it->misses++;
            result->failed = from_ranks(it, access, result, all.first, flags & FLAG_SPARSE) != 0;
            it->unranked = result;
        }
        if (result->failed) return -1;
    }
    it->last = result;
    out->two_phase = 1;
    if (it->aggregator < 0) return 0;
    out->aggregator = it->aggregator;
    out->step = it->tuning.buffer_size;
    if (result->touched.last < result->touched.first) return 0;
    out->first = all.first + result->touched.first;
    out->last = all.first + result->touched.last;
    out->bytes = result->moved;
    out->intra = result->shuffle.intra;
    out->inter = result->shuffle.inter;
    out->shuffle_us = result->shuffle_us;
    out->shuffle_max_us = result->shuffle_max_us;
    out->shuffle_rank = result->shuffle_rank;
    return 0;
}

int predictor_collective(struct predictor *it, MPI_Offset offset, MPI_Count count,
                         MPI_Datatype datatype, int is_write, uint64_t *stamp_ns,
                         struct predicted *out) {
    enum collective_buffering buffering = is_write ? it->tuning.write : it->tuning.read;
    struct record mine = {.stamp_ns = (int64_t)*stamp_ns};
    struct access access = {0, 0, 0, -1};
    struct span all;
    MPI_Count size = 0;
    int64_t flags = 0;

    memset(out, 0, sizeof *out);
    out->aggregator = -1, out->last = -1;
    it->last = NULL;
    if (it->unranked) mine.shuffle_us = it->unranked->shuffle_us;
    if (!it->readable || it->tuning.persistent_realms || count < 0 ||
        real_MPI_Type_size_x(datatype, &size) != 0 || size < 0 ||
        (size > 0 && count > INT64_MAX / 4 / size) ||
        view_access(&it->view, offset, size * count, &access) != 0)
        mine.flags = FLAG_UNUSABLE;
    else
        describe(it, &access, &mine);
    if (real_MPI_Allgather(&mine, RECORD_WORDS, MPI_INT64_T, it->records, RECORD_WORDS, MPI_INT64_T,
                           it->comm) != 0)
        return -1;
    *stamp_ns = (uint64_t)it->records[0].stamp_ns;
    rank_from_shuffles(it);
    all = it->records[0].span;
    for (int i = 0; i < it->ranks; i++) {
        struct span span = it->records[i].span;
        flags |= it->records[i].flags;
        out->operation_bytes += it->records[i].size;
        if (span.first < all.first) all.first = span.first;
        if (span.last > all.last) all.last = span.last;
    }
    if (flags & FLAG_UNUSABLE) return -1;
    if (buffering == CB_DISABLE) return 0;
    if (buffering == CB_AUTOMATIC &&
        !domains_interleaved(it->records, sizeof *it->records, it->ranks))
        return 0;
    if (all.last < all.first || out->operation_bytes == 0) {
        out->two_phase = 1;
        return 0;
    }
    return two_phase(it, &access, all, flags, out);
}

int64_t predictor_bytes_from(const struct predictor *it, int rank) {
    return it->last && it->aggregator >= 0 ? it->last->from[rank] : 0;
}

void predictor_shapes(const struct predictor *it, long *hits, long *misses) {
    *hits = it->hits;
    *misses = it->misses;
}
