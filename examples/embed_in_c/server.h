/* The parts of the server: connections read requests, the scheduler orders them, the pool performs
 * them. One job is in one place at a time: with the scheduler, with the pool, or gone. */
#ifndef SERVER_H
#define SERVER_H

#include "protocol.h"
#include <pthread.h>
#include <stdatomic.h>
#include <tidegate_sched.h>

enum { FILES_MAX = 64, CONNECTIONS_MAX = 64 };

/* An open file. The last job on it closes it. */
struct file {
    int fd;
    uint64_t id; /* its inode, so that two names of one file are one file to the scheduler */
    atomic_int uses;
};

/* A client. Its own thread reads its requests. */
struct connection {
    int fd;
    pthread_t reader;
    atomic_int uses;         /* the reader, and each of its jobs */
    atomic_int ended;        /* the reader has ended, and can be joined */
    pthread_mutex_t sending; /* a reply goes out whole */
    uint64_t app;
    struct file *files[FILES_MAX];
    pthread_mutex_t jobs_lock;
    struct job *jobs; /* those with scheduler or pool */
};

/* A read or a write on its way. Its address is its id for the scheduler. */
struct job {
    struct connection *connection;
    struct file *file;
    struct request request;
    char *bytes;
    struct job *prev, *next; /* among the jobs of its connection */
    struct job *then;        /* the next of its batch, or of the queue of batches */
    struct job *batch;       /* for the first of a batch: the next batch */
};

extern tg_sched *scheduler;

/* pool.c */
int pool_start(int threads);
/* Performs what was handed over, then ends the threads. */
void pool_stop(void);
/* The scheduler's callbacks. */
void pool_run(void *context, const tg_sched_entry *entry);
void pool_run_list(void *context, const tg_sched_entry *entries, size_t count);

/* connection.c */
int connection_start(int fd, int folder);
/* Ends the reading of all connections; what was read is still performed and answered. */
void connections_shut(void);
/* Waits for their readers, and frees them. */
void connections_join(void);
void reply_to(struct connection *connection, uint64_t tag, struct reply reply, const void *bytes);
/* The job is done, or was cancelled: forgets it. */
void job_end(struct job *job);
/* A place in the scheduler's queue is free again. */
void room_again(void);
/* How often a reader had to wait for a place in the queue. */
extern atomic_ullong full_count;

#endif
