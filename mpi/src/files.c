// Open MPI files, and the descriptors behind them: those that are there after MPI_File_open and
// were not before, and that a mount of ours says are its. That needs no knowledge of paths, works
// with and without the short-cut, and is right for several opens of one file.
#include "files.h"

#include "application.h"
#include "calls.h"
#include "hint.h"
#include "real.h"
#include "say.h"

#include <ctype.h>
#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define BUCKETS 64

static struct file *buckets[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

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

void files_look(struct descriptors *now) {
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

int files_ask(int fd, struct tidegate_file *said) {
    if (ioctl(fd, TIDEGATE_FILE, said) != 0) return -1;
    return memcmp(said->magic, FILE_MAGIC, sizeof said->magic) == 0 ? 0 : -1;
}

// A regular file on a device without a number of its own, as FUSE's are; other files are not asked.
static int may_be_ours(int fd, struct stat *found) {
    return fstat(fd, found) == 0 && S_ISREG(found->st_mode) && major(found->st_dev) == 0;
}

static int is_taken(int fd) {
    int taken = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BUCKETS; i++) {
        for (struct file *file = buckets[i]; file != NULL; file = file->next) {
            taken |= file->fd == fd;
        }
    }
    pthread_mutex_unlock(&lock);
    return taken;
}

// Binds the file to a descriptor.
static void bind(struct file *file, int fd) {
    struct tidegate_file said;
    if (files_ask(fd, &said) != 0) return;
    file->fd = fd;
    file->clock_ahead_ns = (int64_t)said.clock_ahead_ns;
    application_check(fd, said.app);
}

static void find_descriptor(struct file *file, const struct descriptors *before) {
    struct descriptors now;
    files_look(&now);
    for (int fd = 0; fd < (int)sizeof now.open * 8 && file->fd < 0; fd++) {
        if (now.open[fd / 8] == 0) {
            fd |= 7;
            continue;
        }
        int is_new = now.open[fd / 8] & ~(before != NULL ? before->open[fd / 8] : 0) & 1 << fd % 8;
        struct stat found;
        if (!is_new || !may_be_ours(fd, &found)) continue;
        // Another thread may have opened something else meanwhile.
        int is_named = file->inode == 0 ||
                       (found.st_ino == file->inode && found.st_dev == file->device);
        if (is_named && (before != NULL || !is_taken(fd))) bind(file, fd);
    }
}

void files_look_again(struct file *file) {
    if (file->inode != 0) find_descriptor(file, NULL);
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
// of its application yet, and a number that is no other file's.
struct agreed {
    uint64_t failed, nameless, operations;
};

static int agree(struct file *file, MPI_Comm comm, int failed, int *nameless) {
    struct agreed mine = {failed, !application_is_named(), 0};
    if (file->rank == 0) mine.operations = calls_unique() << 24;
    struct agreed all = mine;
    if (file->size > 1 &&
        real_MPI_Allreduce(&mine, &all, 3, MPI_UINT64_T, MPI_MAX, comm) != MPI_SUCCESS) {
        return -1;
    }
    // Single calls are numbered from below. The bit is set here: MPICH 4.0.2 finds the maximum of
    // MPI_UINT64_T as if it had a sign.
    file->operations = all.operations | UINT64_C(1) << 63;
    *nameless = all.nameless != 0;
    return all.failed ? -1 : 0;
}

void files_opened(MPI_File handle, MPI_Comm comm, const char *path,
                  const struct descriptors *before) {
    struct file *file = calloc(1, sizeof *file);
    struct file none = {0};
    struct file *it = file != NULL ? file : &none;
    it->handle = handle;
    it->fd = -1;
    it->comm = MPI_COMM_SELF;
    int bad = real_MPI_Comm_size(comm, &it->size) != MPI_SUCCESS ||
              real_MPI_Comm_rank(comm, &it->rank) != MPI_SUCCESS;
    int nameless = 0;
    if (bad || agree(it, comm, file == NULL, &nameless) != 0) {
        free(file);
        return;
    }
    // The program may free its own, or use it from another thread at the same time. No duplicate:
    // that calls what the program has attached to it.
    if (it->size > 1) {
        if (real_MPI_Comm_split(comm, 0, it->rank, &it->comm) != MPI_SUCCESS) {
            free(file);
            return;
        }
        real_MPI_Comm_set_errhandler(it->comm, MPI_ERRORS_RETURN);
    }
    if (nameless) application_of(it->comm, it->size);
    struct stat named;
    path = files_path(path);
    if (stat(path, &named) == 0) {
        it->device = named.st_dev;
        it->inode = named.st_ino;
    }
    strncpy(it->path, path, sizeof it->path - 1);
    find_descriptor(it, before);
    if (predictor_open != NULL) it->predictor = predictor_open(handle, it->comm);
    pthread_mutex_lock(&lock);
    struct file **at = bucket(handle);
    it->next = *at;
    *at = it;
    pthread_mutex_unlock(&lock);
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
    pthread_mutex_lock(&lock);
    struct file **at = bucket(handle);
    while (*at != NULL && (*at)->handle != handle) at = &(*at)->next;
    struct file *file = *at;
    if (file != NULL) *at = file->next;
    pthread_mutex_unlock(&lock);
    if (file == NULL) return;
    tell(file);
    if (file->predictor != NULL) predictor_close(file->predictor);
    if (file->size > 1) real_MPI_Comm_free(&file->comm);
    free(file);
}

void files_finish(void) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BUCKETS; i++) {
        for (struct file *file = buckets[i]; file != NULL; file = file->next) tell(file);
    }
    pthread_mutex_unlock(&lock);
}
