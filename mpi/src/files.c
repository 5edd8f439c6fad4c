// Open MPI files, and the descriptors behind them: those with the numbers that were free before
// MPI_File_open, and that a mount of ours says are its. That works with and without the short-cut,
// and is right for several opens of one file.
#include "files.h"

#include "application.h"
#include "calls.h"
#include "hint.h"
#include "real.h"
#include "say.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define BUCKETS 64
// MPICH has 2,048 communicators for all; the program shall have most of them.
#define COMMUNICATORS_MAX 500
#define LOOKS_MAX 4
// Descriptors that are tried when a file was opened.
#define NEW_MAX 16

static struct file *buckets[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int communicators; // of open files

static struct file **bucket(MPI_File handle) {
    uintptr_t bits = 0;
    memcpy(&bits, &handle, sizeof handle < sizeof bits ? sizeof handle : sizeof bits);
    return &buckets[bits / 16 % BUCKETS];
}

struct file *files_find(MPI_File handle) {
    pthread_mutex_lock(&lock);
    struct file *file = *bucket(handle);
    while (file != NULL && file->handle != handle) file = file->next;
    pthread_mutex_unlock(&lock);
    return file;
}

void files_look(struct free_numbers *now) {
    now->first = eventfd(0, EFD_CLOEXEC);
    now->is_free = 0;
    if (now->first < 0) return;
    for (int i = 1; i < NEW_MAX; i++) {
        if (fcntl(now->first + i, F_GETFD) < 0) now->is_free |= 1u << i;
    }
    close(now->first);
    now->is_free |= 1;
}

// Descriptors that are open now: a bit for each number below 65536.
struct descriptors {
    unsigned char open[8192];
};

static void look(struct descriptors *now) {
    memset(now, 0, sizeof *now);
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) return;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        long fd = atol(entry->d_name);
        if (fd != dirfd(folder) && fd < (long)sizeof now->open * 8) {
            now->open[fd / 8] |= 1u << fd % 8;
        }
    }
    closedir(folder);
}

// Which file it is, as the kernel has it.
struct place {
    ino_t inode;
    dev_t device;
};

int files_ask(int fd, struct tidegate_file *said) {
    if (ioctl(fd, TIDEGATE_FILE, said) != 0) return -1;
    return memcmp(said->magic, FILE_MAGIC, sizeof said->magic) == 0 ? 0 : -1;
}

// A regular file on a device without a number of its own, as FUSE's are; other files are not asked.
static int may_be_ours(int fd, struct place *found) {
    struct statx said;
    // What the kernel knows by itself, and does not change: no word to a mount.
    int flags = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
    if (statx(fd, "", flags, STATX_TYPE | STATX_INO, &said) != 0) return 0;
    found->inode = said.stx_ino;
    found->device = makedev(said.stx_dev_major, said.stx_dev_minor);
    return S_ISREG(said.stx_mode) && said.stx_dev_major == 0;
}

// Makes the descriptor the file's, unless it is another's: one file may be open more than once.
static int claim(struct file *file, int fd) {
    int is_free = 1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BUCKETS; i++) {
        for (struct file *other = buckets[i]; other != NULL; other = other->next) {
            is_free &= other->fd != fd;
        }
    }
    if (is_free) file->fd = fd;
    pthread_mutex_unlock(&lock);
    return is_free;
}

// Binds the file to a descriptor, if that is of a mount of ours.
static void bind(struct file *file, int fd, const struct place *found) {
    struct tidegate_file said;
    if (!claim(file, fd)) return;
    if (files_ask(fd, &said) != 0) {
        file->fd = -1;
        return;
    }
    file->clock_ahead_ns = (int64_t)said.clock_ahead_ns;
    file->app = said.app;
    file->inode = found->inode;
    file->device = found->device;
}

static void try_descriptor(struct file *file, int fd, int is_new) {
    struct place found;
    if (!may_be_ours(fd, &found)) return;
    // Another thread may have opened something else meanwhile.
    int is_named = file->inode == 0 ? is_new
                                    : found.inode == file->inode && found.device == file->device;
    if (is_named) bind(file, fd, &found);
}

static void find_descriptor(struct file *file) {
    struct descriptors now;
    look(&now);
    for (int fd = 0; fd < (int)sizeof now.open * 8 && file->fd < 0; fd++) {
        if (now.open[fd / 8] == 0) {
            fd |= 7;
            continue;
        }
        if (now.open[fd / 8] & 1 << fd % 8) try_descriptor(file, fd, 0);
    }
}

// The kernel gives the lowest number that is free. The MPI may have opened other files before this
// one, and another thread too: then all descriptors are looked at, for a file that is known by name
// and not on a disk.
static void find_new_descriptor(struct file *file, const struct free_numbers *before) {
    for (int i = 0; i < NEW_MAX && file->fd < 0; i++) {
        if (before->is_free & 1u << i) try_descriptor(file, before->first + i, 1);
    }
    int may_be_elsewhere = file->inode != 0 && major(file->device) == 0;
    if (file->fd < 0 && may_be_elsewhere) find_descriptor(file);
}

void files_look_again(struct file *file) {
    if (file->inode == 0 || file->looks++ >= LOOKS_MAX) return;
    find_descriptor(file);
    if (file->fd >= 0) application_check(file->fd, file->app);
}

