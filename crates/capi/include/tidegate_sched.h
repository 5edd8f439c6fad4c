/* Tidegate's scheduler for C: decides which of a file server's waiting requests goes next.
 *
 * The host hands in requests (tg_sched_submit), asks what to do (tg_sched_poll), performs it, and
 * says when each request is done (tg_sched_complete). The library does no I/O, has no clock and no
 * thread of its own, unless the host asks for one (tg_sched_start). The same calls with the same
 * times give the same answers, so a simulator and a server can run the same code.
 *
 * Times are nanoseconds (_ns) of a clock of the host's choice that does not go back, such as
 * CLOCK_MONOTONIC (tg_sched_clock_ns); if it does go back, it counts as standing still. Offsets and
 * lengths are bytes. Ids of requests are the host's; a pointer to its own request will do.
 *
 * Answers. Every function that returns int returns 0 or more on success, and one of the negative
 * codes below otherwise; then nothing has changed unless it says so, and tg_sched_error() has a
 * text that says what was wrong. Handles are looked up and never followed: NULL, a freed handle and
 * a wild pointer are TG_SCHED_E_HANDLE. Other pointers must be what the function says; NULL is
 * refused, the rest cannot be checked.
 *
 * Threads. Every function may be called from any thread at any time, on one handle by many threads
 * too: calls on one handle take their turns. A handle made with the option single_thread=true
 * leaves out that lock, and the host promises that calls on it come one at a time. A call that finds
 * another one inside is refused with TG_SCHED_E_BUSY and waits for nothing; two that begin at the
 * very same moment are not noticed, and may do anything. No function may be called from a signal handler, or in a fork child on a
 * handle of its parent.
 *
 * Memory. What the library allocates it frees: a handle with tg_sched_free, options with
 * tg_sched_options_free. It keeps no pointer of the host's but those in tg_sched_callbacks. An
 * allocation that the system refuses ends the program.
 *
 * An error inside the library makes that handle unusable (TG_SCHED_E_POISONED), and nothing else.
 *
 * Link with `pkg-config --cflags --libs tidegate_sched`. docs/embedding.md has an example.
 */
#ifndef TIDEGATE_SCHED_H
#define TIDEGATE_SCHED_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; tg_sched_version() is that of the library. */
#define TG_SCHED_VERSION_MAJOR 0
#define TG_SCHED_VERSION_MINOR 1

/* A scheduler, and options for one. */
typedef struct tg_sched tg_sched;
typedef struct tg_sched_options tg_sched_options;

enum {
    TG_SCHED_OK = 0,
    TG_SCHED_E_HANDLE = -1,      /* not a live handle: NULL, freed, or wild */
    TG_SCHED_E_ARGUMENT = -2,    /* an argument is NULL or makes no sense */
    TG_SCHED_E_OPTION = -3,      /* an option or its value, or the name of a policy */
    TG_SCHED_E_FULL = -4,        /* queued_max requests wait: push back on the clients */
    TG_SCHED_E_ID_IN_USE = -5,   /* a request with this id has not been completed yet */
    TG_SCHED_E_UNKNOWN_ID = -6,  /* there is no such request; completed twice, for example */
    TG_SCHED_E_NOT_RUNNING = -7, /* it was never dispatched */
    TG_SCHED_E_ROOM = -8,        /* the batch does not fit into the array; nothing is lost */
    TG_SCHED_E_BUSY = -9,        /* another call is on this single_thread handle */
    TG_SCHED_E_STATE = -10,      /* started, not started, being stopped: the text says which */
    TG_SCHED_E_SYSTEM = -11,     /* no thread to be had, or 4096 schedulers are alive */
    TG_SCHED_E_POISONED = -12,   /* an earlier call hit an error inside the library */
    TG_SCHED_E_TIMEOUT = -13     /* tg_sched_stop: the time is over */
};

/* Answers of tg_sched_poll. */
enum {
    TG_SCHED_DISPATCH = 1, /* perform the batch */
    TG_SCHED_WAIT = 2,     /* nothing to do before *wake_ns, unless a call comes first */
    TG_SCHED_IDLE = 3      /* nothing to do until a call comes */
};

