// ROMIO inside of Open MPI, whose own MPI-IO (OMPIO) has other aggregators and file domains than
// those that are predicted. The component is chosen by a parameter in the environment; its number
// differs between versions (romio321 in 4.1, romio341 in 5.0), and naming one that is not there is
// an error, so it is looked for: in the library itself, or in the folder of components.
#include "romio.h"

#include <mpi.h>

#ifdef OPEN_MPI

#include "real.h"
#include "say.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct found mpi;
static int was_chosen;

void romio_learn(const struct found *found) {
    mpi = *found;
}

// The first of some paths: where components lie beside a library.
static int component(const char *folder, char *name, size_t room) {
    static const char *const places[] = {"openmpi/mca_io_romio*.so", "openmpi?/mca_io_romio*.so",
                                         "openmpi/lib/openmpi*/mca_io_romio*.so"};
    int done = 0;
    for (unsigned i = 0; i < sizeof places / sizeof *places && !done; i++) {
        char pattern[4200];
        glob_t found;
        snprintf(pattern, sizeof pattern, "%s/%s", folder, places[i]);
        if (glob(pattern, 0, NULL, &found) != 0) continue;
        const char *file = strstr(found.gl_pathv[0], "mca_io_") + strlen("mca_io_");
        snprintf(name, room, "%.*s", (int)strcspn(file, "."), file);
        globfree(&found);
        done = 1;
    }
    return done;
}

static int find(char *name, size_t room) {
    static const char *const within[] = {"romio321", "romio314", "romio341"};
    for (unsigned i = 0; i < sizeof within / sizeof *within; i++) {
        char symbol[64];
        snprintf(symbol, sizeof symbol, "mca_io_%s_component", within[i]);
        if (mpi.find(symbol) == NULL) continue;
        snprintf(name, room, "%s", within[i]);
        return 1;
    }
    char *path = realpath(mpi.library, NULL);
    char *slash = path != NULL ? strrchr(path, '/') : NULL;
    if (slash != NULL) *slash = 0;
    int done = slash != NULL && component(path, name, room);
    free(path);
    if (done) return 1;
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", mpi.library);
    slash = strrchr(folder, '/');
    if (slash == NULL) return 0;
    *slash = 0;
    return component(folder, name, room);
}

// As Open MPI reads it: the variable counts for more than what the program asks for.
static int level_of(int wanted) {
    const char *given = getenv("OMPI_MPI_THREAD_LEVEL");
    if (given == NULL) return wanted;
    int level = atoi(given);
    return level < MPI_THREAD_SINGLE || level > MPI_THREAD_MULTIPLE ? MPI_THREAD_MULTIPLE : level;
}

void romio_choose(int wanted) {
    const char *keep = getenv("TIDEGATE_MPI_IO");
    if (getenv("OMPI_MCA_io") != NULL || (keep != NULL && strcmp(keep, "keep") == 0)) return;
    char name[64];
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    int speaks = mpi_verbose && (rank == NULL || strcmp(rank, "0") == 0);
    if (level_of(wanted) == MPI_THREAD_MULTIPLE) {
        // Open MPI calls ROMIO under one lock. With two threads of a rank in collective calls, each
        // rank may hold it for another of the two, for good (seen in 4.1.4).
        if (speaks) mpi_say("Open MPI keeps its own MPI-IO, since several threads may call MPI");
    } else if (find(name, sizeof name)) {
        was_chosen = setenv("OMPI_MCA_io", name, 1) == 0;
        if (speaks) mpi_say("Open MPI uses ROMIO for MPI-IO (OMPI_MCA_io=%s)", name);
    } else if (speaks) {
        mpi_say("this Open MPI has no ROMIO: its I/O carries no predictions");
    }
}

// A session without a word about it has MPI_THREAD_SINGLE.
void romio_choose_of_session(MPI_Info info) {
    char value[MPI_MAX_INFO_VAL + 1] = "";
    int known = 0;
    if (info != MPI_INFO_NULL &&
        real_MPI_Info_get(info, "thread_level", MPI_MAX_INFO_VAL, value, &known) != MPI_SUCCESS) {
        known = 0;
    }
    int is_multiple = known && strcmp(value, "MPI_THREAD_MULTIPLE") == 0;
    romio_choose(is_multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE);
}

int romio_is_fragile(void) {
    return was_chosen;
}

#else

// All others of the family have nothing but ROMIO.
void romio_learn(const struct found *found) {
    (void)found;
}

void romio_choose(int wanted) {
    (void)wanted;
}

void romio_choose_of_session(MPI_Info info) {
    (void)info;
}

int romio_is_fragile(void) {
    return 0;
}

#endif
