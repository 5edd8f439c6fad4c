/* Forwarding file systems in the manner of those from 2015 to 2018: FORGE and the first GekkoFWD
 * (-DAGIOS_INTERFACE=2018), OrangeFS (the same with -DORANGEFS_AGIOS), and programs whose requests
 * have numbers of type int (-DAGIOS_INTERFACE=2015).
 *
 * agios_2018 FOLDER: a folder for configuration files. */
#include "agios_conf.h"
#include <agios.h>
#include <errno.h>
#include <unistd.h>

enum { REQUESTS = 400, APPS = 4 };

static char *config(const char *settings) {
    return config_with("", settings, "user_info:\n{\n stripe_size = 32768 ;\n};\n");
}

/* What the callbacks leave for the dispatcher. */
static pthread_mutex_t ready_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ready_changed = PTHREAD_COND_INITIALIZER;
static int64_t ready[REQUESTS];
static int ready_count, lists;

static void put(int64_t id) {
    pthread_mutex_lock(&ready_lock);
    CHECK(ready_count < REQUESTS);
    ready[ready_count++] = id;
    pthread_cond_signal(&ready_changed);
    pthread_mutex_unlock(&ready_lock);
}

static int64_t get(int number) {
    pthread_mutex_lock(&ready_lock);
    while (ready_count <= number) pthread_cond_wait(&ready_changed, &ready_lock);
    int64_t id = ready[number];
    pthread_mutex_unlock(&ready_lock);
    return id;
}

#if defined(ORANGEFS_AGIOS)
static void process(int64_t id) { put(id); }
static void process_multiple(int64_t *ids, int count) {
    for (int i = 0; i < count; i++) put(ids[i]);
    lists++;
}
#define DATA(id) ((int64_t)(id))
#elif AGIOS_INTERFACE == 2015
static void process(int id) { put(id); }
static void process_multiple(int *ids, int count) {
    for (int i = 0; i < count; i++) put(ids[i]);
    lists++;
}
#define DATA(id) ((int)(id))
#else
static void process(void *id) { put((int64_t)(intptr_t)id); }
static void process_multiple(void **ids, int count) {
    for (int i = 0; i < count; i++) put((int64_t)(intptr_t)ids[i]);
    lists++;
}
#define DATA(id) ((void *)(intptr_t)(id))
#endif

static struct client agios_client;

static void start(const char *settings, int max_app_id) {
    ready_count = lists = 0;
    agios_client.process_request = process;
    agios_client.process_requests = process_multiple;
    CHECK(agios_init(&agios_client, config(settings), max_app_id) == 0);
}

static void everything_comes_back(const char *settings) {
    char seen[REQUESTS] = {0}, handle[32];
    start(settings, APPS - 1);
    for (int i = 0; i < REQUESTS; i++) {
        snprintf(handle, sizeof handle, "%015d", i % 5);
        CHECK(agios_set_stripe_size(handle, 65536) == 1);
        CHECK(agios_add_request(handle, i % 2, i * 8192L, 4096L, DATA(i), &agios_client, i % APPS) == 0);
    }
    for (int i = 0; i < REQUESTS; i++) {
        int id = (int)get(i);
        CHECK(id >= 0 && id < REQUESTS && !seen[id]);
        seen[id] = 1;
        snprintf(handle, sizeof handle, "%015d", id % 5);
        /* Some say which part of the request it was, of which there is one. */
        if (id % 3 == 0)
            CHECK(agios_release_request(handle, id % 2, 4096, id * 8192L, 0, 4096) == 1);
        else
            CHECK(agios_release_request(handle, id % 2, 4096, id * 8192L) == 1);
        CHECK(agios_release_request(handle, id % 2, 4096, id * 8192L) == 0);
    }
    agios_exit();
}

/* TW is the old name of SW: by application, in windows of time_window_size. */
static void windows_order_by_application(void) {
    static const int apps[] = {3, 1, 2, 0, 3, 1};
    char handle[] = "window";
    start("default_algorithm = \"TW\" ; time_window_size = 3600000 ; depth = 1", APPS - 1);
    for (int i = 0; i < 6; i++)
        CHECK(agios_add_request(handle, RT_READ, i * 8192L, 4096L, DATA(i), &agios_client, apps[i]) == 0);
    CHECK(agios_add_request(handle, RT_READ, 0, 1, DATA(9), &agios_client, APPS) == -EINVAL);
    int last = -1;
    for (int i = 0; i < 6; i++) {
        int id = (int)get(i);
        /* The first may have been dispatched before the others came. */
        if (i > 0) {
            CHECK(apps[id] >= last);
            last = apps[id];
        }
        CHECK(agios_release_request(handle, RT_READ, 4096, id * 8192L) == 1);
    }
    agios_exit();
}