/* Directions of a request. */
enum { TG_SCHED_READ = 0, TG_SCHED_WRITE = 1 };

/* Flags of a request: it never shares a batch with others. */
enum { TG_SCHED_ALONE = 1 };

/* How tg_sched_stop ends. */
enum { TG_SCHED_DRAIN = 1, TG_SCHED_CANCEL = 2 };

/* One access of one file. Begin with TG_SCHED_REQUEST_INIT and set what you know: the first block
 * is needed, the rest are hints, for which 0 means "not known". The structure grows at its end;
 * `size` tells the library which one you were compiled with. */
typedef struct tg_sched_request {
    size_t size;           /* sizeof(tg_sched_request) */
    uint64_t id;           /* yours; unique among the requests not completed or cancelled */
    uint64_t app;          /* the application that asks: tg_sched_hash of its name, or any number */
    uint64_t file;         /* the file: its inode, tg_sched_hash of its name, or any number */
    uint64_t offset;       /* first byte */
    uint64_t len;          /* bytes; UINT64_MAX from 0 is the file as a whole (truncate) */

    uint64_t stamp_ns;     /* the client's wall clock when the operation began, since 1970 */
    uint64_t epoch_seen;   /* the highest tg_sched_epoch that the client has heard of */
    uint64_t operation;    /* the number of the operation within its client */
    uint64_t operation_bytes;      /* all bytes of the operation, over all servers */
    uint64_t operation_bytes_max;  /* the most bytes of the operation on one server */
    uint64_t deadline_ns;  /* when it should be done, by the clock of now_ns; 0: no deadline */
    uint64_t charged_elsewhere_ns; /* device time charged by other servers since the last one */
    uint32_t shuffle_us;      /* work after the request before the operation is done, microseconds */
    uint32_t direction;    /* TG_SCHED_READ or TG_SCHED_WRITE */
    uint32_t queue;        /* the data server or other queue of yours: for twins, wfq by=queue */
    uint32_t flags;        /* TG_SCHED_ALONE or 0 */
    uint64_t bytes_elsewhere;      /* bytes served by other servers since the last one */
    uint32_t operations_elsewhere; /* requests served by other servers since the last one */
    uint32_t away_ms;      /* milliseconds since the client's last one here */
    uint64_t charged_here_ns;      /* device time charged by this server in that time; with it what
                                    * others charged is a ratio, so fill both or none */
    uint32_t shuffle_max_us;  /* the longest shuffle of the operation's requests on any server; for hio */
    uint32_t shuffle_rank;    /* how many aggregators of the operation have a longer shuffle */
} tg_sched_request;

#define TG_SCHED_REQUEST_INIT { sizeof(tg_sched_request), \
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* One request of a batch, as it was submitted. This structure never grows. */
typedef struct tg_sched_entry {
    uint64_t id;
    uint64_t app;
    uint64_t file;
    uint64_t offset;
    uint64_t len;
    uint32_t direction;
    uint32_t queue;
} tg_sched_entry;

/* Counts since the start, and what is there now. Grows at its end, as a request does. */
typedef struct tg_sched_statistics {
    size_t size;           /* sizeof(tg_sched_statistics) */
    uint64_t arrived;      /* requests accepted */
    uint64_t rejected;     /* calls refused: full queue, unknown and repeated ids */
    uint64_t batches;      /* batches dispatched */
    uint64_t dispatched;   /* requests dispatched */
    uint64_t completed;    /* requests completed */
    uint64_t cancelled;    /* requests cancelled before they ran */
    uint64_t held;         /* requests that had to wait for an overlapping one */
    uint64_t queued;       /* requests that wait now, held ones included */
    uint64_t queued_peak;  /* the most that ever waited */
    uint64_t held_now;     /* requests held by an overlapping one now */
    uint64_t running;      /* requests dispatched and not yet completed */
} tg_sched_statistics;

#define TG_SCHED_STATISTICS_INIT { sizeof(tg_sched_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* ---- About the library ---- */

/* The library's version, such as "0.1.0". Static; never NULL. */
const char *tg_sched_version(void);

/* The name of policy number `index`, from 0; NULL beyond the last. Static. */
const char *tg_sched_policy_name(size_t index);

