/* Clients: a thread for each reads its requests. Names are looked up on the spot; reads and writes
 * go to the scheduler. A full queue makes the thread wait, so that nothing more is read from its
 * socket, and the client is held back by its own kernel. */
#include "server.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>

/* How long a client may leave an answer in its socket. */
static const struct timeval send_time_max = {5, 0};
static struct connection *connections[CONNECTIONS_MAX];
static int folder_fd;
static pthread_mutex_t room_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t room_changed = PTHREAD_COND_INITIALIZER;
static uint64_t room_events;
atomic_ullong full_count;

static void file_end(struct file *file) {
    if (file == NULL || atomic_fetch_sub(&file->uses, 1) > 1) return;
    close(file->fd);
    free(file);
}

static void connection_end(struct connection *connection) {
    if (atomic_fetch_sub(&connection->uses, 1) > 1) return;
    close(connection->fd);
    pthread_mutex_destroy(&connection->sending);
    pthread_mutex_destroy(&connection->jobs_lock);
    free(connection);
}

void reply_to(struct connection *connection, uint64_t tag, struct reply reply, const void *bytes) {
    reply.magic = MAGIC;
    reply.tag = tag;
    pthread_mutex_lock(&connection->sending);
    int sent = send_all(connection->fd, &reply, sizeof reply) &&
               (reply.len == 0 || send_all(connection->fd, bytes, reply.len));
    /* Gone, or it takes no answers: a thread of the pool must not wait for it again. */
    if (!sent) shutdown(connection->fd, SHUT_RDWR);
    pthread_mutex_unlock(&connection->sending);
}

static void reply_status(struct connection *connection, const struct request *request, int status) {
    struct reply reply = {.status = status};
    reply_to(connection, request->tag, reply, NULL);
}

void job_end(struct job *job) {
    struct connection *connection = job->connection;
    pthread_mutex_lock(&connection->jobs_lock);
    if (job->next != NULL) job->next->prev = job->prev;
    if (job->prev != NULL) job->prev->next = job->next;
    else connection->jobs = job->next;
    pthread_mutex_unlock(&connection->jobs_lock);
    file_end(job->file);
    free(job->bytes);
    free(job);
    connection_end(connection);
}

void room_again(void) {
    pthread_mutex_lock(&room_lock);
    room_events++;
    pthread_cond_broadcast(&room_changed);
    pthread_mutex_unlock(&room_lock);
}

/* Hands a job to the scheduler, and waits while its queue is full. */
static int submit(struct job *job) {
    tg_sched_request request = TG_SCHED_REQUEST_INIT;
    request.id = (uint64_t)(uintptr_t)job;
    request.app = job->connection->app;
    request.file = job->file->id;
    request.offset = job->request.offset;
    request.len = job->request.len;
    request.direction = job->request.op == OP_WRITE ? TG_SCHED_WRITE : TG_SCHED_READ;
    request.stamp_ns = tg_sched_clock_ns() + tg_sched_wall_offset_ns();
    for (int waited = 0;; waited = 1) {
        pthread_mutex_lock(&room_lock);
        uint64_t events = room_events;
        pthread_mutex_unlock(&room_lock);
        int code = tg_sched_submit(scheduler, 0, &request);
        if (code != TG_SCHED_E_FULL) {
            if (code < 0) fprintf(stderr, "server: %s\n", tg_sched_error(scheduler));
            return code;
        }
        if (!waited) atomic_fetch_add(&full_count, 1);
        pthread_mutex_lock(&room_lock);
        while (events == room_events) pthread_cond_wait(&room_changed, &room_lock);
        pthread_mutex_unlock(&room_lock);
    }
}

