/* Random sequences of calls against a model: right and wrong ones, wild handles, broken structures,
 * all policies, changes of policy, the library's own thread. Nothing may crash, hang, or differ
 * from what the model says.
 *
 * TIDEGATE_SEED=17 sequence              one seed; it prints what replays a failure
 * sequence FIRST COUNT                   so many seeds from FIRST
 * sequence FIRST seconds=600             seeds for ten minutes
 */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <tidegate_sched.h>
#include <unistd.h>

enum { HANDLES = 4, IDS = 300, ROOM = 300, CALLS = 400 };
enum stage { NOWHERE, QUEUED, RUNNING };

/* What a handle must be like. */
struct model {
    tg_sched *handle; /* stays after it was freed, as a stale one */
    int live, started, stopping;
    uint32_t queued_max, queued, running;
    size_t kept;
    atomic_uchar stage[IDS];
    uint64_t arrived, completed, cancelled;
};

static struct model models[HANDLES];
static uint64_t seed, random_state, now_ns;
static const uint64_t LONG_NS = 60000000000u;

static uint64_t draw(uint64_t below) { return random_of(&random_state) % below; }

static void failed(int signal) {
    (void)signal;
    char text[128];
    int len = snprintf(text, sizeof text, "seed %llu: replay with TIDEGATE_SEED=%llu\n",
                       (unsigned long long)seed, (unsigned long long)seed);
    if (write(2, text, (size_t)len) != len) _exit(2);
    _exit(1);
}

/* Mostly a live handle's model, else NULL. */
static struct model *draw_live(void) {
    struct model *model = &models[draw(HANDLES)];
    return model->live ? model : NULL;
}

static tg_sched *wild(void) {
    static uint64_t words[32];
    switch (draw(6)) {
    case 0: return NULL;
    case 1: return (tg_sched *)random_of(&random_state);
    case 2: return (tg_sched *)(uintptr_t)draw(100000);
    case 3: return (tg_sched *)&words[draw(32)];
    default: {
        struct model *model = &models[draw(HANDLES)];
        uintptr_t handle = (uintptr_t)model->handle;
        return (tg_sched *)(model->live ? handle ^ (uintptr_t)1 << draw(64) : handle);
    }
    }
}

static void has_text(const tg_sched *handle, int code) {
    CHECK(code >= TG_SCHED_E_TIMEOUT && code != TG_SCHED_E_POISONED);
    CHECK(strlen(tg_sched_error(handle)) > 5);
}

static const char *draw_policy(void) {
    size_t count = 0;
    while (tg_sched_policy_name(count) != NULL) count++;
    return tg_sched_policy_name(draw(count));
}

/* Options that are mostly right; *queued_max and *right say what they are. */
static tg_sched_options *draw_options(uint32_t *queued_max, int *right) {
    static const char *const names[] = {"depth", "merge", "batch_requests_max", "batch_bytes_max",
        "wall_offset_ns", "window_ms", "quantum", "order", "weights", "age_ms_max", "", "\n"};
    static const char *const values[] = {"1", "8", "0", "true", "false", "auto", "id", "-1",
        "18446744073709551615", "18446744073709551616", "\"5\"", "1=3,2=1", "=", "4096"};
    tg_sched_options *options;
    char text[32];
    *queued_max = 1 + (uint32_t)draw(IDS / 2);
    *right = 1;
    CHECK(tg_sched_options_new(draw_policy(), &options) == 0);
    snprintf(text, sizeof text, "%u", *queued_max);
    CHECK(tg_sched_options_set(options, "queued_max", text) == 0);
    snprintf(text, sizeof text, "depth=%d", (int)draw(40) + 1);
    CHECK(tg_sched_options_parse(options, text) == 0);
    CHECK(tg_sched_options_set(options, "merge", draw(2) ? "true" : "auto") == 0);
    while (draw(3) == 0) {
        int code = tg_sched_options_set(options, names[draw(sizeof names / sizeof *names)],
                                        values[draw(sizeof values / sizeof *values)]);
        if (code != 0) has_text(NULL, code);
        *right = 0;
    }
    return options;
}

static void call_new(void) {
    struct model *model = &models[draw(HANDLES)];
    int right;
    uint32_t queued_max;
    if (model->live) return;
    tg_sched_options *options = draw_options(&queued_max, &right);
    if (draw(2)) CHECK(tg_sched_options_set(options, "single_thread", "true") == 0);
    tg_sched *made;
    int code = tg_sched_new(options, &made);
    CHECK(tg_sched_options_free(options) == 0);
    CHECK(tg_sched_options_free(options) == TG_SCHED_E_HANDLE);
    if (code != 0) {
        CHECK(!right && code == TG_SCHED_E_OPTION && made == NULL);
        has_text(NULL, code);
        return;
    }
    memset(model, 0, sizeof *model);
    model->handle = made;
    model->live = 1;
    model->queued_max = queued_max;
}

