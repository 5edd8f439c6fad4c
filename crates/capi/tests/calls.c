/* Every function of tidegate_sched.h without a thread: what it does, and what it refuses. */
#include "check.h"
#include <pthread.h>
#include <stddef.h>
#include <tidegate_sched.h>

enum { ROOM = 256 };

static int said(const tg_sched *handle, const char *words) {
    if (strstr(tg_sched_error(handle), words) != NULL) return 1;
    fprintf(stderr, "\"%s\" is not in \"%s\"\n", words, tg_sched_error(handle));
    return 0;
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

static tg_sched_request request_of(uint64_t id, uint64_t offset, uint32_t direction) {
    tg_sched_request request = TG_SCHED_REQUEST_INIT;
    request.id = id;
    request.app = 1;
    request.file = 7;
    request.offset = offset;
    request.len = 4096;
    request.direction = direction;
    return request;
}

static void a_request_comes_and_goes(const char *line) {
    tg_sched *handle = make("fifo", line);
    tg_sched_entry entries[ROOM];
    size_t count = 77;
    uint64_t wake_ns = 0;
    CHECK(tg_sched_poll(handle, 5, entries, ROOM, &count, &wake_ns) == TG_SCHED_IDLE);
    CHECK(count == 0 && wake_ns == UINT64_MAX);
    tg_sched_request request = request_of(41, 8192, TG_SCHED_WRITE);
    CHECK(tg_sched_submit(handle, 10, &request) == 0);
    CHECK(tg_sched_submit(handle, 10, &request) == TG_SCHED_E_ID_IN_USE);
    CHECK(said(handle, "request id 41 is already in use"));
    CHECK(tg_sched_complete(handle, 11, 41) == TG_SCHED_E_NOT_RUNNING);
    CHECK(said(handle, "request 41 finished but never ran"));
    CHECK(tg_sched_poll(handle, 12, entries, ROOM, &count, NULL) == TG_SCHED_DISPATCH);
    CHECK(count == 1 && entries[0].id == 41 && entries[0].offset == 8192);
    CHECK(entries[0].len == 4096 && entries[0].file == 7 && entries[0].app == 1);
    CHECK(entries[0].direction == TG_SCHED_WRITE);
    CHECK(tg_sched_cancel(handle, 12, 41) == 0);
    CHECK(tg_sched_complete(handle, 13, 41) == 0);
    CHECK(tg_sched_complete(handle, 13, 41) == TG_SCHED_E_UNKNOWN_ID);
    CHECK(said(handle, "complete: there is no request with id 41"));
    CHECK(tg_sched_cancel(handle, 14, 41) == TG_SCHED_E_UNKNOWN_ID);
    /* The clock goes back, and the id is free again. */
    CHECK(tg_sched_submit(handle, 2, &request) == 0);
    CHECK(tg_sched_cancel(handle, 1, 41) == 1);
    CHECK(tg_sched_poll(handle, 0, entries, ROOM, &count, &wake_ns) == TG_SCHED_IDLE);

    tg_sched_statistics statistics = TG_SCHED_STATISTICS_INIT;
    CHECK(tg_sched_stats(handle, &statistics) == 0);
    CHECK(statistics.size == sizeof statistics);
    CHECK(statistics.arrived == 2 && statistics.dispatched == 1 && statistics.completed == 1);
    CHECK(statistics.cancelled == 1 && statistics.rejected == 4 && statistics.batches == 1);
    CHECK(statistics.queued == 0 && statistics.queued_peak == 1 && statistics.running == 0);
    CHECK(tg_sched_free(handle) == 0);
}

static void a_full_queue_pushes_back(void) {
    tg_sched *handle = make("fifo", "queued_max=2");
    tg_sched_request request = request_of(1, 0, TG_SCHED_READ);
    CHECK(tg_sched_submit(handle, 0, &request) == 0);
    request.id = 2;
    CHECK(tg_sched_submit(handle, 0, &request) == 0);
    request.id = 3;
    CHECK(tg_sched_submit(handle, 0, &request) == TG_SCHED_E_FULL);
    CHECK(said(handle, "submit: the queue is full"));
    CHECK(tg_sched_cancel(handle, 0, 1) == 1);
    CHECK(tg_sched_submit(handle, 0, &request) == 0);
    CHECK(tg_sched_free(handle) == 0);
}

static void a_batch_that_does_not_fit_is_kept(void) {
    tg_sched *handle = make("fifo", "merge=true depth=4");
    tg_sched_entry entries[ROOM];
    size_t count;
    for (uint64_t id = 0; id < 5; id++) {
        tg_sched_request request = request_of(id, id * 4096, TG_SCHED_READ);
        CHECK(tg_sched_submit(handle, 0, &request) == 0);
    }
    CHECK(tg_sched_poll(handle, 0, entries, 2, &count, NULL) == TG_SCHED_E_ROOM);
    CHECK(count == 5);
    CHECK(said(handle, "the batch has 5 requests, and there is room for 2"));
    CHECK(tg_sched_complete(handle, 0, 3) == TG_SCHED_E_NOT_RUNNING);
    CHECK(tg_sched_poll(handle, 0, entries, 0, &count, NULL) == TG_SCHED_E_ROOM);
    CHECK(tg_sched_poll(handle, 0, entries, 5, &count, NULL) == TG_SCHED_DISPATCH);
    CHECK(count == 5 && entries[4].id == 4);
    CHECK(tg_sched_poll(handle, 0, entries, 5, &count, NULL) == TG_SCHED_IDLE);
    for (uint64_t id = 0; id < 5; id++) CHECK(tg_sched_complete(handle, 0, id) == 0);

    tg_sched_request alone = request_of(8, 0, TG_SCHED_READ);
    alone.flags = TG_SCHED_ALONE;
    CHECK(tg_sched_submit(handle, 0, &alone) == 0);
    tg_sched_request next = request_of(9, 4096, TG_SCHED_READ);
    CHECK(tg_sched_submit(handle, 0, &next) == 0);
    CHECK(tg_sched_poll(handle, 0, entries, ROOM, &count, NULL) == TG_SCHED_DISPATCH);
    CHECK(count == 1);
    CHECK(tg_sched_free(handle) == 0);
}

static void overlapping_writes_keep_their_order(void) {
    tg_sched *handle = make("fifo", "depth=8");
    tg_sched_entry entries[ROOM];
    size_t count;
    for (uint64_t id = 1; id <= 3; id++) {
        tg_sched_request request = request_of(id, id * 1024, TG_SCHED_WRITE);
        CHECK(tg_sched_submit(handle, 0, &request) == 0);
    }
    for (uint64_t id = 1; id <= 3; id++) {
        CHECK(tg_sched_poll(handle, 0, entries, ROOM, &count, NULL) == TG_SCHED_DISPATCH);
        CHECK(count == 1 && entries[0].id == id);
        CHECK(tg_sched_poll(handle, 0, entries, ROOM, &count, NULL) == TG_SCHED_IDLE);
        CHECK(tg_sched_complete(handle, 0, id) == 0);
    }
    CHECK(tg_sched_free(handle) == 0);
}

static void a_policy_changes_and_nothing_is_lost(void) {
    tg_sched *handle = make("fifo", "depth=1000 wall_offset_ns=1000000000000");
    uint8_t seen[1000] = {0};
    uint64_t epoch;
    CHECK(tg_sched_epoch(handle, 0, &epoch) == 0 && epoch == 0);
    for (uint64_t id = 0; id < 1000; id++) {
        tg_sched_request request = request_of(id, id * 8192, TG_SCHED_READ);
        CHECK(tg_sched_submit(handle, id, &request) == 0);
    }
    char name[64];
    uint64_t left = 1000;
    for (size_t index = 0; left > 0; index++) {
        const char *policy = tg_sched_policy_name(index);
        if (policy == NULL) {
            index = (size_t)-1;
            continue;
        }
        tg_sched_options *options;
        CHECK(tg_sched_options_new(policy, &options) == 0);
        CHECK(tg_sched_options_set(options, "depth", "1000") == 0);
        CHECK(tg_sched_set_policy(handle, 1000, options) == 0);
        CHECK(tg_sched_policy(handle, name, sizeof name) == (int)strlen(policy));
        CHECK(strcmp(name, policy) == 0);
        CHECK(tg_sched_options_set(options, "policy", "nonsense") == 0);
        CHECK(tg_sched_set_policy(handle, 1000, options) == TG_SCHED_E_OPTION);
        CHECK(said(handle, "there is no policy \"nonsense\"; known: "));
        CHECK(tg_sched_options_free(options) == 0);
        for (int turn = 0; turn < 3 && left > 0; turn++) {
            tg_sched_entry entries[ROOM];
            size_t count;
            int answer = tg_sched_poll(handle, 1000000000, entries, ROOM, &count, NULL);
            if (answer == TG_SCHED_WAIT) break;
            CHECK(answer == TG_SCHED_DISPATCH);
            for (size_t i = 0; i < count; i++) {
                CHECK(!seen[entries[i].id]);
                seen[entries[i].id] = 1;
                CHECK(tg_sched_complete(handle, 1000000000, entries[i].id) == 0);
            }
            left -= count;
        }
    }
    CHECK(tg_sched_set_policy(handle, 1000, NULL) == TG_SCHED_E_ARGUMENT);
    CHECK(said(handle, "options is NULL"));
    CHECK(tg_sched_policy(handle, name, 3) > 2 && strlen(name) == 2);
    CHECK(tg_sched_policy(handle, NULL, 0) > 2);
    CHECK(tg_sched_free(handle) == 0);
}

static void options_are_checked(void) {
    tg_sched_options *options = (tg_sched_options *)1;
    tg_sched *handle = (tg_sched *)1;
    CHECK(tg_sched_options_new(NULL, &options) == TG_SCHED_E_ARGUMENT && options == NULL);
    CHECK(tg_sched_options_new("fifo", NULL) == TG_SCHED_E_ARGUMENT);
    CHECK(tg_sched_options_new("\xff\xfe", &options) == TG_SCHED_E_ARGUMENT);
    CHECK(tg_sched_options_new("no-such-policy", &options) == 0);
    CHECK(tg_sched_new(options, &handle) == TG_SCHED_E_OPTION && handle == NULL);
    CHECK(said(NULL, "there is no policy \"no-such-policy\"; known: aioli"));
    CHECK(tg_sched_new(options, NULL) == TG_SCHED_E_ARGUMENT);
    static const char *const wrong[][3] = {
        {"depth", "0", "depth = 0 is outside of 1 to 65536"},
        {"queued_max", "99999999999", "not a whole number from 0 to 4294967295"},
        {"queued_max", "100000000", "queued_max = 100000000 is outside"},
        {"queued_max", "-1", "queued_max = \"-1\" is not a whole number"},
        {"batch_bytes_max", "1K", "not a whole number"},
        {"merge", "yes", "not true or false, or auto"},
        {"single_thread", "auto", "not true or false"},
        {"", "1", "without a name"},
        {"cost_file", "/nowhere/cost", "cost_file: /nowhere/cost: No such file"},
        {"trace_file", "/nowhere/trace", "/nowhere/trace: No such file"},
        {"cost_file", "/dev/zero", "cost_file: /dev/zero: is not a file"},
        {"trace_file", "/dev/zero", "/dev/zero: is not a file"},
        {"window_ms", "soon", "window_ms must be a whole number, not \"soon\""},
        {"order", "5", "order cannot be \"5\"; known: rotated, id"},
        {"window_ms", "0", "window_ms = 0 is outside"},
        {"order", "up", "order cannot be \"up\"; known: rotated, id"},
        {"window_m", "1", "policy window has no option \"window_m\""},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK(tg_sched_options_set(options, "policy", "window") == 0);
        int code = tg_sched_options_set(options, wrong[i][0], wrong[i][1]);
        if (code == 0) code = tg_sched_new(options, &handle);
        CHECK(code == TG_SCHED_E_OPTION);
        CHECK(said(NULL, wrong[i][2]));
        CHECK(tg_sched_options_parse(options, "depth=1 queued_max=10 batch_bytes_max=9") == 0);
    }
    CHECK(tg_sched_options_set(options, NULL, "1") == TG_SCHED_E_ARGUMENT);
    CHECK(tg_sched_options_set(options, "depth", NULL) == TG_SCHED_E_ARGUMENT);
    CHECK(tg_sched_options_parse(options, NULL) == TG_SCHED_E_ARGUMENT);
    CHECK(tg_sched_options_parse(options, "depth") == TG_SCHED_E_OPTION);
    CHECK(tg_sched_options_set(NULL, "depth", "1") == TG_SCHED_E_HANDLE);
    CHECK(tg_sched_options_free(options) == 0);
    CHECK(tg_sched_options_free(options) == TG_SCHED_E_HANDLE);
    CHECK(tg_sched_options_free(NULL) == TG_SCHED_E_HANDLE);
    CHECK(tg_sched_new(options, &handle) == TG_SCHED_E_HANDLE);
    CHECK(said(NULL, "not a live handle of options"));
}

static void wild_arguments_are_refused(void) {
    tg_sched *live = make("fifo", ""), *freed = make("fifo", "single_thread=true");
    CHECK(tg_sched_free(freed) == 0);
    uint64_t word[64] = {0};
    tg_sched *wild[] = {NULL, freed, (tg_sched *)1, (tg_sched *)word, (tg_sched *)UINTPTR_MAX,
                        (tg_sched *)((uintptr_t)live ^ 16), (tg_sched *)((uintptr_t)live + 65536),
                        (tg_sched *)tg_sched_version()};
    tg_sched_request request = request_of(1, 0, TG_SCHED_READ);
    tg_sched_entry entries[1];
    tg_sched_statistics statistics = TG_SCHED_STATISTICS_INIT;
    tg_sched_callbacks callbacks = TG_SCHED_CALLBACKS_INIT;
    callbacks.run = (void (*)(void *, const tg_sched_entry *))(uintptr_t)1;
    size_t count;
    uint64_t number;
    for (size_t i = 0; i < sizeof wild / sizeof wild[0]; i++) {
        CHECK(tg_sched_submit(wild[i], 0, &request) == TG_SCHED_E_HANDLE);
        CHECK(tg_sched_poll(wild[i], 0, entries, 1, &count, &number) == TG_SCHED_E_HANDLE);
        CHECK(tg_sched_complete(wild[i], 0, 1) == TG_SCHED_E_HANDLE);
        CHECK(tg_sched_cancel(wild[i], 0, 1) == TG_SCHED_E_HANDLE);
        CHECK(tg_sched_set_policy(wild[i], 0, NULL) == TG_SCHED_E_HANDLE);
        CHECK(tg_sched_policy(wild[i], NULL, 0) == TG_SCHED_E_HANDLE);
        CHECK(tg_sched_stats(wild[i], &statistics) == TG_SCHED_E_HANDLE);
        CHECK(tg_sched_epoch(wild[i], 0, &number) == TG_SCHED_E_HANDLE);
        CHECK(tg_sched_start(wild[i], &callbacks) == TG_SCHED_E_HANDLE);
        CHECK(tg_sched_stop(wild[i], TG_SCHED_DRAIN, 0) == TG_SCHED_E_HANDLE);
        CHECK(tg_sched_free(wild[i]) == TG_SCHED_E_HANDLE);
        CHECK(said(wild[i], "free: not a live handle of a scheduler"));
    }
    CHECK(said(NULL, "not a live handle") && strcmp(tg_sched_error(live), "") == 0);

    CHECK(tg_sched_submit(live, 0, NULL) == TG_SCHED_E_ARGUMENT);
    CHECK(said(live, "request is NULL"));
    request.direction = 2;
    CHECK(tg_sched_submit(live, 0, &request) == TG_SCHED_E_ARGUMENT);
    CHECK(said(live, "direction = 2"));
    request.direction = TG_SCHED_WRITE;
    request.flags = 6;
    CHECK(tg_sched_submit(live, 0, &request) == TG_SCHED_E_ARGUMENT);
    request.flags = 0;
    request.size = 0;
    CHECK(tg_sched_submit(live, 0, &request) == TG_SCHED_E_ARGUMENT);
    CHECK(said(live, "request has size = 0"));
    /* A host with an older, shorter structure. */
    request.size = offsetof(tg_sched_request, stamp_ns);
    CHECK(tg_sched_submit(live, 0, &request) == 0);
    CHECK(tg_sched_poll(live, 0, NULL, 1, &count, NULL) == TG_SCHED_E_ARGUMENT);
    CHECK(tg_sched_poll(live, 0, entries, 1, NULL, NULL) == TG_SCHED_E_ARGUMENT);
    CHECK(tg_sched_stats(live, NULL) == TG_SCHED_E_ARGUMENT);
    statistics.size = 0;
    CHECK(tg_sched_stats(live, &statistics) == TG_SCHED_E_ARGUMENT);
    statistics.size = offsetof(tg_sched_statistics, rejected);
    statistics.rejected = 99;
    CHECK(tg_sched_stats(live, &statistics) == 0);
    CHECK(statistics.arrived == 1 && statistics.rejected == 99);
    CHECK(tg_sched_epoch(live, 0, NULL) == TG_SCHED_E_ARGUMENT);
    CHECK(tg_sched_policy(live, NULL, 5) == TG_SCHED_E_ARGUMENT);
    CHECK(tg_sched_start(live, NULL) == TG_SCHED_E_ARGUMENT);
    callbacks.run = NULL;
    CHECK(tg_sched_start(live, &callbacks) == TG_SCHED_E_ARGUMENT);
    CHECK(said(live, "callbacks->run is NULL"));
    CHECK(tg_sched_stop(live, TG_SCHED_DRAIN, 0) == TG_SCHED_E_STATE);
    CHECK(tg_sched_stop(live, 3, 0) == TG_SCHED_E_ARGUMENT);
    CHECK(tg_sched_free(live) == 0);
}

static void there_is_a_most_of_schedulers(void) {
    enum { MOST = 4096 };
    static tg_sched *handles[MOST];
    tg_sched *more;
    for (int i = 0; i < MOST; i++) CHECK(tg_sched_new(NULL, &handles[i]) == 0);
    CHECK(tg_sched_new(NULL, &more) == TG_SCHED_E_SYSTEM && more == NULL);
    CHECK(said(NULL, "4096 schedulers are alive"));
    for (int i = 0; i < MOST; i++) CHECK(tg_sched_free(handles[i]) == 0);
    CHECK(tg_sched_new(NULL, &more) == 0);
    CHECK(tg_sched_free(more) == 0);
}

static void *fails_elsewhere(void *handle) {
    CHECK(strcmp(tg_sched_error(NULL), "") == 0);
    CHECK(tg_sched_complete(handle, 0, 2) == TG_SCHED_E_UNKNOWN_ID);
    CHECK(said(handle, "id 2"));
    return NULL;
}

static void errors_are_those_of_the_thread(void) {
    tg_sched *handle = make("fifo", "");
    pthread_t thread;
    CHECK(tg_sched_complete(handle, 0, 1) == TG_SCHED_E_UNKNOWN_ID);
    CHECK(pthread_create(&thread, NULL, fails_elsewhere, handle) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(said(handle, "id 1"));
    CHECK(tg_sched_free(handle) == 0);
}

static void about_the_library(void) {
    CHECK(strncmp(tg_sched_version(), "0.1", 3) == 0);
    CHECK(strcmp(tg_sched_policy_name(0), "aioli") == 0);
    CHECK(tg_sched_policy_name(1000) == NULL);
    CHECK(tg_sched_hash("job.1", 5) != tg_sched_hash("job.2", 5));
    CHECK(tg_sched_hash("job.1", 5) == tg_sched_hash("job.1 ", 5));
    CHECK(tg_sched_hash(NULL, 5) == 0);
    uint64_t now = tg_sched_clock_ns();
    CHECK(now > 0 && tg_sched_clock_ns() >= now);
    CHECK(tg_sched_wall_offset_ns() + now > 1600000000u * 1000000000ull);
}

int main(void) {
    a_request_comes_and_goes("single_thread=false");
    a_request_comes_and_goes("single_thread=true");
    a_full_queue_pushes_back();
    a_batch_that_does_not_fit_is_kept();
    overlapping_writes_keep_their_order();
    a_policy_changes_and_nothing_is_lost();
    options_are_checked();
    wild_arguments_are_refused();
    there_is_a_most_of_schedulers();
    errors_are_those_of_the_thread();
    about_the_library();
    puts("calls: ok");
    return 0;
}
