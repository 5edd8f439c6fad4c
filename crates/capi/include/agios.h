/* The interfaces of AGIOS (github.com/francielizanon/agios) over Tidegate's scheduler: programs
 * written for AGIOS compile with this header and link with -lagios, unchanged.
 *
 * AGIOS has changed its calls. AGIOS_INTERFACE, defined before this header (-DAGIOS_INTERFACE=2020),
 * says for which of them the program was written:
 *   2019, or none: the public library of today. Results are bool, one pair of callbacks for all.
 *   2020: the development branch, which GekkoFWD uses: each request may bring its own callback.
 *   2018: from 2016 to 2018. struct client, results are int, data is void *; with ORANGEFS_AGIOS
 *     defined it is int64_t. 2015: the same, data is int.
 *
 * Once agios_init has succeeded, a thread of the library calls back for the requests that were
 * added, in the order of the algorithm that the configuration file names. The program performs each
 * and releases it. docs/embedding.md says what differs from AGIOS.
 *
 * All functions may be called from any thread, and from inside of a callback except for agios_exit.
 * agios_error says why one has failed. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef AGIOS_INTERFACE
#define AGIOS_INTERFACE 2019
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Types of a request. */
enum {
    RT_READ = 0,
    RT_WRITE = 1,
};

#if AGIOS_INTERFACE == 2019 || AGIOS_INTERFACE == 2020

#if AGIOS_INTERFACE == 2020
#define agios_init agios_2020_init
#define agios_add_request agios_2020_add_request
#endif

/* Starts the library.
 * process_request_user: called with the identifier of a request that is to be performed. Needed; not
 *   in the interface of 2020, where without it every request must bring its own callback.
 * process_requests_user: called with the identifiers of several requests of one type that follow
 *   each other in one file; may be NULL, then process_request_user is called for each. Requests that
 *   bring callbacks are called one by one.
 * config_file: path of the configuration; NULL or "" for /etc/agios.conf, which need not exist.
 *   Settings of it that have no effect are named on standard error.
 * max_queue_id: how many numbers of queues (applications, servers) are in use: queue_id is below it.
 *   0: any queue_id is taken.
 * False, with a line on standard error, for a configuration that is wrong or cannot be read, and if
 * the library was started already. */
bool agios_init(void *process_request_user(int64_t req_id),
                void *process_requests_user(int64_t *reqs, int32_t reqnb), char *config_file,
                int32_t max_queue_id);

/* Hands in a request: len bytes at offset of the file called file_id. The callback gets
 * `identifier`. queue_id is the application for SW, and the server or queue for TWINS and WFQ.
 * False if the queue is full (queued_max of the configuration, 1048576), or an argument is wrong. */
#if AGIOS_INTERFACE == 2020
/* callback: called for this request, with `identifier` and user_info, instead of
 *   process_request_user; may be NULL. */
bool agios_add_request(char *file_id, int32_t type, int64_t offset, int64_t len, int64_t identifier,
                       int32_t queue_id, void *callback(int64_t req_id, void *user_info),
                       void *user_info);
#else
bool agios_add_request(char *file_id, int32_t type, int64_t offset, int64_t len, int64_t identifier,
                       int32_t queue_id);
#endif

/* A request that a callback was given has been performed. Mind the order of len and offset. False if
 * there is none. */
bool agios_release_request(char *file_id, int32_t type, int64_t len, int64_t offset);

/* A request that no callback was given yet is not wanted any more. False if there is none. */
bool agios_cancel_request(char *file_id, int32_t type, int64_t len, int64_t offset);

#if AGIOS_INTERFACE == 2020
/* What requests were like since the last call. Times are ns, sizes and distances bytes. */
struct agios_metrics_t {
    int64_t total_reqnb;
    int64_t reads;
    int64_t writes;
    int64_t avg_time_between_requests;
    int64_t avg_request_size;
    int64_t max_request_size;
    int64_t filenb;              /* Files; at most 65536 are told apart. */
    int64_t avg_offset_distance; /* From the end of one request of a file to the next one's begin. */
    int64_t served_bytes;        /* Of the requests that were released. */
};