static void call_free(void) {
    struct model *model = draw_live();
    if (model == NULL || draw(4)) return;
    int code = tg_sched_free(model->handle);
    CHECK(code == (model->started ? TG_SCHED_E_STATE : 0));
    if (code == 0) model->live = 0;
}

static void call_submit(void) {
    struct model *model = draw_live();
    tg_sched_request request = TG_SCHED_REQUEST_INIT;
    if (model == NULL) return;
    request.id = draw(IDS);
    request.app = draw(4);
    request.file = draw(3);
    request.offset = draw(4) ? draw(100) * 4096 : random_of(&random_state);
    request.len = draw(8) ? 4096 : draw(2) ? random_of(&random_state) : 0;
    request.direction = draw(4) == 0;
    request.queue = (uint32_t)draw(5);
    request.flags = draw(16) == 0;
    request.stamp_ns = draw(2) ? now_ns : random_of(&random_state);
    request.deadline_ns = draw(4) ? 0 : random_of(&random_state);
    request.epoch_seen = draw(8) ? 0 : random_of(&random_state);
    int broken = draw(20) == 0;
    if (broken && draw(2)) request.direction = 2 + (uint32_t)draw(1000);
    else if (broken) request.size = draw(2) ? draw(48) : random_of(&random_state) | 8192;
    int code = tg_sched_submit(model->handle, now_ns, &request);
    if (broken) CHECK(code == TG_SCHED_E_ARGUMENT);
    else if (model->stopping) CHECK(code == TG_SCHED_E_STATE);
    else if (model->started) CHECK(code == 0 || code == TG_SCHED_E_FULL ||
                                   code == TG_SCHED_E_ID_IN_USE);
    else if (model->queued >= model->queued_max) CHECK(code == TG_SCHED_E_FULL);
    else if (model->stage[request.id] != NOWHERE) CHECK(code == TG_SCHED_E_ID_IN_USE);
    else CHECK(code == 0);
    if (code != 0) {
        has_text(model->handle, code);
    } else if (!model->started) {
        model->stage[request.id] = QUEUED;
        model->queued++;
        model->arrived++;
    }
}

static void call_poll(void) {
    struct model *model = draw_live();
    tg_sched_entry entries[ROOM];
    size_t count = 0, room = draw(4) ? ROOM : draw(4);
    uint64_t wake_ns;
    if (model == NULL) return;
    int code = tg_sched_poll(model->handle, now_ns, entries, room, &count, draw(2) ? &wake_ns : NULL);
    if (model->started) {
        CHECK(code == TG_SCHED_E_STATE);
        return;
    }
    if (code == TG_SCHED_E_ROOM) {
        CHECK(count > room && count <= 256 && (model->kept == 0 || model->kept == count));
        if (model->kept == 0) {
            model->queued -= (uint32_t)count;
            model->running += (uint32_t)count;
        }
        model->kept = count;
        return;
    }
    CHECK(code == TG_SCHED_DISPATCH || code == TG_SCHED_WAIT || code == TG_SCHED_IDLE);
    if (code != TG_SCHED_DISPATCH) {
        CHECK(model->kept == 0 && count == 0);
        /* Waiting requests that nothing runs beside must run, or name the time when they will. */
        CHECK(code == TG_SCHED_WAIT || model->running > 0 || model->queued == 0);
        return;
    }
    CHECK(count > 0 && count <= room && (model->kept == 0 || model->kept == count));
    for (size_t i = 0; i < count; i++) {
        CHECK(entries[i].id < IDS && model->stage[entries[i].id] == QUEUED);
        CHECK(entries[i].file == entries[0].file && entries[i].direction == entries[0].direction);
        model->stage[entries[i].id] = RUNNING;
    }
    if (model->kept == 0) {
        model->queued -= (uint32_t)count;
        model->running += (uint32_t)count;
    }
    model->kept = 0;
}

