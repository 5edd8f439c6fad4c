/* What a request costs through the interface of AGIOS: nanoseconds of processor time, of all threads, for
 * adding it, choosing it, the callback and its release, with QUEUED requests waiting at the start. Eight
 * files, 4 KiB reads, a quarter of them sequential.
 *
 * agios_cost ALGORITHM QUEUED [REQUESTS]
 *
 * It uses nothing but AGIOS's own interface, so the same source measures any library that has it.
 * A round: a first request stays in its callback, so that nothing is scheduled, until QUEUED others
 * were added; then they all pass. Rounds go on until REQUESTS have passed; the first does not count.
 */
#include <agios.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 8, BYTES = 4096, PLUG = -1 };

/* Blocks of a file where random requests go. */
static const uint64_t BLOCKS = 1u << 24;

static char names[FILES][32], plug_name[] = "plug";
/* The requests of a round, by identifier. */
static struct request {
    int64_t offset;
    int file;
} *requests;
static int64_t queued, called;
static pthread_t adder;
static sem_t plugged, open_again, passed;

static uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
}

static uint64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void check(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "agios_cost: %s fails\n", what);
    _exit(1);
}

static void *run_one(int64_t id) {
    if (id == PLUG) {
        /* An algorithm that calls back from inside of agios_add_request cannot be held up. */
        if (!pthread_equal(pthread_self(), adder)) {
            sem_post(&plugged);
            while (sem_wait(&open_again) != 0) {}
        } else sem_post(&plugged);
        check(agios_release_request(plug_name, RT_READ, BYTES, 0), "agios_release_request");
        return NULL;
    }
    struct request *request = &requests[id];
    check(agios_release_request(names[request->file], RT_READ, BYTES, request->offset),
          "agios_release_request");
    if (++called == queued) sem_post(&passed);
    return NULL;
}

static void *run_many(int64_t *ids, int32_t count) {
    for (int32_t i = 0; i < count; i++) run_one(ids[i]);
    return NULL;
}

static void draw(struct request *request, uint64_t number) {
    /* Where the sequential stream of each file is. */
    static uint64_t at[FILES];
    uint64_t random = mix64(number + 1);
    request->file = (int)(random % FILES);
    if ((random >> 8) % 4 == 0) {
        /* Behind what random requests touch. */
        request->offset = (int64_t)((BLOCKS + at[request->file]++) * BYTES);
    } else {
        request->offset = (int64_t)((random >> 16) % BLOCKS * BYTES);
    }
}

/* Adds a round of requests, and waits until they have passed. */
static void round_of(uint64_t first) {
    called = 0;
    check(agios_add_request(plug_name, RT_READ, 0, BYTES, PLUG, 0), "agios_add_request");
    while (sem_wait(&plugged) != 0) {}
    for (int64_t id = 0; id < queued; id++) {
        struct request *request = &requests[id];
        draw(request, first + (uint64_t)id);
        check(agios_add_request(names[request->file], RT_READ, request->offset, BYTES, id,
                                request->file),
              "agios_add_request");
    }
    sem_post(&open_again);
    while (sem_wait(&passed) != 0) {}
}

/* Writes the configuration, and weights for WFQ; returns its path. */
static char *configuration(const char *algorithm) {
    static char path[] = "/tmp/agios_cost.XXXXXX";
    static char weights[sizeof path + 8];
    int fd = mkstemp(path);
    check(fd >= 0, "mkstemp");
    snprintf(weights, sizeof weights, "%s.wfq", path);
    FILE *file = fopen(weights, "w");
    check(file != NULL, "fopen");
    for (int i = 0; i < FILES; i++) fprintf(file, "65536\n");
    fclose(file);
    file = fdopen(fd, "w");
    check(file != NULL, "fdopen");
    fprintf(file,
            "library_options:\n{\ntrace = false ;\ntrace_file_prefix = \"/tmp/agios_cost\" ;\n"
            "trace_file_sufix = \"out\" ;\nmax_trace_buffer_size = 1024 ;\nwaiting_time = 900000 ;\n"
            "aioli_quantum = 65536 ;\nmlf_quantum = 8192 ;\nSW_window = 1000 ;\ntwins_window = 1000 ;\n"
            "performance_values = 5 ;\nselect_algorithm_period = -1 ;\n"
            "select_algorithm_min_reqnumber = 1 ;\nenable_SW = false ;\nstarting_algorithm = \"SJF\" ;\n"
            "default_algorithm = \"%s\" ;\nwfq_conf = \"%s\" ;\n};\n",
            algorithm, weights);
    fclose(file);
    return path;
}

static void remove_configuration(char *path) {
    char weights[64];
    snprintf(weights, sizeof weights, "%s.wfq", path);
    unlink(weights);
    unlink(path);
}

int main(int argc, char **argv) {
    queued = argc > 2 ? strtoll(argv[2], NULL, 10) : 0;
    int64_t wanted = argc > 3 ? strtoll(argv[3], NULL, 10) : 100000;
    if (queued < 1 || wanted < 1) {
        fprintf(stderr, "usage: agios_cost ALGORITHM QUEUED [REQUESTS]\n"
                        "  MLF aIOLi SJF TO TO-agg SW NOOP TWINS WFQ, as in AGIOS's configuration\n");
        return 2;
    }
    for (int i = 0; i < FILES; i++) snprintf(names[i], sizeof names[i], "/scratch/job/file.%d", i);
    requests = calloc((size_t)queued, sizeof *requests);
    check(requests != NULL, "calloc");
    adder = pthread_self();
    sem_init(&plugged, 0, 0);
    sem_init(&open_again, 0, 0);
    sem_init(&passed, 0, 0);
    char *path = configuration(argv[1]);
    check(agios_init(run_one, run_many, path, FILES), "agios_init");
    /* Some libraries read files, or are not ready for requests, until their thread has begun. */
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    remove_configuration(path);
    uint64_t number = 0;
    round_of(number);
    uint64_t from_ns = clock_ns();
    int64_t done = 0;
    for (; done < wanted; done += queued) round_of(number += (uint64_t)queued);
    double ns = (double)(clock_ns() - from_ns) / (double)done;
    printf("%-8s %8lld  %8.0f ns a request\n", argv[1], (long long)queued, ns);
    agios_exit();
    return 0;
}