int files_has_descriptor(struct file *file) {
    struct statx now;
    // What the kernel knows by itself: no word to the mount.
    int flags = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
    if (file->fd < 0) return 0;
    int is_same = statx(file->fd, "", flags, STATX_INO, &now) == 0 && now.stx_ino == file->inode &&
                  makedev(now.stx_dev_major, now.stx_dev_minor) == file->device;
    if (!is_same) file->fd = -1;
    return is_same;
}

const char *files_path(const char *path) {
    const char *colon = strchr(path, ':');
    // As ROMIO: one letter may be a drive.
    if (colon == NULL || colon - path < 2) return path;
    for (const char *at = path; at < colon; at++) {
        if (!isalnum((unsigned char)*at) && *at != '_') return path;
    }
    return colon + 1;
}

// What all ranks have to agree about: whether each could make its entry, whether one has no name
// of its application yet, whether one has found the file on a mount of ours, and a number that is
// no other file's.
struct agreed {
    uint64_t failed, nameless, ours, operations;
};

static int agree(struct file *file, MPI_Comm comm, int failed, int *nameless) {
    struct agreed mine = {failed, !application_is_named(), file->fd >= 0, 0};
    if (file->rank == 0) mine.operations = calls_unique() << 24;
    struct agreed all = mine;
    if (file->size > 1 &&
        real_MPI_Allreduce(&mine, &all, 4, MPI_UINT64_T, MPI_MAX, comm) != MPI_SUCCESS) {
        return -1;
    }
    // Single calls are numbered from below. The bit is set here: MPICH 4.0.2 finds the maximum of
    // MPI_UINT64_T as if it had a sign.
    file->operations = all.operations | UINT64_C(1) << 63;
    *nameless = all.nameless != 0;
    return all.failed || !all.ours ? -1 : 0;
}

static void enter(struct file *file) {
    pthread_mutex_lock(&lock);
    struct file **at = bucket(file->handle);
    file->next = *at;
    *at = file;
    pthread_mutex_unlock(&lock);
}

static struct file *take_out(MPI_File handle) {
    pthread_mutex_lock(&lock);
    struct file **at = bucket(handle);
    while (*at != NULL && (*at)->handle != handle) at = &(*at)->next;
    struct file *file = *at;
    if (file != NULL) *at = file->next;
    pthread_mutex_unlock(&lock);
    return file;
}

// A communicator of the file's own: the program may free its, or use it from another thread at the
// same time. No duplicate: that calls what the program has attached to it.
static int separate(struct file *file, MPI_Comm comm) {
    if (file->size == 1) return 0;
    MPI_Comm own;
    if (real_MPI_Comm_split(comm, 0, file->rank, &own) != MPI_SUCCESS) return -1;
    __atomic_fetch_add(&communicators, 1, __ATOMIC_RELAXED);
    file->comm = own;
    real_MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
    return 0;
}

void files_opened(MPI_File handle, MPI_Comm comm, const char *path,
                  const struct free_numbers *before) {
    struct file *file = calloc(1, sizeof *file);
    struct file none = {0};
    struct file *it = file != NULL ? file : &none;
    it->handle = handle;
    it->fd = -1;
    it->comm = MPI_COMM_SELF;
    struct stat named;
    path = files_path(path);
    if (stat(path, &named) == 0) {
        it->device = named.st_dev;
        it->inode = named.st_ino;
    }
    strncpy(it->path, path, sizeof it->path - 1);
    if (file != NULL) {
        enter(file);
        find_new_descriptor(file, before);
    }
    int bad = real_MPI_Comm_size(comm, &it->size) != MPI_SUCCESS ||
              real_MPI_Comm_rank(comm, &it->rank) != MPI_SUCCESS;
    int full = __atomic_load_n(&communicators, __ATOMIC_RELAXED) >= COMMUNICATORS_MAX;
    int nameless = 0;
    if (bad || agree(it, comm, file == NULL || (full && it->size > 1), &nameless) != 0 ||
        separate(file, comm) != 0) {
        free(take_out(handle));
        return;
    }
    if (nameless) application_of(file->comm, file->size);
    if (file->fd >= 0) application_check(file->fd, file->app);
    if (predictor_open != NULL) file->predictor = predictor_open(handle, file->comm);
}

static void tell(const struct file *file) {
    if (!mpi_verbose || file->collectives == 0) return;
    mpi_say("rank %d: %s: %llu collectives, %llu predicted, %llu requests with hints, "
            "%llu off the grid%s",
            file->rank, file->path, (unsigned long long)file->collectives,
            (unsigned long long)file->predicted, (unsigned long long)file->hinted,
            (unsigned long long)file->off_grid,
            file->fd < 0 ? " (not on a mount of Tidegate)" : "");
}

void files_close(MPI_File handle) {
    struct file *file = take_out(handle);
    if (file == NULL) return;
    tell(file);
    if (file->predictor != NULL) predictor_close(file->predictor);
    if (file->size > 1) {
        real_MPI_Comm_free(&file->comm);
        __atomic_fetch_sub(&communicators, 1, __ATOMIC_RELAXED);
    }
    free(file);
}

void files_finish(void) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BUCKETS; i++) {
        for (struct file *file = buckets[i]; file != NULL; file = file->next) tell(file);
    }
    pthread_mutex_unlock(&lock);
}