/* Why the last failed call of this thread failed: "submit: the queue is full". With a handle, only
 * if that call was on it, else "". With NULL, whatever that call was on; so for tg_sched_new and
 * for options. Never NULL; valid until this thread asks again. */
const char *tg_sched_error(const tg_sched *handle);

/* The id of an application or file from the `len` bytes of its name: the same everywhere and in
 * every version, so that several servers order applications alike. 0 if name is NULL. */
uint64_t tg_sched_hash(const void *name, size_t len);

/* CLOCK_MONOTONIC in nanoseconds, for hosts without a clock of their own. */
uint64_t tg_sched_clock_ns(void);

/* CLOCK_REALTIME minus CLOCK_MONOTONIC in nanoseconds: the value for wall_offset_ns. */
uint64_t tg_sched_wall_offset_ns(void);

/* ---- Options ---- */

/* Makes options with everything at its default, for the policy of that name. The name is checked
 * by tg_sched_new. *options is set to NULL if it fails. */
int tg_sched_options_new(const char *policy, tg_sched_options **options);

/* Sets one option from text. For every policy:
 *   policy              a name of tg_sched_policy_name; takes away the old policy's own options
 *   queued_max          requests that may wait; more are TG_SCHED_E_FULL. 65536; 1 to 67108864
 *   depth               batches that may run at once. 1; 1 to 65536
 *   merge               whether adjacent requests share a batch: true, false, auto (the policy's)
 *   batch_bytes_max     bytes in a batch of several requests. 8388608
 *   batch_requests_max  requests in a batch. 256; 1 to 65536
 *   cost_file           the path of a cost model, as `tidegate calibrate` writes it
 *   cost_estimate       whether that is corrected by what batches take. true
 *   trace_file          the path of an earlier run's trace, for prediction=recorded; may be set
 *                       several times. Lines of nanoseconds, file name, R or W, offset and length
 *                       with tabs between; the file's id is tg_sched_hash of that name
 *   wall_offset_ns      wall clock minus the clock of now_ns, for policies that use stamps. 0
 *   single_thread       true: calls come from one thread at a time, and no lock is taken. false
 * Every other name is an option of the policy's own (docs/policies.md), and is checked by
 * tg_sched_new and tg_sched_set_policy: a whole number, true or false, or a word, as the option has
 * it; a value in double quotes is a word. TG_SCHED_E_OPTION. */
int tg_sched_options_set(tg_sched_options *options, const char *name, const char *value);

/* Sets the options of a line of name=value with white space between: "depth=4 window_ms=250". All
 * of them or, with TG_SCHED_E_OPTION, none. */
int tg_sched_options_parse(tg_sched_options *options, const char *line);

/* Ends options. Schedulers that were made from them do not need them. */
int tg_sched_options_free(tg_sched_options *options);

/* ---- A scheduler ---- */

/* Makes a scheduler with nothing queued; NULL for options means fifo with all defaults. *handle is
 * set to NULL if it fails: TG_SCHED_E_OPTION, TG_SCHED_E_SYSTEM. */
int tg_sched_new(const tg_sched_options *options, tg_sched **handle);

/* Ends a scheduler; it forgets its requests. TG_SCHED_E_STATE while it has a thread. Calls of other
 * threads that come too late are TG_SCHED_E_HANDLE. */
int tg_sched_free(tg_sched *handle);

/* Hands in a request, which is copied. TG_SCHED_E_FULL, TG_SCHED_E_ID_IN_USE, TG_SCHED_E_ARGUMENT,
 * TG_SCHED_E_STATE while the scheduler is being stopped. */
int tg_sched_submit(tg_sched *handle, uint64_t now_ns, const tg_sched_request *request);

/* Nobody waits for this request any more. 1: it had not been dispatched, will never be, and its id
 * is free. 0: it runs already, and must still be completed. TG_SCHED_E_UNKNOWN_ID. */
int tg_sched_cancel(tg_sched *handle, uint64_t now_ns, uint64_t id);

