/* A small file server with Tidegate's scheduler in it: it serves the files of one folder over a
 * Unix socket.
 *
 * server SOCKET FOLDER [POLICY [OPTION=VALUE ...]]
 *
 * It prints `ready` when it can be asked, and ends with 0 on SIGTERM, when all that it has read is
 * done and answered. */
#include "server.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/un.h>

enum { THREADS = 4 };
static const uint64_t STOP_NS = 20000000000u;

tg_sched *scheduler;
/* What every policy is given: as many batches at once as there are threads. */
const char *scheduler_options = "depth=4 queued_max=256 merge=auto";

static int failed(const char *what) {
    fprintf(stderr, "server: %s: %s\n", what, strerror(errno));
    return 1;
}

static int scheduler_start(int count, char **words) {
    tg_sched_options *options;
    tg_sched_callbacks callbacks = TG_SCHED_CALLBACKS_INIT;
    callbacks.run = pool_run;
    callbacks.run_list = pool_run_list;
    if (tg_sched_options_new(count > 0 ? words[0] : "fifo", &options) != 0) return 0;
    int code = tg_sched_options_parse(options, scheduler_options);
    for (int i = 1; code == 0 && i < count; i++) code = tg_sched_options_parse(options, words[i]);
    if (code == 0) code = tg_sched_new(options, &scheduler);
    tg_sched_options_free(options);
    if (code == 0) code = tg_sched_start(scheduler, &callbacks);
    return code == 0;
}

static int listen_at(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 64) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Accepts clients until a signal says to end. */
static void serve(int listener, int signals, int folder) {
    struct pollfd watched[2] = {{listener, POLLIN, 0}, {signals, POLLIN, 0}};
    for (;;) {
        if (poll(watched, 2, -1) < 0 && errno != EINTR) return;
        if (watched[1].revents != 0) return;
        if (watched[0].revents == 0) continue;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0 && !connection_start(fd, folder)) close(fd);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: server SOCKET FOLDER [POLICY [OPTION=VALUE ...]]\n");
        return 2;
    }
    /* Blocked before the first thread is made, so that none of them is interrupted. */
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    int signals = signalfd(-1, &ends, SFD_CLOEXEC);
    int folder = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return failed(argv[2]);
    if (!scheduler_start(argc - 3, argv + 3)) {
        fprintf(stderr, "server: %s\n", tg_sched_error(NULL));
        return 2;
    }
    if (!pool_start(THREADS)) return failed("threads");
    int listener = listen_at(argv[1]);
    if (listener < 0) return failed(argv[1]);
    printf("ready\n");
    fflush(stdout);

    serve(listener, signals, folder);

    /* Nothing new comes; what has come is performed and answered; then the rest can go. */
    unlink(argv[1]);
    close(listener);
    connections_shut();
    int code = tg_sched_stop(scheduler, TG_SCHED_DRAIN, STOP_NS);
    if (code != 0) fprintf(stderr, "server: %s\n", tg_sched_error(scheduler));
    pool_stop();
    connections_join();
    tg_sched_free(scheduler);
    close(folder);
    close(signals);
    return code == 0 ? 0 : 1;
}
