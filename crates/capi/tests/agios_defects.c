/* What is wrong with the public AGIOS, each as a test that this library passes; and its whole
 * interface under every algorithm. Compiled as a program for AGIOS: <agios.h>, -lagios.
 *
 * agios_defects FOLDER: a folder for configuration files. */
#include "agios_conf.h"
#include <agios.h>
#include <scheduling_algorithms.h>
#include <stdatomic.h>
#include <unistd.h>

enum { MOST = 200000 };

static char *config(const char *settings) {
    return config_with("# written by a test\n", settings, "");
}

static int said(const char *words) {
    if (strstr(agios_error(), words) != NULL) return 1;
    fprintf(stderr, "\"%s\" is not in \"%s\"\n", words, agios_error());
    return 0;
}

/* The program: requests by identifier, and what happened to them. */
static struct request {
    char file[32];
    int32_t type, queue;
    int64_t offset, len;
} requests[MOST];
static atomic_uchar called[MOST];
static int64_t order[MOST];
static atomic_int calls, lists;
static atomic_int release_at_once = 1;

static void release(int64_t id) {
    struct request *r = &requests[id];
    CHECK(agios_release_request(r->file, r->type, r->len, r->offset));
}

static void *run_one(int64_t id) {
    CHECK(id >= 0 && id < MOST && atomic_fetch_add(&called[id], 1) == 0);
    order[calls] = id;
    atomic_fetch_add(&calls, 1);
    if (release_at_once) release(id);
    return NULL;
}

static void *run_many(int64_t *ids, int32_t count) {
    CHECK(count > 1 && count <= 16);
    atomic_fetch_add(&lists, 1);
    for (int32_t i = 0; i < count; i++) run_one(ids[i]);
    return NULL;
}

static void reset(void) {
    memset(requests, 0, sizeof requests);
    for (int i = 0; i < MOST; i++) called[i] = 0;
    calls = lists = 0;
    release_at_once = 1;
}

static bool add(int64_t id, int file, int32_t type, int64_t offset, int32_t queue) {
    struct request *r = &requests[id];
    snprintf(r->file, sizeof r->file, "file.%d", file);
    r->type = type;
    r->offset = offset;
    r->len = 4096;
    r->queue = queue;
    return agios_add_request(r->file, type, offset, r->len, id, queue);
}

static void wait_for_calls(int count) {
    /* A minute: under valgrind, on a busy machine, requests are slow. */
    for (int i = 0; i < 60000 && calls < count; i++) sleep_ms(1);
    CHECK(calls == count);
}

static void start(const char *algorithm, const char *more, int32_t queues) {
    char settings[1024];
    snprintf(settings, sizeof settings, "default_algorithm = \"%s\" ;\n%s", algorithm, more);
    CHECK(agios_init(run_one, run_many, config(settings), queues));
}

struct adder {
    int first, count, step;
};

static void *adds(void *context) {
    struct adder *adder = context;
    uint64_t random = (uint64_t)adder->first;
    for (int i = 0, id = adder->first; i < adder->count; i++, id += adder->step) {
        int sequential = random_of(&random) % 4 == 0;
        int64_t offset = sequential ? id * 4096 : (int64_t)(random_of(&random) % 100000) * 4096;
        int32_t type = random_of(&random) % 4 == 0 ? RT_WRITE : RT_READ;
        CHECK(add(id, id % 3, type, offset, (int32_t)(random_of(&random) % 4)));
    }
    return NULL;
}