static void call_complete(void) {
    struct model *model = draw_live();
    uint64_t id = draw(8) ? draw(IDS) : random_of(&random_state);
    if (model == NULL) return;
    int code = tg_sched_complete(model->handle, now_ns, id);
    enum stage stage = id < IDS ? (enum stage)model->stage[id] : NOWHERE;
    if (code != 0) has_text(model->handle, code);
    if (model->started) {
        CHECK(code == 0 || code == TG_SCHED_E_UNKNOWN_ID || code == TG_SCHED_E_NOT_RUNNING);
        return;
    }
    CHECK(code == (stage == RUNNING ? 0 : stage == QUEUED ? TG_SCHED_E_NOT_RUNNING
                                                          : TG_SCHED_E_UNKNOWN_ID));
    if (code == 0) {
        model->stage[id] = NOWHERE;
        model->running--;
        model->completed++;
    }
}

static void call_cancel(void) {
    struct model *model = draw_live();
    uint64_t id = draw(8) ? draw(IDS) : random_of(&random_state);
    if (model == NULL || model->kept > 0) return;
    int code = tg_sched_cancel(model->handle, now_ns, id);
    enum stage stage = id < IDS ? (enum stage)model->stage[id] : NOWHERE;
    if (model->started) {
        CHECK(code == 0 || code == 1 || code == TG_SCHED_E_UNKNOWN_ID);
        return;
    }
    CHECK(code == (stage == QUEUED ? 1 : stage == RUNNING ? 0 : TG_SCHED_E_UNKNOWN_ID));
    if (code == 1) {
        model->stage[id] = NOWHERE;
        model->queued--;
        model->cancelled++;
    }
}

static void call_set_policy(void) {
    struct model *model = draw_live();
    int right;
    uint32_t queued_max;
    if (model == NULL || draw(3)) return;
    tg_sched_options *options = draw_options(&queued_max, &right);
    int code = tg_sched_set_policy(model->handle, now_ns, options);
    CHECK(code == 0 || (!right && code == TG_SCHED_E_OPTION));
    if (code == 0) model->queued_max = queued_max;
    CHECK(tg_sched_options_free(options) == 0);
}

static void call_stats(void) {
    struct model *model = draw_live();
    tg_sched_statistics statistics = TG_SCHED_STATISTICS_INIT;
    uint64_t epoch;
    char name[16];
    if (model == NULL) return;
    CHECK(tg_sched_stats(model->handle, &statistics) == 0);
    CHECK(tg_sched_epoch(model->handle, now_ns, &epoch) == 0);
    CHECK(tg_sched_policy(model->handle, name, draw(sizeof name + 1)) > 0);
    if (model->started) return;
    CHECK(statistics.queued == model->queued && statistics.running == model->running);
    CHECK(statistics.arrived == model->arrived && statistics.completed == model->completed);
    CHECK(statistics.cancelled == model->cancelled);
}

static void call_wild(void) {
    tg_sched *handle = wild();
    tg_sched_request request = TG_SCHED_REQUEST_INIT;
    tg_sched_entry entry;
    size_t count;
    for (int i = 0; i < HANDLES; i++)
        if (models[i].live && models[i].handle == handle) return;
    int code = 0;
    switch (draw(8)) {
    case 0: code = tg_sched_submit(handle, now_ns, &request); break;
    case 1: code = tg_sched_poll(handle, now_ns, &entry, 1, &count, NULL); break;
    case 2: code = tg_sched_complete(handle, now_ns, draw(IDS)); break;
    case 3: code = tg_sched_cancel(handle, now_ns, draw(IDS)); break;
    case 4: code = tg_sched_free(handle); break;
    case 5: code = tg_sched_stop(handle, TG_SCHED_CANCEL, 0); break;
    case 6: code = tg_sched_set_policy(handle, now_ns, NULL); break;
    default: code = tg_sched_options_free((tg_sched_options *)handle); break;
    }
    CHECK(code == TG_SCHED_E_HANDLE);
    has_text(NULL, code);
}

/* The thread's host completes half of its requests at once, and cancels or submits now and then. */
static void run(void *context, const tg_sched_entry *entry) {
    struct model *model = context;
    CHECK(entry->id < IDS);
    if (entry->id % 2) {
        /* The main thread may have been faster. */
        int code = tg_sched_complete(model->handle, 0, entry->id);
        CHECK(code == 0 || code == TG_SCHED_E_UNKNOWN_ID || code == TG_SCHED_E_NOT_RUNNING);
    }
    if (entry->id % 7 == 0) {
        int code = tg_sched_cancel(model->handle, 0, entry->id / 2);
        CHECK(code == 0 || code == 1 || code == TG_SCHED_E_UNKNOWN_ID);
    }
}

static void run_list(void *context, const tg_sched_entry *entries, size_t count) {
    CHECK(count > 1);
    for (size_t i = 0; i < count; i++) run(context, &entries[i]);
}