/* A read or a write: it belongs to scheduler and pool from here on. */
static int move_bytes(struct connection *connection, const struct request *request, char **payload) {
    struct file *file = request->file < FILES_MAX ? connection->files[request->file] : NULL;
    if (file == NULL) return EBADF;
    if (request->len > LEN_MAX || request->offset > INT64_MAX - LEN_MAX) return EINVAL;
    struct job *job = calloc(1, sizeof *job);
    if (job == NULL) return ENOMEM;
    job->bytes = *payload != NULL ? *payload : malloc(request->len ? request->len : 1);
    if (job->bytes == NULL) {
        free(job);
        return ENOMEM;
    }
    *payload = NULL;
    job->connection = connection;
    job->file = file;
    job->request = *request;
    atomic_fetch_add(&file->uses, 1);
    atomic_fetch_add(&connection->uses, 1);
    pthread_mutex_lock(&connection->jobs_lock);
    job->next = connection->jobs;
    if (job->next != NULL) job->next->prev = job;
    connection->jobs = job;
    pthread_mutex_unlock(&connection->jobs_lock);
    if (submit(job) == 0) return 0;
    job_end(job);
    return EIO;
}

/* Opens a name of the folder. There are no folders in it, and nothing above it. */
static int open_file(struct connection *connection, const struct request *request, const char *name) {
    struct stat info;
    uint32_t place = 0;
    while (place < FILES_MAX && connection->files[place] != NULL) place++;
    if (place == FILES_MAX) return EMFILE;
    if (name == NULL || name[0] == 0 || name[0] == '.' || strchr(name, '/') != NULL) return EINVAL;
    struct file *file = calloc(1, sizeof *file);
    if (file == NULL) return ENOMEM;
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (request->offset == 1 ? O_CREAT | O_TRUNC : 0);
    file->fd = openat(folder_fd, name, flags, 0644);
    if (file->fd < 0 || fstat(file->fd, &info) != 0) {
        int status = errno;
        if (file->fd >= 0) close(file->fd);
        free(file);
        return status;
    }
    file->id = info.st_ino;
    atomic_init(&file->uses, 1);
    connection->files[place] = file;
    struct reply reply = {.file = place, .size = (uint64_t)info.st_size};
    reply_to(connection, request->tag, reply, NULL);
    return 0;
}

/* "window window_ms=250": another order, while requests wait. */
static int change_policy(const char *line) {
    tg_sched_options *options;
    char name[64] = "";
    int rest = 0;
    if (line == NULL || sscanf(line, "%63s%n", name, &rest) != 1) return EINVAL;
    if (tg_sched_options_new(name, &options) != 0) return EINVAL;
    extern const char *scheduler_options;
    int code = tg_sched_options_parse(options, scheduler_options);
    if (code == 0) code = tg_sched_options_parse(options, line + rest);
    if (code == 0) code = tg_sched_set_policy(scheduler, 0, options);
    if (code != 0) fprintf(stderr, "server: policy %s: %s\n", line, tg_sched_error(NULL));
    tg_sched_options_free(options);
    return code == 0 ? 0 : EINVAL;
}

static void tell_stats(struct connection *connection, const struct request *request) {
    tg_sched_statistics statistics = TG_SCHED_STATISTICS_INIT;
    char text[512], policy[64] = "";
    tg_sched_stats(scheduler, &statistics);
    tg_sched_policy(scheduler, policy, sizeof policy);
    int len = snprintf(text, sizeof text,
                       "policy %s\narrived %llu\nbatches %llu\ncompleted %llu\ncancelled %llu\n"
                       "queued %llu\nrunning %llu\nfull %llu\n",
                       policy, (unsigned long long)statistics.arrived,
                       (unsigned long long)statistics.batches,
                       (unsigned long long)statistics.completed,
                       (unsigned long long)statistics.cancelled,
                       (unsigned long long)statistics.queued,
                       (unsigned long long)statistics.running, (unsigned long long)full_count);
    struct reply reply = {.len = (uint32_t)len};
    reply_to(connection, request->tag, reply, text);
}