/* Asks what to do next; call it until it no longer dispatches.
 * TG_SCHED_DISPATCH: entries[0 .. *count) are one batch: one file, one direction; perform them as
 *   one access (list I/O) and complete each. Overlapping requests of which one writes never run at
 *   the same time, and keep their order.
 * TG_SCHED_WAIT: poll again at *wake_ns, or after the next call if that is sooner.
 * TG_SCHED_IDLE: poll again after the next call.
 * `entries` has room for `room` entries; batch_requests_max is always enough. *count is set on
 * success and with TG_SCHED_E_ROOM, when it is the room that the next poll needs: it returns that
 * batch. wake_ns may be NULL. TG_SCHED_E_STATE if the scheduler was started. */
int tg_sched_poll(tg_sched *handle, uint64_t now_ns, tg_sched_entry *entries, size_t room,
                  size_t *count, uint64_t *wake_ns);

/* A dispatched request is done, whether or not it succeeded; its id is free.
 * TG_SCHED_E_UNKNOWN_ID, TG_SCHED_E_NOT_RUNNING. */
int tg_sched_complete(tg_sched *handle, uint64_t now_ns, uint64_t id);

/* Changes policy and options. Requests that wait move over in order of arrival, running ones are
 * not disturbed, none is lost. wall_offset_ns stays if it is 0 in the options; single_thread stays.
 * TG_SCHED_E_OPTION: then nothing has changed. */
int tg_sched_set_policy(tg_sched *handle, uint64_t now_ns, const tg_sched_options *options);

/* Copies the name of the current policy to buffer, cut to len bytes with its NUL; returns the
 * length of the whole name without it. */
int tg_sched_policy(tg_sched *handle, char *buffer, size_t len);

/* Fills statistics as far as its `size` goes. */
int tg_sched_stats(tg_sched *handle, tg_sched_statistics *statistics);

/* Sets *epoch to the number of the current window, to be sent along with replies; 0 for policies
 * without windows. */
int tg_sched_epoch(tg_sched *handle, uint64_t now_ns, uint64_t *epoch);

/* ---- A thread, for hosts without a loop of their own ---- */

/* What the thread calls. It is one thread, so callbacks never overlap; while one runs nothing else
 * is dispatched, so it should hand the work on. No lock is held: it may call every function above,
 * and complete its requests on the spot. It must return, not jump or throw. All signals are blocked
 * in that thread. `entries` are valid until the callback returns. */
typedef struct tg_sched_callbacks {
    size_t size;   /* sizeof(tg_sched_callbacks) */
    void *context; /* handed to each of them */
    /* Starts one request. Needed. */
    void (*run)(void *context, const tg_sched_entry *entry);
    /* Starts a batch of two or more. NULL: run is called for each of them in turn. */
    void (*run_list)(void *context, const tg_sched_entry *entries, size_t count);
    /* A waiting request was cancelled by tg_sched_stop. May be NULL. */
    void (*cancelled)(void *context, const tg_sched_entry *entry);
} tg_sched_callbacks;

#define TG_SCHED_CALLBACKS_INIT { sizeof(tg_sched_callbacks), NULL, NULL, NULL, NULL }

/* Starts a thread that polls and calls back; `callbacks` is copied. From now on the clock is
 * CLOCK_MONOTONIC (deadline_ns too), every now_ns is ignored, tg_sched_poll is TG_SCHED_E_STATE,
 * and other calls may come from any thread. wall_offset_ns is set if it was not. While there is
 * nothing to do the thread sleeps and uses no processor. TG_SCHED_E_STATE if it was started before
 * or has single_thread=true, TG_SCHED_E_SYSTEM. */
int tg_sched_start(tg_sched *handle, const tg_sched_callbacks *callbacks);

/* Ends that thread, and waits for it as long as timeout_ns (UINT64_MAX: for ever). From the call on
 * no request is taken.
 * TG_SCHED_DRAIN: first everything that waits is dispatched; the host must go on completing.
 * TG_SCHED_CANCEL: what waits is cancelled, and `cancelled` called for each.
 * When it returns 0 no callback runs or will run; what runs may still be completed, and the
 * scheduler can be polled, started again, or freed. TG_SCHED_E_TIMEOUT: the thread goes on ending;
 * call again, with TG_SCHED_CANCEL perhaps. TG_SCHED_E_STATE: not started, or called by a callback.
 */
int tg_sched_stop(tg_sched *handle, int how, uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
