/* What a request costs through the C ABI: nanoseconds of processor time for submit, poll and complete
 * with a long queue. The same load as crates/sched/examples/cost.rs: 8 files, 4 KiB, a quarter sequential.
 *
 * cost POLICY QUEUED REQUESTS [reads|mixed] [OPTION=VALUE ...]
 *
 * Options are those of tg_sched_options_set; single_thread=true is the default here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tidegate_sched.h>

enum { FILES = 8, BYTES = 4096, BATCH = 256, RUNS = 5 };

/* Blocks of a file where random requests go. */
static const uint64_t BLOCKS = 1u << 24;

static uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
}

static void check(const tg_sched *handle, int code) {
    if (code < 0) {
        fprintf(stderr, "cost: %s\n", tg_sched_error(handle));
        exit(1);
    }
}

static uint64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Where the sequential stream of each file is. */
static uint64_t at[FILES];

static void draw(tg_sched_request *request, uint64_t number, uint64_t now, int writes) {
    uint64_t random = mix64(number + 1), file = random % FILES;
    if ((random >> 8) % 4 == 0) {
        at[file] += BYTES;
        /* Behind what random requests touch. */
        request->offset = BLOCKS * BYTES + at[file];
    } else {
        request->offset = (random >> 16) % BLOCKS * BYTES;
    }
    request->id = number;
    request->app = request->file = file;
    request->queue = (uint32_t)file;
    request->len = BYTES;
    request->direction = writes && (random >> 10) % 2 == 0;
    request->stamp_ns = now;
}

/* Nanoseconds of a request, and requests of a batch. */
static double measure(tg_sched *handle, uint64_t queued, uint64_t requests, int writes,
                      double *batch) {
    static tg_sched_entry entries[BATCH];
    tg_sched_request request = TG_SCHED_REQUEST_INIT;
    uint64_t arrived = 0, finished = 0, batches = 0, from = 0, from_ns = 0;
    /* The queue has passed through once before the clock runs. */
    uint64_t warm = queued + (queued < 10000 ? 10000 : queued);
    memset(at, 0, sizeof at);
    while (finished < warm + requests) {
        uint64_t now = arrived * 10000;
        if (arrived < finished + queued) {
            draw(&request, arrived++, now, writes);
            check(handle, tg_sched_submit(handle, now, &request));
            continue;
        }
        size_t count;
        int answer = tg_sched_poll(handle, now, entries, BATCH, &count, NULL);
        check(handle, answer);
        if (answer != TG_SCHED_DISPATCH) {
            fprintf(stderr, "cost: nothing to dispatch beside %llu requests\n",
                    (unsigned long long)queued);
            exit(1);
        }
        for (size_t i = 0; i < count; i++)
            check(handle, tg_sched_complete(handle, now, entries[i].id));
        finished += count;
        batches++;
        if (from == 0 && finished >= warm) {
            from = finished;
            from_ns = clock_ns();
            batches = 0;
        }
    }
    double counted = (double)(finished - from);
    *batch = counted / (double)batches;
    return (double)(clock_ns() - from_ns) / counted;
}

static int ascending(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: cost POLICY QUEUED REQUESTS [reads|mixed] [OPTION=VALUE ...]\n");
        return 2;
    }
    uint64_t queued = strtoull(argv[2], NULL, 10), requests = strtoull(argv[3], NULL, 10);
    int writes = 0;
    double runs[RUNS], batch = 0;
    tg_sched_options *options;
    check(NULL, tg_sched_options_new(argv[1], &options));
    check(NULL, tg_sched_options_parse(options, "queued_max=4194304 single_thread=true"));
    for (int i = 4; i < argc; i++) {
        if (strchr(argv[i], '=') != NULL) check(NULL, tg_sched_options_parse(options, argv[i]));
        else writes = strcmp(argv[i], "mixed") == 0;
    }
    for (int run = 0; run < RUNS; run++) {
        tg_sched *handle;
        check(NULL, tg_sched_new(options, &handle));
        runs[run] = measure(handle, queued, requests, writes, &batch);
        check(handle, tg_sched_free(handle));
    }
    check(NULL, tg_sched_options_free(options));
    qsort(runs, RUNS, sizeof *runs, ascending);
    printf("%-12s %10llu  %s  %8.0f ns a request  %.2f a batch\n", argv[1],
           (unsigned long long)queued, writes ? "mixed" : "reads", runs[RUNS / 2], batch);
    return 0;
}
