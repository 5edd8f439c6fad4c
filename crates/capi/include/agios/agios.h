/* The interface of AGIOS (github.com/francielizanon/agios) over Tidegate's scheduler: programs
 * written for AGIOS compile with this header and link with -lagios, unchanged.
 *
 * Once agios_init has succeeded, a thread of the library calls back for the requests that were
 * added, in the order of the algorithm that the configuration file names. The program performs each
 * and releases it. docs/embedding.md says what differs from AGIOS.
 *
 * All functions may be called from any thread, and from inside of a callback except for agios_exit.
 * They return whether they succeeded; agios_error says why not.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Types of a request. */
enum {
    RT_READ = 0,
    RT_WRITE = 1,
};

/* Starts the library.
 * process_request_user: called with the identifier of a request that is to be performed. Needed.
 * process_requests_user: called with the identifiers of several requests of one type that follow
 *   each other in one file; may be NULL, then process_request_user is called for each.
 * config_file: path of the configuration; NULL or "" for /etc/agios.conf, which need not exist.
 * max_queue_id: how many numbers of queues (applications, servers) are in use: queue_id is below it.
 *   0: any queue_id is taken.
 * False, with a line on standard error, for a configuration that is wrong or cannot be read, and if
 * the library was started already. */
bool agios_init(void *process_request_user(int64_t req_id),
                void *process_requests_user(int64_t *reqs, int32_t reqnb), char *config_file,
                int32_t max_queue_id);

/* Takes no more requests, calls back for all that wait, and ends the thread. Requests that are not
 * released may hold back others that overlap; after 10 s without end the rest is cancelled. After
 * it agios_init can be called again. */
void agios_exit(void);

/* Hands in a request: len bytes at offset of the file called file_id. The callback gets
 * `identifier`. queue_id is the application for SW, and the server or queue for TWINS and WFQ.
 * False if the queue is full (queued_max of the configuration, 1048576), or an argument is wrong. */
bool agios_add_request(char *file_id, int32_t type, int64_t offset, int64_t len, int64_t identifier,
                       int32_t queue_id);

/* A request that a callback was given has been performed. Mind the order of len and offset. */
bool agios_release_request(char *file_id, int32_t type, int64_t len, int64_t offset);

/* A request that no callback was given yet is not wanted any more. False if there is none. */
bool agios_cancel_request(char *file_id, int32_t type, int64_t len, int64_t offset);

/* The rest is not in AGIOS. */

/* Changes the algorithm while requests wait; none is lost. */
bool agios_set_algorithm(const char *name);

/* Why the last failed call of this thread failed. Never NULL; valid until this thread asks again. */
const char *agios_error(void);

#ifdef __cplusplus
}
#endif