static void add_from_threads(int count) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    struct adder adders[THREADS];
    for (int i = 0; i < THREADS; i++) {
        adders[i] = (struct adder){i, count / THREADS, THREADS};
        CHECK(pthread_create(&threads[i], NULL, adds, &adders[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void every_algorithm_serves(int count) {
    char weights[4200], line[4400];
    snprintf(weights, sizeof weights, "%s/weights", folder);
    FILE *file = fopen(weights, "w");
    CHECK(file != NULL && fputs("65536 4096\n4096 1\n", file) >= 0 && fclose(file) == 0);
    snprintf(line, sizeof line, "wfq_conf = \"%s\"", weights);
    for (int32_t i = 0; i < IO_SCHEDULER_COUNT; i++) {
        int32_t number;
        reset();
        CHECK(get_algorithm_from_string(get_algorithm_name_from_index(i), &number) && number == i);
        start(get_algorithm_name_from_index(i), line, 4);
        CHECK(config_agios_default_algorithm == i);
        add_from_threads(count);
        wait_for_calls(count);
        agios_exit();
    }
    CHECK(get_algorithm_name_from_index(IO_SCHEDULER_COUNT) == NULL);
    CHECK(get_algorithm_name_from_index(-1) == NULL);
}

/* (1) Its time windows do not order by application; the output is in order of arrival. */
static void windows_order_by_application(void) {
    reset();
    release_at_once = 0;
    start("SW", "SW_window = 3600000 depth = 1", 8);
    static const int32_t apps[] = {7, 3, 5, 0, 6, 2, 4, 1};
    for (int i = 0; i < 8; i++) CHECK(add(i, i, RT_READ, 0, apps[i]));
    for (int i = 1; i <= 8; i++) {
        wait_for_calls(i);
        release(order[i - 1]);
    }
    /* The first may have been dispatched before the others came. */
    for (int i = 2; i < 8; i++)
        CHECK(requests[order[i - 1]].queue < requests[order[i]].queue);
    agios_exit();
}

/* (2) A start-up race hangs those who add at once, for ever. */
static void adders_at_the_start_do_not_hang(int times) {
    for (int i = 0; i < times; i++) {
        reset();
        CHECK(agios_init(run_one, NULL, config("default_algorithm = \"NOOP\""), 0));
        add_from_threads(40);
        wait_for_calls(40);
        CHECK(lists == 0);
        agios_exit();
    }
}

/* (3) A missing file of weights crashes; so do missing settings, and assertions on wrong ones. */
static void wrong_configurations_are_told(void) {
    static const char *const wrong[][2] = {
        {"default_algorithm = \"WFQ\" wfq_conf = \"/nowhere/weights\"", "/nowhere/weights: No such"},
        {"default_algorithm = \"WFQ\"", "needs wfq_conf"},
        {"default_algorithm = \"EDF\"", "agios.conf:4: default_algorithm = \"EDF\" is not one of"},
        {"SW_window = -1", "agios.conf:4: SW_window = -1 is not"},
        {"waiting_time = -1", "agios.conf:4: waiting_time = -1 is not"},
        {"\n\ntrace = ", "agios.conf:7: expected a value"},
        {"default_algorithm = \"NOOP\" trace = true trace_file_prefix = \"/nowhere/t\" "
         "trace_file_sufix = \"out\"",
         "/nowhere/t.1.out: No such"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK(!agios_init(run_one, run_many, config(wrong[i][0]), 2));
        CHECK(said(wrong[i][1]));
    }
    CHECK(!agios_init(run_one, run_many, "/nowhere/agios.conf", 0));
    CHECK(said("/nowhere/agios.conf: No such"));
    CHECK(!agios_init(run_one, run_many, "/dev/zero", 0) && said("/dev/zero: is not a file"));
    CHECK(!agios_init(NULL, run_many, NULL, 0) && said("is NULL"));
    CHECK(!agios_init(run_one, NULL, config(""), -1) && said("max_queue_id = -1"));
}

/* (4) Callbacks are skipped after a stop; requests are lost when the policy changes. */
static void a_change_of_policy_loses_nothing(int count) {
    reset();
    start("NOOP", "depth = 8", 4);
    pthread_t adder;
    struct adder all = {0, count, 1};
    CHECK(pthread_create(&adder, NULL, adds, &all) == 0);
    for (int32_t i = 0; calls < count && i < 2000; i++) {
        const char *name = get_algorithm_name_from_index(i % IO_SCHEDULER_COUNT);
        CHECK(agios_set_algorithm(name));
        sleep_ms(1);
    }
    CHECK(pthread_join(adder, NULL) == 0);
    CHECK(!agios_set_algorithm("EDF") && said("there is no algorithm \"EDF\""));
    wait_for_calls(count);
    agios_exit();
}

static void exit_calls_back_for_what_waits(void) {
    reset();
    start("NOOP", "depth = 2", 0);
    for (int i = 0; i < 1000; i++) CHECK(add(i, 0, RT_READ, i * 8192, 0));
    agios_exit();
    CHECK(calls == 1000);
    agios_exit();
    CHECK(said("agios_init was not called"));
    CHECK(!add(1000, 0, RT_READ, 0, 0));
    CHECK(!agios_release_request("file.0", RT_READ, 4096, 0));
}

/* (9) A queue id out of range crashes. Other wrong arguments, and requests that there are not. */
static void wrong_arguments_are_refused(void) {
    reset();
    release_at_once = 0;
    start("SW", "", 4);
    CHECK(!agios_init(run_one, NULL, NULL, 0) && said("called before"));
    CHECK(!add(0, 0, RT_READ, 0, 4) && said("queue_id = 4 is not from 0 to 3"));
    CHECK(!add(0, 0, RT_READ, 0, -1) && said("queue_id = -1"));
    CHECK(!add(0, 0, RT_READ, 0, INT32_MAX));
    CHECK(!add(0, 0, 2, 0, 0) && said("type = 2"));
    CHECK(!add(0, 0, RT_READ, -1, 0) && said("offset = -1"));
    CHECK(!agios_add_request(NULL, RT_READ, 0, 1, 0, 0) && said("file_id is NULL"));
    CHECK(!agios_add_request("f", RT_READ, 0, -1, 0, 0));
    CHECK(!agios_release_request("file.0", RT_READ, 4096, 0) && said("no such request"));
    CHECK(!agios_cancel_request("file.0", RT_READ, 4096, 0) && said("no such request"));
    CHECK(add(0, 0, RT_READ, 0, 3));
    wait_for_calls(1);
    CHECK(!agios_cancel_request("file.0", RT_READ, 4096, 0));
    CHECK(!agios_release_request("file.0", RT_WRITE, 4096, 0));
    CHECK(!agios_release_request("file.1", RT_READ, 4096, 0));
    release(0);
    CHECK(!agios_release_request("file.0", RT_READ, 4096, 0));
    agios_exit();
    CHECK(calls == 1);
}

/* (10) A producer that nobody holds back makes the queue grow without bound. */
static void a_full_queue_refuses(void) {
    reset();
    release_at_once = 0;
    start("NOOP", "depth = 1 queued_max = 100", 0);
    CHECK(add(0, 0, RT_READ, 0, 0));
    wait_for_calls(1);
    for (int i = 1; i <= 100; i++) CHECK(add(i, 0, RT_READ, i * 8192, 0));
    CHECK(!add(101, 0, RT_READ, 0, 0) && said("the queue is full"));
    CHECK(agios_cancel_request("file.0", RT_READ, 4096, 50 * 8192));
    CHECK(!agios_cancel_request("file.0", RT_READ, 4096, 50 * 8192));
    CHECK(add(101, 0, RT_READ, 101 * 8192, 0));
    release_at_once = 1;
    release(0);
    wait_for_calls(101);
    CHECK(!called[50]);
    agios_exit();
}

/* Requests that are alike in everything but their identifier. */
static void alike_requests_are_told_apart(void) {
    reset();
    release_at_once = 0;
    start("NOOP", "", 0);
    for (int i = 0; i < 10; i++) CHECK(add(i, 0, RT_READ, 0, 0));
    wait_for_calls(10);
    for (int i = 0; i < 10; i++) release(0);
    CHECK(!agios_release_request("file.0", RT_READ, 4096, 0));
    agios_exit();
}

static void touching_requests_come_as_a_list(void) {
    reset();
    release_at_once = 0;
    start("TO-agg", "depth = 1", 0);
    CHECK(add(0, 1, RT_READ, 0, 0));
    wait_for_calls(1);
    for (int i = 1; i <= 16; i++) CHECK(add(i, 0, RT_READ, i * 4096, 0));
    release_at_once = 1;
    release(0);
    wait_for_calls(17);
    CHECK(lists == 1);
    agios_exit();
}

static void a_trace_has_every_request(void) {
    char settings[4200], name[4200], line[256], first[256] = "";
    int lines = 0;
    snprintf(settings, sizeof settings,
             "trace = true ; trace_file_prefix = \"%s/t\" trace_file_sufix = \"out\"", folder);
    for (int round = 1; round <= 2; round++) {
        reset();
        start("NOOP", settings, 0);
        for (int i = 0; i < 500; i++) CHECK(add(i, 3, i % 2, i * 4096, 0));
        agios_exit();
        snprintf(name, sizeof name, "%s/t.%d.out", folder, round);
        CHECK(access(name, R_OK) == 0);
    }
    FILE *file = fopen(name, "r");
    while (fgets(line, sizeof line, file) != NULL)
        if (lines++ == 1) memcpy(first, line, sizeof first);
    fclose(file);
    CHECK(lines == 500);
    CHECK(strstr(first, "\tfile.3\tW\t4096\t4096\n") != NULL);
}

/* What the public AGIOS has no more: traces of earlier runs foretell which aggregations to wait for. */
static void traces_foretell(void) {
    char settings[4200], name[4200];
    snprintf(settings, sizeof settings,
             "predict = true trace_file_prefix = \"%s/t\" trace_file_sufix = \"out\"", folder);
    reset();
    start("aIOLi", settings, 0);
    for (int i = 0; i < 500; i++) CHECK(add(i, 3, i % 2, i * 4096, 0));
    wait_for_calls(500);
    CHECK(agios_set_algorithm("MLF") && agios_set_algorithm("aIOLi"));
    agios_exit();
    snprintf(name, sizeof name, "%s/t.2.out", folder);
    FILE *file = fopen(name, "a");
    CHECK(file != NULL && fputs("x\n", file) >= 0 && fclose(file) == 0);
    char text[5000];
    snprintf(text, sizeof text, "default_algorithm = \"aIOLi\" %s", settings);
    CHECK(!agios_init(run_one, NULL, config(text), 0) && said("t.2.out:501: not nanoseconds"));
}

/* Its thread wakes up all the time, and burns 0.7 of a core when there is nothing to do. */
static void idleness_costs_nothing(void) {
    static const char *const algorithms[] = {"NOOP", "SW", "TWINS", "aIOLi", "MLF"};
    enum { COUNT = sizeof algorithms / sizeof *algorithms };
    for (int i = 0; i < COUNT; i++) {
        reset();
        start(algorithms[i], "", 4);
        CHECK(add(0, 0, RT_READ, 0, 0));
        wait_for_calls(1);
        uint64_t before = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        sleep_ms(i == 0 ? 1000 : 200);
        uint64_t spent = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - before;
        if (i == 0) printf("idle for 1 s: %llu us of processor time\n", (unsigned long long)spent / 1000);
        CHECK(spent < 5000000);
        agios_exit();
    }
}

/* Names of files are bytes. */
static void a_trace_keeps_names_as_they_are(void) {
    char settings[4200], name[4200], text[256] = "";
    char bytes[] = "\xff\xfe\t.dat", lines[] = "a\nb";
    snprintf(settings, sizeof settings,
             "trace = true ; trace_file_prefix = \"%s/n\" trace_file_sufix = \"out\"", folder);
    reset();
    release_at_once = 0;
    start("NOOP", settings, 0);
    CHECK(agios_add_request(lines, RT_READ, 0, 7, 0, 0));
    CHECK(agios_add_request(bytes, RT_READ, 0, 7, 1, 0));
    wait_for_calls(2);
    CHECK(agios_release_request(lines, RT_READ, 7, 0));
    CHECK(agios_release_request(bytes, RT_READ, 7, 0));
    agios_exit();
    snprintf(name, sizeof name, "%s/n.1.out", folder);
    FILE *file = fopen(name, "r");
    CHECK(file != NULL);
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    /* One line: what has no line of its own is not there, and does not break what is. */
    CHECK(got > 0 && strchr(text, '\n') == text + got - 1);
    CHECK(strstr(text, "\t\xff\xfe\t.dat\tR\t0\t7\n") != NULL);
    snprintf(settings, sizeof settings,
             "predict = true ; trace_file_prefix = \"%s/n\" trace_file_sufix = \"out\"", folder);
    start("aIOLi", settings, 0);
    agios_exit();
}

static void *exits_inside(int64_t id) {
    agios_exit();
    return run_one(id);
}

static void an_exit_from_a_callback_is_refused(void) {
    reset();
    CHECK(agios_init(exits_inside, NULL, config("default_algorithm = \"NOOP\""), 0));
    CHECK(add(0, 0, RT_READ, 0, 0));
    wait_for_calls(1);
    agios_exit();
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    folder = argv[1];
    int count = argc > 2 ? atoi(argv[2]) : 40000;
    every_algorithm_serves(count);
    windows_order_by_application();
    adders_at_the_start_do_not_hang(count / 200);
    wrong_configurations_are_told();
    a_change_of_policy_loses_nothing(count);
    exit_calls_back_for_what_waits();
    wrong_arguments_are_refused();
    a_full_queue_refuses();
    alike_requests_are_told_apart();
    touching_requests_come_as_a_list();
    a_trace_has_every_request();
    traces_foretell();
    idleness_costs_nothing();
    a_trace_keeps_names_as_they_are();
    an_exit_from_a_callback_is_refused();
    puts("agios: ok");
    return 0;
}
