// Which application the ranks of this MPI job are. In this order:
//
// 1. TIDEGATE_APP, if the user gave it;
// 2. the job of Slurm, in one of its steps (SLURM_JOB_ID and SLURM_STEP_ID); with TIDEGATE_STEPS=apart
//    the step;
// 3. where `tidegate run` made TIDEGATE_APP up for a script (TIDEGATE_APP_MADE is set): that name
//    with a part that rank 0 adds, so that each MPI job of the script is an application;
// 4. the job of PBS, LSF or Flux; PMIX_NAMESPACE, which Open MPI's and PMIx launchers set;
// 5. a name that rank 0 makes.
//
// The mount comes to 1, 2 and 4 by itself, from the environment. The others it is told, as this
// process's own, by a device control call on the mount's root.
#include "application.h"

#include "hint.h"
#include "real.h"
#include "say.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// The name, and how it came about.
struct name {
    char text[256];
    int told; // the mount has to be told it
};

static struct name ours;
static uint64_t ours_id; // 0: there is no name yet
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// The variable's value, or NULL if it is empty.
static const char *set(const char *variable) {
    const char *value = getenv(variable);
    return value != NULL && value[0] != 0 ? value : NULL;
}

// As `app_id` of the client library: FNV-1a, then the finaliser of MurmurHash3.
static uint64_t id_of(const char *name) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *name != 0; name++) hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    hash = (hash ^ hash >> 33) * UINT64_C(0xff51afd7ed558ccd);
    hash = (hash ^ hash >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return hash ^ hash >> 33;
}

static int from_batch_system(struct name *name) {
    static const char *const jobs[][2] = {{"PBS_JOBID", "pbs"},
                                          {"LSB_JOBID", "lsf"},
                                          {"FLUX_JOB_ID", "flux"},
                                          {"PMIX_NAMESPACE", "pmix"}};
    const char *job = set("SLURM_JOB_ID");
    if (job != NULL) {
        snprintf(name->text, sizeof name->text, "slurm-%s", job);
        return 1;
    }
    for (unsigned i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        if ((job = set(jobs[i][0])) == NULL) continue;
        snprintf(name->text, sizeof name->text, "%s-%s", jobs[i][1], job);
        return 1;
    }
    return 0;
}

// Rank 0's choice.
static void choose(struct name *name) {
    const char *given = set("TIDEGATE_APP");
    const char *made = set("TIDEGATE_APP_MADE");
    const char *job = set("SLURM_JOB_ID"), *step = set("SLURM_STEP_ID");
    memset(name, 0, sizeof *name);
    if (given != NULL && made == NULL) {
        snprintf(name->text, sizeof name->text, "%s", given);
        return;
    }
    if (job != NULL && step != NULL) {
        const char *steps = set("TIDEGATE_STEPS");
        int is_apart = steps != NULL && strcmp(steps, "apart") == 0;
        snprintf(name->text, sizeof name->text, "slurm-%s%s%s", job, is_apart ? "." : "",
                 is_apart ? step : "");
        name->told = given != NULL;
        return;
    }
    if (given == NULL && from_batch_system(name)) return;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long made_at = (unsigned long long)now.tv_sec % 1000000 * 1000 +
                                 (unsigned long long)now.tv_nsec / 1000000;
    char host[65] = "";
    gethostname(host, sizeof host - 1);
    if (given != NULL) {
        snprintf(name->text, sizeof name->text, "%.200s.%d-%llu", given, (int)getpid(), made_at);
    } else {
        snprintf(name->text, sizeof name->text, "mpi-%s-%d-%llu", host, (int)getpid(), made_at);
    }
    name->told = 1;
}

static int tell(int fd) {
    struct tidegate_application it;
    memset(&it, 0, sizeof it);
    memcpy(it.name, ours.text, sizeof it.name);
    return ioctl(fd, TIDEGATE_APPLICATION, &it);
}

// Tells the mount that `tidegate run` named, for what this process opens from now on.
static void tell_mount(void) {
    const char *mount = set("TIDEGATE_MOUNT");
    if (mount == NULL) return;
    int fd = open(mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    if (tell(fd) != 0 && mpi_verbose) mpi_say("the mount %s was not told %s", mount, ours.text);
    close(fd);
}

void application_of(MPI_Comm comm, int size) {
    int rank = 0;
    struct name name;
    memset(&name, 0, sizeof name);
    if (real_MPI_Comm_rank(comm, &rank) != MPI_SUCCESS) return;
    if (rank == 0) choose(&name);
    if (size > 1 &&
        real_MPI_Bcast(&name, (int)sizeof name, MPI_BYTE, 0, comm) != MPI_SUCCESS) {
        return;
    }
    pthread_mutex_lock(&lock);
    int is_first = ours_id == 0;
    if (is_first) {
        ours = name;
        __atomic_store_n(&ours_id, id_of(name.text), __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    if (!is_first) return;
    if (name.told) tell_mount();
    if (mpi_verbose && rank == 0) mpi_say("%d ranks are application %s", size, name.text);
}

void application_of_world(void) {
    int size = 0;
    if (real_MPI_Comm_size(MPI_COMM_WORLD, &size) != MPI_SUCCESS) return;
    application_of(MPI_COMM_WORLD, size);
}

int application_is_named(void) {
    return __atomic_load_n(&ours_id, __ATOMIC_ACQUIRE) != 0;
}

void application_check(int fd, uint64_t app) {
    if (application_is_named() && app != ours_id && ours.told) tell(fd);
}
