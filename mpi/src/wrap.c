// The wrappers. Each name has two, for MPI_ and PMPI_, which differ in what they call next; what is
// called from inside of another wrapper, by the MPI or by a tool, passes straight through.
#include "align.h"
#include "application.h"
#include "calls.h"
#include "files.h"
#include "launch.h"
#include "names.h"
#include "real.h"
#include "romio.h"
#include "say.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void *const *next_functions;
static _Thread_local int inside;

// Also where an error handler of the program throws a C++ exception through us.
static void leave(int *entered) {
    (void)entered;
    inside = 0;
}

#define LIST(...) __VA_ARGS__
#define ONE(prefix, name, number, parameters, arguments, ...)                                      \
    static int prefix##name parameters {                                                           \
        int(*next) parameters;                                                                     \
        memcpy(&next, &next_functions[number], sizeof next);                                       \
        if (inside) return next arguments;                                                         \
        int entered __attribute__((cleanup(leave))) = inside = 1;                                  \
        (void)entered;                                                                             \
        return around_##name(__VA_ARGS__);                                                         \
    }
#define BOTH(name, parameters, arguments, ...)                                                     \
    ONE(mpi_, name, NAME_##name, parameters, arguments, __VA_ARGS__)                               \
    ONE(pmpi_, name, NAME_##name + NAMES, parameters, arguments, __VA_ARGS__)
// Defines the two wrappers of a name around a body that calls `next`.
#define WRAP(name, parameters, arguments)                                                          \
    static int around_##name(int(*next) parameters, LIST parameters);                              \
    BOTH(name, parameters, arguments, next, LIST arguments)                                        \
    static int around_##name(int(*next) parameters, LIST parameters)

// Beginning and end.

static int initialised(int result) {
    if (result == MPI_SUCCESS) {
        application_of_world();
        align_learn();
    }
    return result;
}

WRAP(Init, (int *argc, char ***argv), (argc, argv)) {
    romio_choose(MPI_THREAD_SINGLE);
    return initialised(next(argc, argv));
}

WRAP(Init_thread, (int *argc, char ***argv, int wanted, int *provided),
     (argc, argv, wanted, provided)) {
    romio_choose(wanted);
    return initialised(next(argc, argv, wanted, provided));
}

// A session is an address or a number, depending on the MPI's version; only its place is passed.
WRAP(Session_init, (MPI_Info info, MPI_Errhandler handler, void *session),
     (info, handler, session)) {
    romio_choose_of_session(info);
    return next(info, handler, session);
}

static int around_Finalize(int (*next)(void)) {
    files_finish();
    return next();
}
BOTH(Finalize, (void), (), next)

// Files.

WRAP(File_open, (MPI_Comm comm, const char *path, int mode, MPI_Info info, MPI_File *file),
     (comm, path, mode, info, file)) {
    struct free_numbers before;
    files_look(&before);
    // A call that will fail anyway must fail in the MPI.
    MPI_Info aligned = comm == MPI_COMM_NULL ? info : align_info(comm, path, info);
    int result = next(comm, path, mode, aligned, file);
    if (aligned != info) {
        real_MPI_Info_free(&aligned);
        if (result == MPI_SUCCESS) align_opened(*file, info);
    }
    if (result == MPI_SUCCESS) files_opened(*file, comm, path, &before);
    return result;
}

WRAP(File_close, (MPI_File * file), (file)) {
    if (file != NULL) {
        files_close(*file);
        align_closes(*file);
    }
    return next(file);
}

// Only so that what the MPI does for it passes straight through.
WRAP(File_delete, (const char *path, MPI_Info info), (path, info)) {
    return next(path, info);
}

static int changed(MPI_File handle, MPI_Info given, int result) {
    struct file *file = result == MPI_SUCCESS ? files_find(handle) : NULL;
    if (result == MPI_SUCCESS) align_given(handle, given);
    if (file != NULL && file->predictor != NULL) predictor_changed(file->predictor);
    return result;
}

WRAP(File_set_view,
     (MPI_File file, MPI_Offset offset, MPI_Datatype unit, MPI_Datatype view, const char *form,
      MPI_Info info),
     (file, offset, unit, view, form, info)) {
    return changed(file, info, next(file, offset, unit, view, form, info));
}

WRAP(File_set_info, (MPI_File file, MPI_Info info), (file, info)) {
    return changed(file, info, next(file, info));
}

WRAP(File_get_info, (MPI_File file, MPI_Info *info), (file, info)) {
    int result = next(file, info);
    if (result == MPI_SUCCESS) align_hide(file, *info);
    return result;
}

// Collective data calls. Their names differ in where they begin (at an offset that is given, or at
// the file's pointer), in the number's type, and in what they answer by: a status, a request, or
// nothing before the end of a split call.

typedef void reads_memory;
typedef const void writes_memory;
enum { is_reads, is_writes };

#define DATA_CALL(at, count, way, how, ...)                                                        \
    struct going going;                                                                            \
    call_begins(&going, file, at, count, type, is_##way, how);                                     \
    int result = next(__VA_ARGS__);                                                                \
    call_ends(&going, how);                                                                        \
    return result;

// With an answer of that type, or with none.
#define AT(name, way, number, how, answer)                                                         \
    WRAP(name,                                                                                     \
         (MPI_File file, MPI_Offset offset, way##_memory *memory, number count, MPI_Datatype type, \
          answer *to),                                                                             \
         (file, offset, memory, count, type, to)) {                                                \
        DATA_CALL(&offset, count, way, how, file, offset, memory, count, type, to)                 \
    }
#define ALONG(name, way, number, how, answer)                                                      \
    WRAP(name, (MPI_File file, way##_memory *memory, number count, MPI_Datatype type, answer *to), \
         (file, memory, count, type, to)) {                                                        \
        DATA_CALL(NULL, count, way, how, file, memory, count, type, to)                            \
    }
#define BEGIN_AT(name, way, number)                                                                \
    WRAP(name,                                                                                     \
         (MPI_File file, MPI_Offset offset, way##_memory *memory, number count, MPI_Datatype type),\
         (file, offset, memory, count, type)) {                                                    \
        DATA_CALL(&offset, count, way, BEGIN, file, offset, memory, count, type)                   \
    }
#define BEGIN_ALONG(name, way, number)                                                             \
    WRAP(name, (MPI_File file, way##_memory *memory, number count, MPI_Datatype type),             \
         (file, memory, count, type)) {                                                            \
        DATA_CALL(NULL, count, way, BEGIN, file, memory, count, type)                              \
    }
#define END(name, way)                                                                             \
    WRAP(name, (MPI_File file, way##_memory *memory, MPI_Status *status), (file, memory, status)) {\
        int result = next(file, memory, status);                                                   \
        split_ends(file);                                                                          \
        return result;                                                                             \
    }

// Nonblocking.
#define I_AT(name, way, independent)                                                               \
    WRAP(name,                                                                                     \
         (MPI_File file, MPI_Offset offset, way##_memory *memory, int count, MPI_Datatype type,    \
          MPI_Request *to),                                                                        \
         (file, offset, memory, count, type, to)) {                                                \
        if (romio_is_fragile()) {                                                                  \
            return real_MPI_##independent(file, offset, memory, count, type, to);                  \
        }                                                                                          \
        DATA_CALL(&offset, count, way, NONBLOCKING, file, offset, memory, count, type, to)         \
    }
#define I_ALONG(name, way, independent)                                                            \
    WRAP(name,                                                                                     \
         (MPI_File file, way##_memory *memory, int count, MPI_Datatype type, MPI_Request *to),     \
         (file, memory, count, type, to)) {                                                        \
        if (romio_is_fragile()) {                                                                  \
            return real_MPI_##independent(file, memory, count, type, to);                          \
        }                                                                                          \
        DATA_CALL(NULL, count, way, NONBLOCKING, file, memory, count, type, to)                    \
    }

#define ALL(word, way)                                                                             \
    ALONG(File_##word##_all, way, int, BLOCKING, MPI_Status)                                       \
    ALONG(File_##word##_all_c, way, MPI_Count, BLOCKING, MPI_Status)                               \
    AT(File_##word##_at_all, way, int, BLOCKING, MPI_Status)                                       \
    AT(File_##word##_at_all_c, way, MPI_Count, BLOCKING, MPI_Status)                               \
    I_ALONG(File_i##word##_all, way, File_i##word)                                                 \
    ALONG(File_i##word##_all_c, way, MPI_Count, NONBLOCKING, MPI_Request)                          \
    I_AT(File_i##word##_at_all, way, File_i##word##_at)                                            \
    AT(File_i##word##_at_all_c, way, MPI_Count, NONBLOCKING, MPI_Request)                          \
    BEGIN_ALONG(File_##word##_all_begin, way, int)                                                 \
    BEGIN_ALONG(File_##word##_all_begin_c, way, MPI_Count)                                         \
    BEGIN_AT(File_##word##_at_all_begin, way, int)                                                 \
    BEGIN_AT(File_##word##_at_all_begin_c, way, MPI_Count)                                         \
    END(File_##word##_all_end, way)                                                                \
    END(File_##word##_at_all_end, way)

ALL(read, reads)
ALL(write, writes)

// The chooser's way in.

static void *wrappers[2 * NAMES];

__attribute__((visibility("default"))) void *const *tidegate_shim_start(const struct found *found) {
    const char *missing = real_load(found->find);
    mpi_verbose = getenv("TIDEGATE_MPI_VERBOSE") != NULL;
    if (missing != NULL) {
        if (mpi_verbose) mpi_say("this MPI has no %s: it goes on without the shim", missing);
        return NULL;
    }
    if (!launch_is_whole()) {
        const char *rank = getenv("OMPI_COMM_WORLD_RANK");
        if (rank != NULL && strcmp(rank, "0") == 0) {
            mpi_say("the shim stays out: ranks on other nodes may lack it; start the launcher by "
                    "`tidegate run -- mpirun ...`, or see docs/mpi.md");
        }
        return NULL;
    }
    next_functions = found->next;
    romio_learn(found);
    calls_start();
#define ENTER(name)                                                                                \
    {                                                                                              \
        __typeof__(&mpi_##name) plain = mpi_##name, profiled = pmpi_##name;                        \
        memcpy(&wrappers[NAME_##name], &plain, sizeof plain);                                      \
        memcpy(&wrappers[NAME_##name + NAMES], &profiled, sizeof profiled);                        \
    }
    EVERY_NAME(ENTER)
    return wrappers;
}
