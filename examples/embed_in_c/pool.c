/* The threads that perform batches. The scheduler calls back from its own thread; the callback only
 * hands the batch over, so the next decision is not kept waiting by a disk. */
#include "server.h"
#include <stdlib.h>

static pthread_t *threads;
static int threads_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct job *first, **last = &first;
static int ends;

/* Performs one job, answers its client, and tells the scheduler. */
static void perform(struct job *job) {
    struct request *request = &job->request;
    struct reply reply = {0};
    ssize_t moved;
    do {
        moved = request->op == OP_READ
                    ? pread(job->file->fd, job->bytes, request->len, (off_t)request->offset)
                    : pwrite(job->file->fd, job->bytes, request->len, (off_t)request->offset);
    } while (moved < 0 && errno == EINTR);
    if (moved < 0)
        reply.status = errno;
    else if (request->op == OP_READ)
        reply.len = (uint32_t)moved;
    else
        reply.size = (uint64_t)moved;
    /* First the scheduler, which can send the next one, then the client. */
    tg_sched_complete(scheduler, 0, (uint64_t)(uintptr_t)job);
    room_again();
    reply_to(job->connection, request->tag, reply, job->bytes);
    job_end(job);
}

static void *work(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (first == NULL && !ends) pthread_cond_wait(&changed, &lock);
        if (first == NULL) break;
        struct job *batch = first;
        first = batch->batch;
        if (first == NULL) last = &first;
        pthread_mutex_unlock(&lock);
        while (batch != NULL) {
            struct job *job = batch;
            batch = job->then;
            perform(job);
        }
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

void pool_run_list(void *context, const tg_sched_entry *entries, size_t count) {
    (void)context;
    struct job *head = NULL, **tail = &head;
    for (size_t i = 0; i < count; i++) {
        *tail = (struct job *)(uintptr_t)entries[i].id;
        tail = &(*tail)->then;
    }
    *tail = NULL;
    head->batch = NULL;
    pthread_mutex_lock(&lock);
    *last = head;
    last = &head->batch;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

void pool_run(void *context, const tg_sched_entry *entry) { pool_run_list(context, entry, 1); }

int pool_start(int count) {
    threads = calloc((size_t)count, sizeof *threads);
    if (threads == NULL) return 0;
    for (; threads_count < count; threads_count++)
        if (pthread_create(&threads[threads_count], NULL, work, NULL) != 0) return 0;
    return 1;
}

void pool_stop(void) {
    pthread_mutex_lock(&lock);
    ends = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < threads_count; i++) pthread_join(threads[i], NULL);
    free(threads);
}
