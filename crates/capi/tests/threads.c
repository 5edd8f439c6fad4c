/* tidegate_sched.h with a thread of the library's own, and many of the host's. An argument is the
 * number of requests of the largest test. */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <tidegate_sched.h>

enum { SUBMITTERS = 4, WORKERS = 3 };
static const uint64_t LONG_NS = 60000000000u;

/* A host: a queue between the callbacks and a pool of threads that completes. */
struct host {
    tg_sched *handle;
    uint64_t requests;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t *todo;
    uint64_t put, taken;
    int ends;
    atomic_uchar *seen;
    atomic_ullong lists, cancelled, completed, refused;
};

static void put(struct host *host, const tg_sched_entry *entries, size_t count) {
    pthread_mutex_lock(&host->lock);
    for (size_t i = 0; i < count; i++) {
        CHECK(atomic_fetch_add(&host->seen[entries[i].id], 1) == 0);
        host->todo[host->put++] = entries[i].id;
    }
    pthread_cond_broadcast(&host->changed);
    pthread_mutex_unlock(&host->lock);
}

static void run(void *context, const tg_sched_entry *entry) { put(context, entry, 1); }

static void run_list(void *context, const tg_sched_entry *entries, size_t count) {
    struct host *host = context;
    CHECK(count > 1);
    for (size_t i = 1; i < count; i++)
        CHECK(entries[i].file == entries[0].file && entries[i].direction == entries[0].direction);
    atomic_fetch_add(&host->lists, 1);
    put(host, entries, count);
}

static void cancelled(void *context, const tg_sched_entry *entry) {
    struct host *host = context;
    CHECK(atomic_fetch_add(&host->seen[entry->id], 1) == 0);
    atomic_fetch_add(&host->cancelled, 1);
}

static void *work(void *context) {
    struct host *host = context;
    pthread_mutex_lock(&host->lock);
    for (;;) {
        while (host->taken == host->put && !host->ends)
            pthread_cond_wait(&host->changed, &host->lock);
        if (host->taken == host->put) break;
        uint64_t id = host->todo[host->taken++];
        pthread_mutex_unlock(&host->lock);
        CHECK(tg_sched_complete(host->handle, 0, id) == 0);
        atomic_fetch_add(&host->completed, 1);
        pthread_mutex_lock(&host->lock);
    }
    pthread_mutex_unlock(&host->lock);
    return NULL;
}

struct submitter {
    struct host *host;
    uint64_t first;
};

static void *submit(void *context) {
    struct submitter *submitter = context;
    struct host *host = submitter->host;
    uint64_t random = submitter->first;
    for (uint64_t id = submitter->first; id < host->requests; id += SUBMITTERS) {
        tg_sched_request request = TG_SCHED_REQUEST_INIT;
        request.id = id;
        request.app = submitter->first;
        request.file = random_of(&random) % 4;
        request.offset = random_of(&random) % 4 ? id * 4096 : random % 64 * 1024;
        request.len = 4096;
        request.direction = random_of(&random) % 8 == 0;
        int code;
        while ((code = tg_sched_submit(host->handle, 0, &request)) == TG_SCHED_E_FULL) {
            atomic_fetch_add(&host->refused, 1);
            sleep_ms(1);
        }
        CHECK(code == 0);
    }
    return NULL;
}

static tg_sched *make(const char *policy, const char *line) {
    tg_sched_options *options;
    tg_sched *handle;
    CHECK(tg_sched_options_new(policy, &options) == 0);
    CHECK(tg_sched_options_parse(options, line) == 0);
    CHECK(tg_sched_new(options, &handle) == 0);
    CHECK(tg_sched_options_free(options) == 0);
    return handle;
}

static void host_of(struct host *host, tg_sched *handle, uint64_t requests) {
    memset(host, 0, sizeof *host);
    host->handle = handle;
    host->requests = requests;
    CHECK(pthread_mutex_init(&host->lock, NULL) == 0);
    CHECK(pthread_cond_init(&host->changed, NULL) == 0);
    host->todo = calloc(requests, sizeof *host->todo);
    host->seen = calloc(requests, sizeof *host->seen);
    CHECK(host->todo != NULL && host->seen != NULL);
}

