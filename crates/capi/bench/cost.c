/* What a request costs through the C ABI: submit, poll and complete at a steady queue, in
 * nanoseconds of processor time. The same load as crates/sched/examples/cost.rs: 8 files, 4 KiB, a
 * quarter of the requests follows its predecessor.
 *
 * cost POLICY QUEUED REQUESTS [single|shared] [writes]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tidegate_sched.h>

enum { FILES = 8, BYTES = 4096, BATCH = 256 };

static uint64_t random_state = 1;

/* A fixed sequence, so that every run does the same (splitmix64). */
static uint64_t random_next(void) {
    uint64_t x = random_state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void check(const tg_sched *handle, int code) {
    if (code < 0) {
        fprintf(stderr, "cost: %s\n", tg_sched_error(handle));
        exit(1);
    }
}

static uint64_t cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t ends[FILES];

static void draw(tg_sched_request *request, uint64_t number, int writes) {
    uint64_t drawn = random_next();
    uint64_t file = drawn % FILES;
    uint64_t offset = (drawn >> 8) % 4 == 0 ? ends[file] : (drawn >> 16) % (1u << 24) * BYTES;
    ends[file] = offset + BYTES;
    request->id = number;
    request->app = request->file = file;
    request->queue = (uint32_t)file;
    request->offset = offset;
    request->len = BYTES;
    request->direction = writes && (drawn >> 10) % 4 == 0;
    request->stamp_ns = number * 1000;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: cost POLICY QUEUED REQUESTS [single|shared] [writes]\n");
        return 2;
    }
    uint64_t queued = strtoull(argv[2], NULL, 10), requests = strtoull(argv[3], NULL, 10);
    int shared = argc > 4 && strcmp(argv[4], "shared") == 0;
    int writes = argc > 5 && strcmp(argv[5], "writes") == 0;
    tg_sched_options *options;
    tg_sched *handle;
    check(NULL, tg_sched_options_new(argv[1], &options));
    check(NULL, tg_sched_options_parse(options, "queued_max=67108864"));
    check(NULL, tg_sched_options_set(options, "single_thread", shared ? "false" : "true"));
    check(NULL, tg_sched_new(options, &handle));
    check(NULL, tg_sched_options_free(options));

    tg_sched_request request = TG_SCHED_REQUEST_INIT;
    tg_sched_entry entries[BATCH];
    uint64_t arrived = 0, finished = 0, now = 0, begin = 0;
    /* The first `queued` fill the queue, as many again warm it up, and then it is measured. */
    uint64_t first = 2 * queued, total = first + requests;
    uint64_t drawing = 0;
    while (finished < total) {
        if (begin == 0 && finished >= first) {
            first = finished;
            begin = cpu_ns();
        }
        now += 1000;
        while (arrived < finished + queued && arrived < total + queued) {
            draw(&request, arrived++, writes);
            check(handle, tg_sched_submit(handle, now, &request));
        }
        size_t count;
        uint64_t wake_ns;
        int answer = tg_sched_poll(handle, now, entries, BATCH, &count, &wake_ns);
        check(handle, answer);
        if (answer == TG_SCHED_WAIT) {
            now = wake_ns;
            continue;
        }
        for (size_t i = 0; i < count; i++)
            check(handle, tg_sched_complete(handle, now, entries[i].id));
        finished += count;
    }
    uint64_t spent = cpu_ns() - begin, measured = finished - first;
    begin = cpu_ns();
    for (uint64_t i = 0; i < measured; i++) {
        draw(&request, i, writes);
        drawing ^= request.offset;
    }
    uint64_t own = cpu_ns() - begin;
    double each = spent > own ? (double)(spent - own) / (double)measured : 0;
    printf("%s queued %llu: %.1f ns per request (%llu requests, load generator %.1f ns%s)\n", argv[1],
           (unsigned long long)queued, each, (unsigned long long)measured,
           (double)own / (double)measured, drawing == 1 ? " " : "");
    check(handle, tg_sched_free(handle));
    return 0;
}
