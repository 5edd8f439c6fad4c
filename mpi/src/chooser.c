// The chooser, libtidegate_mpi.so: what is preloaded into every program, and does nothing in those
// that never call MPI.
//
// It has the names that the shim stands before. At the first call of one of them it finds out which
// MPI the process has, and loads the shim that was built for that family; from then on each name
// leads there, or straight to the MPI where there is no shim for it. It does not know MPI's types:
// they differ between the families. No function here has more than six arguments, and none is a
// float or structure, so on 64-bit machines all are passed in registers, and go on as they came.
//
// A preloaded library satisfies every reference to a name that it has, also a weak one, by which a
// program asks whether its MPI has that function. So this library shows the names that an MPI may
// lack only where the MPI has them (bindings.h).
#include "bindings.h"
#include "names.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(long) == 8 && sizeof(void *) == 8, "a machine of 64 bits");

typedef long (*any_function)(long, long, long, long, long, long);

static const char *const names[2 * NAMES] = {
#define TEXT(name) "MPI_" #name,
    EVERY_NAME(TEXT)
#undef TEXT
#define TEXT(name) "PMPI_" #name,
    EVERY_NAME(TEXT)
#undef TEXT
};

// What stands behind each name: the MPI's, or another tool's that was loaded after us.
static void *next[2 * NAMES];
// Where a call goes; NULL until it was found out.
static void *goal[2 * NAMES];
static pthread_once_t once = PTHREAD_ONCE_INIT;
// The MPI's library, where its names are not for all to see: Python loads its modules, and what
// they need, privately.
static void *private_library;

static void say(const char *what, const char *more) {
    char line[600];
    int len = snprintf(line, sizeof line, "tidegate: %s%s\n", what, more);
    if (len > (int)sizeof line - 1) len = sizeof line - 1;
    ssize_t written = write(2, line, len);
    (void)written;
}

// A function of the MPI, or of a tool that stands before it.
static void *find(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL && private_library != NULL) found = dlsym(private_library, name);
    return found;
}

#define OBJECTS_MAX 4096

struct objects {
    char *names[OBJECTS_MAX];
    int count;
};

static int note(struct dl_phdr_info *info, size_t size, void *to) {
    struct objects *objects = to;
    (void)size;
    if (info->dlpi_name == NULL || info->dlpi_name[0] == 0) return 0;
    if (objects->count == OBJECTS_MAX) return 1;
    objects->names[objects->count++] = strdup(info->dlpi_name);
    return 0;
}

// The loaded object that has MPI, if it is not among those that all can see.
static void *private_mpi(void) {
    static struct objects objects;
    dl_iterate_phdr(note, &objects);
    void *found = NULL;
    Dl_info own;
    const char *self = dladdr(names, &own) != 0 ? own.dli_fname : "";
    for (int i = 0; i < objects.count; i++) {
        const char *name = objects.names[i];
        if (found == NULL && name != NULL && strcmp(name, self) != 0) {
            void *object = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
            if (object != NULL && dlsym(object, "PMPI_Get_library_version") != NULL) {
                found = object;
            } else if (object != NULL) {
                dlclose(object);
            }
        }
        free(objects.names[i]);
    }
    return found;
}

static const char *family(void) {
    // MPI allows this call before all others. Longest text: MPICH's 8192.
    static char version[16384];
    int (*get)(char *, int *) = NULL;
    void *found = find("PMPI_Get_library_version");
    int len = 0;
    memcpy(&get, &found, sizeof found);
    if (get == NULL || get(version, &len) != 0) return NULL;
    // MPICH's and Open MPI's libraries of MPI's own standard ABI have other handles than theirs.
    Dl_info at;
    if (dladdr(found, &at) != 0 && strstr(at.dli_fname, "libmpi_abi") != NULL) return NULL;
    if (strstr(version, "Open MPI") != NULL) return "libtidegate_ompi.so";
    // All of one ABI, see www.mpich.org/abi.
    static const char *const mpich[] = {"MPICH", "MVAPICH", "Intel(R) MPI", "ParaStation"};
    for (unsigned i = 0; i < sizeof mpich / sizeof *mpich; i++) {
        if (strstr(version, mpich[i]) != NULL) return "libtidegate_mpich.so";
    }
    return NULL;
}