static void start(struct host *host) {
    tg_sched_callbacks callbacks = TG_SCHED_CALLBACKS_INIT;
    callbacks.context = host;
    callbacks.run = run;
    callbacks.run_list = run_list;
    callbacks.cancelled = cancelled;
    CHECK(tg_sched_start(host->handle, &callbacks) == 0);
}

static void end(struct host *host) {
    pthread_mutex_destroy(&host->lock);
    pthread_cond_destroy(&host->changed);
    free(host->todo);
    free(host->seen);
}

/* Many threads submit, others complete, the policy changes all the time, and each request is called
 * back once. */
static void each_request_is_called_back_once(uint64_t requests) {
    struct host host;
    pthread_t workers[WORKERS], submitters[SUBMITTERS];
    struct submitter own[SUBMITTERS];
    host_of(&host, make("fifo", "depth=16 queued_max=512 merge=true"), requests);
    start(&host);
    for (int i = 0; i < WORKERS; i++)
        CHECK(pthread_create(&workers[i], NULL, work, &host) == 0);
    for (int i = 0; i < SUBMITTERS; i++) {
        own[i] = (struct submitter){&host, (uint64_t)i};
        CHECK(pthread_create(&submitters[i], NULL, submit, &own[i]) == 0);
    }
    tg_sched_statistics statistics = TG_SCHED_STATISTICS_INIT;
    size_t policy = 0;
    do {
        tg_sched_options *options;
        const char *name = tg_sched_policy_name(policy++);
        if (name == NULL) name = tg_sched_policy_name(policy = 0);
        CHECK(tg_sched_options_new(name, &options) == 0);
        CHECK(tg_sched_options_parse(options, "depth=16 queued_max=512 merge=true") == 0);
        CHECK(tg_sched_set_policy(host.handle, 0, options) == 0);
        CHECK(tg_sched_options_free(options) == 0);
        sleep_ms(2);
        CHECK(tg_sched_stats(host.handle, &statistics) == 0);
    } while (statistics.arrived < requests);
    for (int i = 0; i < SUBMITTERS; i++) CHECK(pthread_join(submitters[i], NULL) == 0);
    CHECK(tg_sched_stop(host.handle, TG_SCHED_DRAIN, LONG_NS) == 0);
    pthread_mutex_lock(&host.lock);
    host.ends = 1;
    pthread_cond_broadcast(&host.changed);
    pthread_mutex_unlock(&host.lock);
    for (int i = 0; i < WORKERS; i++) CHECK(pthread_join(workers[i], NULL) == 0);
    CHECK(host.completed == requests && host.cancelled == 0);
    CHECK(tg_sched_stats(host.handle, &statistics) == 0);
    CHECK(statistics.completed == requests && statistics.running == 0 && statistics.queued == 0);
    printf("%llu requests in %llu batches, %llu lists, %llu times full\n",
           (unsigned long long)requests, (unsigned long long)statistics.batches,
           (unsigned long long)host.lists, (unsigned long long)host.refused);
    CHECK(tg_sched_free(host.handle) == 0);
    end(&host);
}

/* Stop in the middle: what was submitted is called back or cancelled, never both, never neither. */
static void stop_cancels_what_waits(void) {
    enum { REQUESTS = 1000 };
    struct host host;
    host_of(&host, make("fifo", "depth=4"), REQUESTS);
    start(&host);
    for (uint64_t id = 0; id < REQUESTS; id++) {
        tg_sched_request request = TG_SCHED_REQUEST_INIT;
        request.id = id;
        request.offset = id * 8192;
        request.len = 4096;
        CHECK(tg_sched_submit(host.handle, 0, &request) == 0);
    }
    /* Nobody completes, so draining cannot end. */
    CHECK(tg_sched_stop(host.handle, TG_SCHED_DRAIN, 20000000) == TG_SCHED_E_TIMEOUT);
    CHECK(strstr(tg_sched_error(host.handle), "996 requests wait, 4 run") != NULL);
    tg_sched_request late = TG_SCHED_REQUEST_INIT;
    late.id = REQUESTS;
    CHECK(tg_sched_submit(host.handle, 0, &late) == TG_SCHED_E_STATE);
    CHECK(tg_sched_stop(host.handle, TG_SCHED_CANCEL, LONG_NS) == 0);
    CHECK(host.put == 4 && host.cancelled == REQUESTS - 4);
    CHECK(tg_sched_stop(host.handle, TG_SCHED_CANCEL, LONG_NS) == TG_SCHED_E_STATE);
    for (uint64_t i = 0; i < host.put; i++)
        CHECK(tg_sched_complete(host.handle, 0, host.todo[i]) == 0);

    /* It can be polled, and started again. */
    tg_sched_entry entry;
    size_t count;
    CHECK(tg_sched_submit(host.handle, 0, &late) == 0);
    CHECK(tg_sched_poll(host.handle, 0, &entry, 1, &count, NULL) == TG_SCHED_DISPATCH);
    CHECK(tg_sched_complete(host.handle, 0, REQUESTS) == 0);
    start(&host);
    CHECK(tg_sched_stop(host.handle, TG_SCHED_DRAIN, LONG_NS) == 0);
    CHECK(tg_sched_free(host.handle) == 0);
    end(&host);
}