static void statistics_and_the_short_calls(void) {
    char handle[] = "stats", text[1024] = "", stats[4096];
    snprintf(stats, sizeof stats, "%s/stats", folder);
    ready_count = lists = 0;
    agios_client.process_requests = NULL;
    /* Up to 2016 there was no application, neither here nor there. */
    CHECK(agios_init(&agios_client, config("default_algorithm = \"NOOP\" depth = 1")) == 0);
    agios_wait_predict_init();
    CHECK(agios_add_request(handle, RT_WRITE, 0, 1000, DATA(0), &agios_client) == 0);
    CHECK(get(0) == 0);
    CHECK(agios_add_request(handle, RT_WRITE, 2000, 3000, DATA(1), &agios_client) == 0);
    CHECK(agios_cancel_request(handle, RT_WRITE, 3000, 2000) == 1);
    CHECK(agios_cancel_request(handle, RT_WRITE, 3000, 2000) == 0);
    CHECK(agios_release_request(handle, RT_WRITE, 1000, 0) == 1);
    agios_print_stats_file(stats);
    FILE *file = fopen(stats, "r");
    CHECK(file != NULL && fread(text, 1, sizeof text - 1, file) > 0 && fclose(file) == 0);
    CHECK(strstr(text, "algorithm NOOP\nrequests 2\nreads 0\nwrites 2\nbytes 4000\nserved_bytes 1000\n"));
    CHECK(strstr(text, "max_bytes 3000\n") && strstr(text, "mean_distance_bytes 1000\n"));
    agios_reset_stats();
    agios_print_stats_file(stats);
    memset(text, 0, sizeof text);
    file = fopen(stats, "r");
    CHECK(file != NULL && fread(text, 1, sizeof text - 1, file) > 0 && fclose(file) == 0);
    CHECK(strstr(text, "requests 0\n"));
    agios_print_stats_file(NULL);
    CHECK(strstr(agios_error(), "NULL") != NULL);
    agios_exit();
}

static void a_full_queue_and_wrong_starts(void) {
    char handle[] = "full", nowhere[] = "/nowhere/agios.conf";
    struct client none;
    memset(&none, 0, sizeof none);
    CHECK(agios_init(&none, config(""), 0) == -EINVAL);
    CHECK(agios_init(NULL, config(""), 0) == -EINVAL);
    CHECK(agios_init(&agios_client, nowhere, 0) == -EINVAL);
    CHECK(agios_init(&agios_client, config("default_algorithm = \"ARMED_BANDIT\""), 0) == -EINVAL);
    CHECK(strstr(agios_error(), "ARMED_BANDIT") != NULL);
    start("default_algorithm = \"no_AGIOS\" depth = 1 queued_max = 10", 0);
    CHECK(agios_add_request(handle, RT_READ, 0, 1, DATA(0), &agios_client, 77) == 0);
    CHECK(get(0) == 0);
    for (int i = 1; i <= 10; i++)
        CHECK(agios_add_request(handle, RT_READ, i * 10, 1, DATA(i), &agios_client, 0) == 0);
    CHECK(agios_add_request(handle, RT_READ, 110, 1, DATA(11), &agios_client, 0) == -ENOMEM);
    CHECK(agios_release_request(handle, RT_READ, 1, 0) == 1);
    for (int i = 1; i <= 10; i++)
        CHECK(get(i) == i && agios_release_request(handle, RT_READ, 1, i * 10) == 1);
    agios_exit();
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    folder = argv[1];
    everything_comes_back("default_algorithm = \"SJF\" waiting_time = 900000");
    everything_comes_back("default_algorithm = \"TO-agg\"");
    everything_comes_back("default_algorithm = \"EXCLUSIVE_TIME_WINDOW\" exclusive_tw_window_duration = 2000");
    windows_order_by_application();
    statistics_and_the_short_calls();
    a_full_queue_and_wrong_starts();
    puts("agios 2018: ok");
    return 0;
}