// The wrappers of the family's shim, or NULL.
static void *const *wrappers(const char *file) {
    char path[4096];
    Dl_info own, mpi;
    if (dladdr(names, &own) == 0) return NULL;
    const char *slash = strrchr(own.dli_fname, '/');
    int folder = slash == NULL ? 0 : (int)(slash - own.dli_fname) + 1;
    if (snprintf(path, sizeof path, "%.*s%s", folder, own.dli_fname, file) >= (int)sizeof path) {
        return NULL;
    }
    const char *verbose = getenv("TIDEGATE_MPI_VERBOSE");
    if (access(path, F_OK) != 0) {
        if (verbose != NULL) say("no shim for this MPI was built: there is no ", path);
        return NULL;
    }
    void *shim = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (shim == NULL) {
        say("the shim was not loaded, MPI goes on without it: ", dlerror());
        return NULL;
    }
    start_function start = NULL;
    void *found = dlsym(shim, START_NAME);
    memcpy(&start, &found, sizeof found);
    void *version = find("PMPI_Get_library_version");
    const char *library = dladdr(version, &mpi) != 0 ? mpi.dli_fname : "";
    struct found here = {next, find, library};
    return start == NULL ? NULL : start(&here);
}

static void mend(int at_start);

static void choose(void) {
    int was_found = next[NAME_Init] != NULL;
    if (dlsym(RTLD_NEXT, "PMPI_Get_library_version") == NULL) private_library = private_mpi();
    for (int i = 0; i < 2 * NAMES; i++) next[i] = find(names[i]);
    if (!was_found) mend(0);
    const char *file = family();
    void *const *shim = file == NULL ? NULL : wrappers(file);
    for (int i = 0; i < 2 * NAMES; i++) {
        void *to = shim != NULL && next[i] != NULL ? shim[i] : next[i];
        __atomic_store_n(&goal[i], to, __ATOMIC_RELEASE);
    }
}

static any_function chosen(int i) {
    pthread_once(&once, choose);
    void *to = __atomic_load_n(&goal[i], __ATOMIC_ACQUIRE);
    if (to == NULL) {
        // Without us the program would not have been linked, or loaded.
        say("this MPI has no ", names[i]);
        abort();
    }
    any_function function;
    memcpy(&function, &to, sizeof to);
    return function;
}

#define EXPORT __attribute__((visibility("default")))
#define PASS(function, number)                                                                     \
    EXPORT long function(long a, long b, long c, long d, long e, long f);                          \
    EXPORT long function(long a, long b, long c, long d, long e, long f) {                         \
        return chosen(number)(a, b, c, d, e, f);                                                   \
    }
#define LASTING(name) PASS(MPI_##name, NAME_##name) PASS(PMPI_##name, NAME_##name + NAMES)
LASTING_NAMES(LASTING)

// With a version that is not the default: references without a version do not find it (names.map).
#define HIDE(name) __asm__(".symver later_" name ", " name "@TIDEGATE_LATER");
#define LATER(name)                                                                                \
    PASS(later_MPI_##name, NAME_##name) HIDE("MPI_" #name)                                         \
    PASS(later_PMPI_##name, NAME_##name + NAMES) HIDE("PMPI_" #name)
LATER_NAMES(LATER)

static const any_function entries[2 * NAMES] = {
#define AT(name) [NAME_##name] = MPI_##name, [NAME_##name + NAMES] = PMPI_##name,
    LASTING_NAMES(AT)
#undef AT
#define AT(name) [NAME_##name] = later_MPI_##name, [NAME_##name + NAMES] = later_PMPI_##name,
    LATER_NAMES(AT)
#undef AT
};

// Makes what the process's objects refer to what it would be if this library had just the names
// that the MPI has.
static void mend(int at_start) {
    static struct named it[2 * NAMES];
    for (int i = 0; i < 2 * NAMES; i++) {
        it[i].name = names[i];
        memcpy(&it[i].entry, &entries[i], sizeof it[i].entry);
        it[i].found = next[i];
        it[i].is_later = i % NAMES >= NAMES_LASTING;
    }
    bindings_mend(it, 2 * NAMES, at_start);
}

// When all objects that the program was linked with are bound, and none has run.
__attribute__((constructor)) static void start(void) {
    int has_mpi = dlsym(RTLD_NEXT, "PMPI_Get_library_version") != NULL;
    for (int i = 0; i < 2 * NAMES && has_mpi; i++) next[i] = dlsym(RTLD_NEXT, names[i]);
    mend(1);
}