/* A host that does everything inside of the callback. */
struct inside {
    tg_sched *handle;
    atomic_int left;
    int stop_code, free_code, poll_code, start_code;
};

static void run_inside(void *context, const tg_sched_entry *entry) {
    struct inside *inside = context;
    tg_sched_statistics statistics = TG_SCHED_STATISTICS_INIT;
    tg_sched_callbacks callbacks = TG_SCHED_CALLBACKS_INIT;
    tg_sched_entry entries[1];
    size_t count;
    CHECK(tg_sched_stats(inside->handle, &statistics) == 0 && statistics.running == 1);
    inside->stop_code = tg_sched_stop(inside->handle, TG_SCHED_DRAIN, LONG_NS);
    inside->free_code = tg_sched_free(inside->handle);
    inside->poll_code = tg_sched_poll(inside->handle, 0, entries, 1, &count, NULL);
    callbacks.run = run_inside;
    inside->start_code = tg_sched_start(inside->handle, &callbacks);
    CHECK(tg_sched_complete(inside->handle, 0, entry->id) == 0);
    if (entry->id < 50) {
        tg_sched_request next = TG_SCHED_REQUEST_INIT;
        next.id = entry->id + 1;
        CHECK(tg_sched_submit(inside->handle, 0, &next) == 0);
    }
    atomic_fetch_sub(&inside->left, 1);
}

static void a_callback_may_call_everything(void) {
    struct inside inside = {make("fifo", ""), 50, 0, 0, 0, 0};
    tg_sched_callbacks callbacks = TG_SCHED_CALLBACKS_INIT;
    tg_sched_request request = TG_SCHED_REQUEST_INIT;
    callbacks.context = &inside;
    callbacks.run = run_inside;
    CHECK(tg_sched_start(inside.handle, &callbacks) == 0);
    request.id = 1;
    CHECK(tg_sched_submit(inside.handle, 0, &request) == 0);
    while (inside.left > 0) sleep_ms(1);
    CHECK(tg_sched_stop(inside.handle, TG_SCHED_DRAIN, LONG_NS) == 0);
    CHECK(inside.stop_code == TG_SCHED_E_STATE && inside.free_code == TG_SCHED_E_STATE);
    CHECK(inside.poll_code == TG_SCHED_E_STATE && inside.start_code == TG_SCHED_E_STATE);
    CHECK(tg_sched_free(inside.handle) == 0);
}

static void run_slowly(void *context, const tg_sched_entry *entry) {
    (void)entry;
    while (atomic_load((atomic_int *)context) == 0) sleep_ms(1);
}

static void a_stop_does_not_wait_for_ever(void) {
    atomic_int go = 0;
    tg_sched *handle = make("fifo", "");
    tg_sched_callbacks callbacks = TG_SCHED_CALLBACKS_INIT;
    tg_sched_request request = TG_SCHED_REQUEST_INIT;
    callbacks.context = &go;
    callbacks.run = run_slowly;
    CHECK(tg_sched_start(handle, &callbacks) == 0);
    CHECK(tg_sched_submit(handle, 0, &request) == 0);
    sleep_ms(20);
    CHECK(tg_sched_stop(handle, TG_SCHED_CANCEL, 20000000) == TG_SCHED_E_TIMEOUT);
    CHECK(tg_sched_free(handle) == TG_SCHED_E_STATE);
    atomic_store(&go, 1);
    CHECK(tg_sched_stop(handle, TG_SCHED_CANCEL, LONG_NS) == 0);
    CHECK(tg_sched_free(handle) == 0);
}