/* One request; answers it here unless it became a job. */
static void serve(struct connection *connection, const struct request *request, char **payload) {
    struct file **file = request->file < FILES_MAX ? &connection->files[request->file] : NULL;
    struct reply reply = {0};
    struct stat info;
    int status = 0;
    switch (request->op) {
    case OP_HELLO:
        connection->app = tg_sched_hash(*payload, request->len);
        break;
    case OP_OPEN:
        if ((status = open_file(connection, request, *payload)) == 0) return;
        break;
    case OP_READ:
    case OP_WRITE:
        if ((status = move_bytes(connection, request, payload)) == 0) return;
        break;
    case OP_STAT:
        if (file == NULL || *file == NULL) status = EBADF;
        else if (fstat((*file)->fd, &info) != 0) status = errno;
        else {
            reply.size = (uint64_t)info.st_size;
            reply_to(connection, request->tag, reply, NULL);
            return;
        }
        break;
    case OP_CLOSE:
        if (file == NULL || *file == NULL) status = EBADF;
        else {
            file_end(*file);
            *file = NULL;
        }
        break;
    case OP_POLICY: status = change_policy(*payload); break;
    case OP_STATS: tell_stats(connection, request); return;
    default: status = ENOSYS;
    }
    reply_status(connection, request, status);
}

/* Nobody waits for these any more. Those that run already end by themselves. */
static void cancel_jobs(struct connection *connection) {
    for (;;) {
        struct job *cancelled = NULL;
        pthread_mutex_lock(&connection->jobs_lock);
        for (struct job *job = connection->jobs; job != NULL && cancelled == NULL; job = job->next)
            /* Under this lock no job ends, so each id that is found is still that job's. */
            if (tg_sched_cancel(scheduler, 0, (uint64_t)(uintptr_t)job) == 1) cancelled = job;
        pthread_mutex_unlock(&connection->jobs_lock);
        if (cancelled == NULL) return;
        job_end(cancelled);
        room_again();
    }
}

static atomic_int shutting;

static void *read_requests(void *context) {
    struct connection *connection = context;
    struct request request;
    while (receive_all(connection->fd, &request, sizeof request)) {
        char *payload = NULL;
        int has_payload = request.op != OP_READ && request.len > 0;
        if (request.magic != MAGIC || request.len > LEN_MAX) break;
        if (has_payload) {
            payload = malloc((size_t)request.len + 1);
            if (payload == NULL || !receive_all(connection->fd, payload, request.len)) {
                free(payload);
                break;
            }
            payload[request.len] = 0;
        }
        serve(connection, &request, &payload);
        free(payload);
    }
    /* A client that left; not one whom the server tells to end. */
    if (!shutting) {
        cancel_jobs(connection);
        shutdown(connection->fd, SHUT_RDWR);
    }
    for (int i = 0; i < FILES_MAX; i++) file_end(connection->files[i]);
    atomic_store(&connection->ended, 1);
    return NULL;
}

int connection_start(int fd, int folder) {
    int place = 0;
    folder_fd = folder;
    for (; place < CONNECTIONS_MAX; place++) {
        struct connection *old = connections[place];
        if (old == NULL) break;
        if (atomic_load(&old->ended)) {
            pthread_join(old->reader, NULL);
            connection_end(old);
            break;
        }
    }
    if (place == CONNECTIONS_MAX) return 0;
    struct connection *connection = calloc(1, sizeof *connection);
    connections[place] = NULL;
    if (connection == NULL) return 0;
    connection->fd = fd;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &send_time_max, sizeof send_time_max);
    atomic_init(&connection->uses, 1);
    pthread_mutex_init(&connection->sending, NULL);
    pthread_mutex_init(&connection->jobs_lock, NULL);
    if (pthread_create(&connection->reader, NULL, read_requests, connection) != 0) {
        free(connection);
        return 0;
    }
    connections[place] = connection;
    return 1;
}

void connections_shut(void) {
    shutting = 1;
    for (int i = 0; i < CONNECTIONS_MAX; i++)
        if (connections[i] != NULL) shutdown(connections[i]->fd, SHUT_RD);
}

void connections_join(void) {
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        if (connections[i] == NULL) continue;
        pthread_join(connections[i]->reader, NULL);
        connection_end(connections[i]);
        connections[i] = NULL;
    }
}
