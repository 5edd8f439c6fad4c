/* A forwarding file system in the manner of GekkoFWD: no callbacks for all, each request brings its
 * own with what its handler waits on. Compiled with -DAGIOS_INTERFACE=2020, as C and as C++.
 *
 * agios_2020 FOLDER: a folder for configuration files. */
#include "agios_conf.h"
#include <agios.h>
#include <errno.h>

enum { HANDLERS = 8, REQUESTS = 200 };

static char *config(const char *settings) {
    return config_with("", settings, "");
}

/* What a handler of a remote call waits on. */
struct eventual {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int is_set, error;
    int64_t id;
};

static void *set(int64_t id, void *info) {
    struct eventual *eventual = (struct eventual *)info;
    pthread_mutex_lock(&eventual->lock);
    CHECK(!eventual->is_set);
    eventual->is_set = 1;
    eventual->id = id;
    eventual->error = agios_callback_error();
    pthread_cond_signal(&eventual->changed);
    pthread_mutex_unlock(&eventual->lock);
    return NULL;
}

/* Waits for the request's turn; 0, or why it must not be performed. */
static int turn(char *name, int32_t type, int64_t offset, int64_t len, int64_t id) {
    struct eventual eventual;
    memset(&eventual, 0, sizeof eventual);
    pthread_mutex_init(&eventual.lock, NULL);
    pthread_cond_init(&eventual.changed, NULL);
    CHECK(agios_add_request(name, type, offset, len, id, 0, set, &eventual));
    pthread_mutex_lock(&eventual.lock);
    while (!eventual.is_set) pthread_cond_wait(&eventual.changed, &eventual.lock);
    pthread_mutex_unlock(&eventual.lock);
    CHECK(eventual.id == id);
    pthread_cond_destroy(&eventual.changed);
    pthread_mutex_destroy(&eventual.lock);
    return eventual.error;
}

static void *handler(void *number) {
    int64_t me = (int64_t)(intptr_t)number;
    char name[32];
    snprintf(name, sizeof name, "/file.%d", (int)(me % 3));
    for (int64_t i = 0; i < REQUESTS; i++) {
        int64_t offset = (me * REQUESTS + i) * 4096;
        int32_t type = i % 4 == 0 ? RT_WRITE : RT_READ;
        CHECK(turn(name, type, offset, 4096, me * REQUESTS + i) == 0);
        CHECK(agios_release_request(name, type, 4096, offset));
    }
    return NULL;
}

static void handlers_wait_for_their_requests(const char *algorithm) {
    char settings[128];
    pthread_t threads[HANDLERS];
    snprintf(settings, sizeof settings, "default_algorithm = \"%s\"", algorithm);
    CHECK(agios_init(NULL, NULL, config(settings), 0));
    for (int i = 0; i < HANDLERS; i++)
        CHECK(pthread_create(&threads[i], NULL, handler, (void *)(intptr_t)i) == 0);
    for (int i = 0; i < HANDLERS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    struct agios_metrics_t *metrics = agios_get_metrics_and_reset();
    CHECK(metrics != NULL && metrics->total_reqnb == HANDLERS * REQUESTS);
    CHECK(metrics->writes == HANDLERS * REQUESTS / 4);
    CHECK(metrics->reads == metrics->total_reqnb - metrics->writes && metrics->filenb == 3);
    CHECK(metrics->avg_request_size == 4096 && metrics->max_request_size == 4096);
    CHECK(metrics->served_bytes == HANDLERS * REQUESTS * 4096 && metrics->avg_offset_distance >= 0);
    free(metrics);
    metrics = agios_get_metrics_and_reset();
    CHECK(metrics != NULL && metrics->total_reqnb == 0 && metrics->filenb == 0);
    free(metrics);
    agios_exit();
    CHECK(agios_get_metrics_and_reset() == NULL);
}

static int all_calls, list_calls, own_calls;

static void *for_all(int64_t id) {
    CHECK(id % 2 == 0);
    __atomic_fetch_add(&all_calls, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void *for_lists(int64_t *ids, int32_t count) {
    for (int32_t i = 0; i < count; i++) for_all(ids[i]);
    __atomic_fetch_add(&list_calls, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void *for_one(int64_t id, void *info) {
    CHECK(id % 2 == 1 && *(int64_t *)info == id);
    __atomic_fetch_add(&own_calls, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Requests with and without callbacks of their own, in the same batches. */
static void both_kinds_together(void) {
    static int64_t infos[100];
    char name[] = "/both";
    CHECK(agios_init(for_all, for_lists, config("default_algorithm = \"TO-agg\" depth = 1"), 0));
    for (int64_t id = 0; id < 100; id++) {
        infos[id] = id;
        CHECK(agios_add_request(name, RT_READ, id * 512, 512, id, 0, id % 2 ? for_one : NULL,
                                id % 2 ? &infos[id] : NULL));
    }
    for (int64_t id = 0; id < 100; id++)
        for (int tries = 0; !agios_release_request(name, RT_READ, 512, id * 512); tries++) {
            CHECK(tries < 60000);
            sleep_ms(1);
        }
    agios_exit();
    CHECK(all_calls == 50 && own_calls == 50);
}

static void without_any_callback_it_is_refused(void) {
    char name[] = "/none";
    CHECK(agios_init(NULL, NULL, config(""), 0));
    CHECK(!agios_add_request(name, RT_READ, 0, 1, 0, 0, NULL, NULL));
    CHECK(strstr(agios_error(), "callback") != NULL);
    agios_exit();
}

static int held_error = -1;

static void *holder(void *nothing) {
    char name[] = "/held";
    held_error = turn(name, RT_WRITE, 100, 100, 2);
    return nothing;
}

/* Nobody releases the first, which the second overlaps: the exit drops the second, and its handler,
 * who waits for it, is told. */
static void an_exit_tells_who_waits(void) {
    pthread_t thread;
    char name[] = "/held";
    CHECK(agios_init(NULL, NULL, config("waiting_time = 900000\nmystery = 3"), 0));
    CHECK(turn(name, RT_WRITE, 0, 4096, 1) == 0);
    CHECK(pthread_create(&thread, NULL, holder, NULL) == 0);
    sleep_ms(100);
    agios_exit();
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(held_error == ECANCELED && agios_callback_error() == 0);
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    folder = argv[1];
    handlers_wait_for_their_requests("SJF");
    handlers_wait_for_their_requests("aIOLi");
    handlers_wait_for_their_requests("TWINS");
    both_kinds_together();
    without_any_callback_it_is_refused();
    an_exit_tells_who_waits();
    puts("agios 2020: ok");
    return 0;
}