/* Returns them, to be freed by free(), and begins anew. NULL before agios_init and after agios_exit. */
struct agios_metrics_t *agios_get_metrics_and_reset(void);
#endif

#elif AGIOS_INTERFACE == 2018 || AGIOS_INTERFACE == 2015

#if defined(ORANGEFS_AGIOS)
typedef int64_t agios_data;
#define AGIOS_DATA_(data) ((int64_t)(data))
#elif AGIOS_INTERFACE == 2015
typedef int agios_data;
#define AGIOS_DATA_(data) ((int64_t)(data))
#else
typedef void *agios_data;
#define AGIOS_DATA_(data) ((int64_t)(intptr_t)(data))
#endif

/* The program's callbacks: for one request, with its data, which is needed; and for several, which
 * may be NULL. is_dev_idle is never called. */
struct client {
    void (*process_request)(agios_data data);
    void (*process_requests)(agios_data *data, int count);
    int (*is_dev_idle)(void);
};

/* int agios_init(struct client *clnt, char *config_file, int max_app_id);
 * 0, or -EINVAL with a line on standard error. max_app_id: the largest app_id of a request; 0, or
 * left out: any. The client may be forgotten after it. config_file: as above. */
#define agios_init(clnt, ...) \
    agios_2018_init(clnt, AGIOS_TWO_(__VA_ARGS__, 0, 0), sizeof(agios_data))

/* int agios_add_request(char *file_id, int type, long offset, long len, agios_data data,
 *                       struct client *clnt, int app_id);
 * 0, -ENOMEM if the queue is full, or -EINVAL. clnt means nothing; app_id may be left out. */
#define agios_add_request(file_id, type, offset, len, data, ...)           \
    agios_2018_add_request(file_id, type, offset, len, AGIOS_DATA_(data), \
                           AGIOS_TWO_(__VA_ARGS__, 0, 0))

/* int agios_release_request(char *file_id, int type, long len, long offset);
 * 1, or 0 if there is none. Some programs say more behind the offset, which means nothing. */
#define agios_release_request(file_id, type, len, ...) \
    agios_2018_release_request(file_id, type, len, AGIOS_ONE_(__VA_ARGS__, 0))

/* 1, or 0 if none waits. */
#define agios_cancel_request agios_2018_cancel_request

#define AGIOS_ONE_(one, ...) one
#define AGIOS_TWO_(one, two, ...) one, two

int agios_2018_init(struct client *clnt, char *config_file, int max_app_id, size_t data_size);
int agios_2018_add_request(char *file_id, int type, int64_t offset, int64_t len, int64_t data,
                           struct client *clnt, int app_id);
int agios_2018_release_request(char *file_id, int type, int64_t len, int64_t offset);
int agios_2018_cancel_request(char *file_id, int type, int64_t len, int64_t offset);

/* Writes what requests were like since the last reset to a file: a name and a number a line. */
void agios_print_stats_file(char *filename);
void agios_reset_stats(void);

/* These mean nothing here; the first says so on standard error, once. It returns 1. */
int agios_set_stripe_size(char *file_id, int stripe_size);
void agios_wait_predict_init(void);

#else
#error "AGIOS_INTERFACE is none of 2015, 2018, 2019 and 2020"
#endif

/* Takes no more requests, calls back for all that wait, and ends the thread. Requests that are not
 * released may hold back others that overlap: what still waits after 10 s is dropped, and called
 * back with an error (agios_callback_error). After it agios_init can be called again. */
void agios_exit(void);

/* The rest is not in AGIOS. */

/* Inside of a callback: 0, or ECANCELED if agios_exit drops the request, which must then neither be
 * performed nor released. A program that does not ask performs it beside the request that it
 * overlaps. */
int agios_callback_error(void);

/* Changes the algorithm while requests wait; none is lost. */
bool agios_set_algorithm(const char *name);

/* Why the last failed call of this thread failed. Never NULL; valid until this thread asks again. */
const char *agios_error(void);

#ifdef __cplusplus
}
#endif