static void idleness_costs_nothing(void) {
    struct host host;
    host_of(&host, make("fifo", ""), 1);
    start(&host);
    tg_sched_request request = TG_SCHED_REQUEST_INIT;
    CHECK(tg_sched_submit(host.handle, 0, &request) == 0);
    sleep_ms(50);
    /* One request runs, so the depth is used up: as idle as with an empty queue. */
    uint64_t before = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    sleep_ms(1000);
    uint64_t spent = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - before;
    printf("idle for 1 s: %llu us of processor time\n", (unsigned long long)spent / 1000);
    CHECK(spent < 5000000);
    CHECK(tg_sched_complete(host.handle, 0, 0) == 0);
    CHECK(tg_sched_stop(host.handle, TG_SCHED_DRAIN, LONG_NS) == 0);
    CHECK(tg_sched_free(host.handle) == 0);
    end(&host);
}

static _Atomic(tg_sched *) raced;
static atomic_int race_ends;

static void *use_while_it_is_freed(void *context) {
    uint64_t random = (uintptr_t)context, id = 0;
    while (!race_ends) {
        tg_sched *handle = raced;
        tg_sched_request request = TG_SCHED_REQUEST_INIT;
        tg_sched_entry entries[8];
        size_t count;
        request.id = (uintptr_t)context << 32 | id++;
        int code = tg_sched_submit(handle, id, &request);
        CHECK(code == 0 || code == TG_SCHED_E_HANDLE || code == TG_SCHED_E_FULL);
        code = tg_sched_poll(handle, id, entries, 8, &count, NULL);
        CHECK(code > 0 || code == TG_SCHED_E_HANDLE);
        if (code == TG_SCHED_DISPATCH && random_of(&random) % 2) {
            code = tg_sched_complete(handle, id, entries[0].id);
            CHECK(code == 0 || code == TG_SCHED_E_HANDLE);
        }
    }
    return NULL;
}

static void a_handle_may_be_freed_under_its_users(int times) {
    pthread_t users[2];
    raced = make("fifo", "queued_max=100 depth=16");
    for (uintptr_t i = 0; i < 2; i++)
        CHECK(pthread_create(&users[i], NULL, use_while_it_is_freed, (void *)(i + 1)) == 0);
    for (int i = 0; i < times; i++) {
        tg_sched *old = raced;
        if (i % 16 == 0) sleep_ms(1);
        CHECK(tg_sched_free(old) == 0);
        CHECK(tg_sched_free(old) == TG_SCHED_E_HANDLE);
        raced = make("fifo", "queued_max=100 depth=16");
    }
    race_ends = 1;
    for (int i = 0; i < 2; i++) CHECK(pthread_join(users[i], NULL) == 0);
    CHECK(tg_sched_free(raced) == 0);
}

static void a_single_thread_handle_has_no_thread(void) {
    tg_sched *handle = make("fifo", "single_thread=true");
    tg_sched_callbacks callbacks = TG_SCHED_CALLBACKS_INIT;
    callbacks.run = run;
    CHECK(tg_sched_start(handle, &callbacks) == TG_SCHED_E_STATE);
    CHECK(tg_sched_stop(handle, TG_SCHED_DRAIN, 0) == TG_SCHED_E_STATE);
    CHECK(tg_sched_free(handle) == 0);
}

int main(int argc, char **argv) {
    uint64_t requests = argc > 1 ? strtoull(argv[1], NULL, 10) : 100000;
    each_request_is_called_back_once(requests);
    stop_cancels_what_waits();
    a_callback_may_call_everything();
    a_stop_does_not_wait_for_ever();
    idleness_costs_nothing();
    a_handle_may_be_freed_under_its_users(requests < 10000 ? 100 : 5000);
    a_single_thread_handle_has_no_thread();
    puts("threads: ok");
    return 0;
}