/* The model knows only what the statistics say after this; the ids are learnt by trying. */
static void learn(struct model *model) {
    tg_sched_statistics statistics = TG_SCHED_STATISTICS_INIT;
    CHECK(tg_sched_stats(model->handle, &statistics) == 0);
    CHECK(statistics.queued == 0);
    for (uint64_t id = 0; id < IDS; id++) {
        int code = tg_sched_complete(model->handle, now_ns, id);
        CHECK(code == 0 || code == TG_SCHED_E_UNKNOWN_ID);
        model->stage[id] = NOWHERE;
    }
    CHECK(tg_sched_stats(model->handle, &statistics) == 0);
    CHECK(statistics.running == 0);
    CHECK(statistics.arrived == statistics.completed + statistics.cancelled);
    model->arrived = statistics.arrived;
    model->completed = statistics.completed;
    model->cancelled = statistics.cancelled;
    model->queued = model->running = 0;
}

static void call_start(void) {
    struct model *model = draw_live();
    tg_sched_callbacks callbacks = TG_SCHED_CALLBACKS_INIT;
    if (model == NULL || draw(6)) return;
    callbacks.context = model;
    callbacks.run = run;
    callbacks.run_list = draw(2) ? run_list : NULL;
    int code = tg_sched_start(model->handle, &callbacks);
    CHECK(code == 0 || code == TG_SCHED_E_STATE);
    if (model->started || model->kept) CHECK(code == TG_SCHED_E_STATE);
    if (code == 0) model->started = 1;
}

static void end(struct model *model) {
    int code = tg_sched_stop(model->handle, TG_SCHED_CANCEL, LONG_NS);
    CHECK(code == 0);
    model->started = model->stopping = 0;
    learn(model);
}

static void call_stop(void) {
    struct model *model = draw_live();
    if (model == NULL || draw(6)) return;
    if (!model->started) {
        CHECK(tg_sched_stop(model->handle, TG_SCHED_DRAIN, 0) == TG_SCHED_E_STATE);
        return;
    }
    int code = tg_sched_stop(model->handle, draw(2) ? TG_SCHED_DRAIN : TG_SCHED_CANCEL, draw(100000));
    CHECK(code == 0 || code == TG_SCHED_E_TIMEOUT);
    model->stopping = 1;
    if (code == 0) {
        model->started = model->stopping = 0;
        learn(model);
    } else if (draw(2)) {
        end(model);
    }
}

static void sequence(uint64_t with) {
    static void (*const calls[])(void) = {call_new, call_new, call_free, call_submit, call_submit,
        call_submit, call_submit, call_submit, call_poll, call_poll, call_poll, call_complete,
        call_complete, call_cancel, call_set_policy, call_stats, call_wild, call_start, call_stop};
    seed = random_state = with;
    now_ns = draw(2) ? 0 : random_of(&random_state);
    for (int i = 0; i < CALLS; i++) {
        now_ns += draw(64) ? draw(1000000) : draw(UINT64_C(1) << 62);
        if (draw(50) == 0) now_ns = random_of(&random_state);
        calls[draw(sizeof calls / sizeof *calls)]();
    }
    for (int i = 0; i < HANDLES; i++) {
        if (!models[i].live) continue;
        if (models[i].started) end(&models[i]);
        CHECK(tg_sched_free(models[i].handle) == 0);
        CHECK(tg_sched_free(models[i].handle) == TG_SCHED_E_HANDLE);
        models[i].live = 0;
    }
}

int main(int argc, char **argv) {
    const char *only = getenv("TIDEGATE_SEED");
    uint64_t first = only ? strtoull(only, NULL, 10) : argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t count = only ? 1 : 1000, ends_ns = UINT64_MAX;
    if (!only && argc > 2 && strncmp(argv[2], "seconds=", 8) == 0) {
        count = UINT64_MAX;
        ends_ns = clock_ns(CLOCK_MONOTONIC) + strtoull(argv[2] + 8, NULL, 10) * 1000000000u;
    } else if (!only && argc > 2) {
        count = strtoull(argv[2], NULL, 10);
    }
    struct sigaction action = {.sa_handler = failed};
    const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGALRM};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &action, NULL);
    uint64_t done = 0;
    for (; done < count && clock_ns(CLOCK_MONOTONIC) < ends_ns; done++) {
        /* A sequence that hangs fails. */
        alarm(120);
        sequence(first + done);
    }
    printf("sequence: ok, %llu seeds from %llu, %d calls each\n", (unsigned long long)done,
           (unsigned long long)first, CALLS);
    return 0;
}
