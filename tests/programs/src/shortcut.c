/* What the short-cut must not change, in one program: each part compares what it did through libc
 * (which the short-cut stands before) with what the kernel says of the same file (plain system
 * calls, which go through the mount).
 *
 * usage: shortcut DIRECTORY PART; exit code 0: as it should be. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define CHECK(what)                                                                          \
    do {                                                                                     \
        if (!(what)) {                                                                       \
            fprintf(stderr, "line %d: %s (errno %d: %s)\n", __LINE__, #what, errno,          \
                    strerror(errno));                                                        \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

static char *self;

/* Past every hook. */
static long kernel_pread(int fd, void *to, size_t len, off_t at)
{
    return syscall(SYS_pread64, fd, to, len, at);
}

static __attribute__((noinline)) int create(const char *name)
{
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    return fd;
}

/* Whether this process has a connection of its own: no other part of it waits in epoll. */
static int connected(void)
{
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    int found = 0;
    CHECK(dir);
    while ((entry = readdir(dir))) {
        char path[300], target[300] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        if (readlink(path, target, sizeof target - 1) > 0 && strstr(target, "eventpoll"))
            found = atoi(entry->d_name);
    }
    closedir(dir);
    return found;
}

static uint64_t state = 88172645463325252u;
static uint64_t chance(uint64_t below)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

/* Random calls of every kind on one file against a model in memory. */
#define SIZE_MAX_OF_FILE (6 << 20)
static unsigned char model[SIZE_MAX_OF_FILE], buffer[SIZE_MAX_OF_FILE];
static void calls(void)
{
    int fd = create("calls");
    off_t size = 0, offset = 0;
    for (int i = 0; i < 1500; i++) {
        size_t len = chance(8) ? 1 + chance(20000) : 1 + chance(1 << 21);
        off_t at = chance(SIZE_MAX_OF_FILE - len);
        size_t first = chance(len);
        struct iovec two[2] = {{buffer, first}, {buffer + first, len - first}};
        int kind = chance(12);
        if (kind < 5 || kind == 10)
            for (size_t b = 0; b < len; b++)
                buffer[b] = chance(256);
        ssize_t there = at >= size ? 0 : size - at < (off_t)len ? size - at : (off_t)len;
        ssize_t here = offset >= size ? 0 : size - offset < (off_t)len ? size - offset : (off_t)len;
        switch (kind) {
        case 0: CHECK(pwrite(fd, buffer, len, at) == (ssize_t)len); break;
        case 1: CHECK(pwritev(fd, two, 2, at) == (ssize_t)len); break;
        case 2: CHECK(pwritev2(fd, two, 2, at, 0) == (ssize_t)len); break;
        case 3: case 4:
            CHECK(lseek(fd, at, SEEK_SET) == at);
            CHECK((kind == 3 ? write(fd, buffer, len) : writev(fd, two, 2)) == (ssize_t)len);
            offset = at + len;
            break;
        case 5: CHECK(pread(fd, buffer, len, at) == there); goto compare;
        case 6: CHECK(preadv(fd, two, 2, at) == there); goto compare;
        case 7: CHECK(kernel_pread(fd, buffer, len, at) == there);
        compare:
            CHECK(!memcmp(buffer, model + at, there));
            continue;
        case 8: case 9:
            CHECK((kind == 8 ? read(fd, buffer, len) : readv(fd, two, 2)) == here);
            CHECK(!memcmp(buffer, model + offset, here));
            offset += here;
            continue;
        case 10: CHECK(syscall(SYS_pwrite64, fd, buffer, len, at) == (ssize_t)len); break;
        default:
            CHECK(ftruncate(fd, at) == 0);
            if (at < size)
                memset(model + at, 0, size - at);
            size = at;
            CHECK(chance(2) ? fsync(fd) == 0 : fdatasync(fd) == 0);
            continue;
        }
        memcpy(model + at, buffer, len);
        if (at + (off_t)len > size)
            size = at + len;
        struct stat found;
        CHECK(fstat(fd, &found) == 0 && found.st_size == size);
        CHECK(lseek(fd, 0, SEEK_CUR) == offset);
    }
    CHECK(connected());
    close(fd);
}

/* What the kernel refuses is still refused. */
static void errors(void)
{
    char byte = 'x';
    int fd = create("errors");
    CHECK(pwrite(fd, "hello", 5, 0) == 5);
    CHECK(pread(fd, &byte, 1, -1) == -1 && errno == EINVAL);
    char *volatile nowhere = NULL;
    CHECK(pwrite(fd, nowhere, 5, 0) == -1 && errno == EFAULT);
    CHECK(read(fd, &byte, 0) == 0 && write(fd, &byte, 0) == 0);
    CHECK(pread(fd, &byte, 1, 5) == 0 && pread(fd, &byte, 1, 1 << 30) == 0);
    CHECK(pwrite(fd, &byte, 1, INT64_MAX) == -1);
    CHECK(lseek(fd, 0, SEEK_CUR) == 0);
    struct iovec wrong = {&byte, SIZE_MAX};
    CHECK(readv(fd, &wrong, 1) == -1 && errno == EINVAL);
    volatile int less = -1;
    CHECK(readv(fd, &wrong, less) == -1 && errno == EINVAL);
    int reader = open("errors", O_RDONLY), writer = open("errors", O_WRONLY);
    CHECK(pread(reader, &byte, 1, 0) == 1 && byte == 'h');
    CHECK(pwrite(reader, "x", 1, 0) == -1 && errno == EBADF);
    CHECK(pwrite(writer, "j", 1, 0) == 1);
    CHECK(pread(writer, &byte, 1, 0) == -1 && errno == EBADF);
    CHECK(unlink("errors") == 0);
    CHECK(pwrite(fd, "y", 1, 4) == 1 && pread(reader, &byte, 1, 4) == 1 && byte == 'y');
    close(fd);
    CHECK(pread(fd, &byte, 1, 0) == -1 && errno == EBADF);
    /* A limit that is set later holds, too. */
    fd = create("limit");
    CHECK(pwrite(fd, "x", 1, 100000) == 1);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {4096, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(pwrite(fd, "x", 1, 200000) == -1 && errno == EFBIG);
    CHECK(pwrite(fd, "x", 1, 4000) == 1);
    limit.rlim_cur = RLIM_INFINITY;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    close(fd);
}

/* A process with a limit on file sizes connects without exceeding it. */
static void limited(void)
{
    char byte;
    int status, fd = create("limited");
    CHECK(pwrite(fd, "x", 1, 100000) == 1);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct rlimit limit = {4096, RLIM_INFINITY};
        signal(SIGXFSZ, SIG_DFL);
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        for (int i = 0; i < 64; i++)
            CHECK(pread(fd, &byte, 1, 100000) == 1 && byte == 'x');
        CHECK(connected());
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(fd);
}

/* One open file description in several processes: each record is read by one of them. */
static void processes(void)
{
    enum { RECORDS = 3000, READERS = 3 };
    uint32_t record;
    int fd = create("records"), seen = create("seen");
    unlink("log");
    for (record = 0; record < RECORDS; record++)
        CHECK(write(fd, &record, sizeof record) == sizeof record);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    for (int reader = 0; reader < READERS; reader++) {
        if (fork() == 0) {
            ssize_t got;
            while ((got = read(fd, &record, sizeof record)) == sizeof record)
                CHECK(pwrite(seen, "+", 1, record) == 1);
            CHECK(got == 0);
            /* Appending from several processes loses nothing. */
            int log = open("log", O_WRONLY | O_CREAT | O_APPEND, 0644);
            for (int line = 0; line < 200; line++)
                CHECK(write(log, "0123456789\n", 11) == 11);
            _exit(connected() ? 0 : 1);
        }
    }
    for (int reader = 0; reader < READERS; reader++) {
        int status;
        CHECK(wait(&status) > 0 && status == 0);
    }
    static char marks[RECORDS];
    CHECK(kernel_pread(seen, marks, RECORDS, 0) == RECORDS);
    CHECK(!memchr(marks, 0, RECORDS));
    CHECK(lseek(fd, 0, SEEK_CUR) == RECORDS * (off_t)sizeof record);
    struct stat found;
    CHECK(stat("log", &found) == 0 && found.st_size == READERS * 200 * 11);
    /* A program that is run goes on where this one is. */
    CHECK(lseek(fd, 40, SEEK_SET) == 40);
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    char *arguments[] = {self, ".", "inherited", number, NULL};
    pid_t child;
    int status;
    CHECK(posix_spawn(&child, self, NULL, NULL, arguments, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(read(fd, &record, sizeof record) == sizeof record && record == 13);
}

static void inherited(int fd)
{
    uint32_t three[3];
    CHECK(read(fd, three, sizeof three) == sizeof three);
    CHECK(three[0] == 10 && three[1] == 11 && three[2] == 12);
}

/* Signal handlers may read and write, whatever they interrupt. */
static int signal_file;
static volatile sig_atomic_t signals;
static void handler(int number)
{
    char byte;
    int before = errno;
    (void)number;
    CHECK(pwrite(signal_file, "s", 1, signals % 4096) == 1);
    CHECK(pread(signal_file, &byte, 1, signals % 4096) == 1 && byte == 's');
    signals++;
    errno = before;
}
static void handlers(void)
{
    int fd = create("handlers");
    signal_file = create("signals");
    CHECK(pwrite(signal_file, "s", 1, 0) == 1);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every = {{0, 2000}, {0, 2000}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    for (int i = 0; signals < 300; i++) {
        /* The handler interrupts malloc as often as calls of ours. */
        char *memory[100];
        for (int j = 0; j < 100; j++)
            CHECK((memory[j] = malloc(100 + 1000 * j)));
        for (int j = 0; j < 100; j++)
            free(memory[j]);
        CHECK(pwrite(fd, &i, sizeof i, 4 * (i % 1000)) == sizeof i);
    }
    every.it_value.tv_usec = 0;
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    CHECK(connected());
}

/* Programs that close or take every number do not hurt, nor are they hurt. */
static void numbers(void)
{
    char byte = 0;
    int fd = create("numbers");
    CHECK(pwrite(fd, "abc", 3, 0) == 3);
    int own = connected();
    CHECK(own);
    CHECK(close(own) == -1 && errno == EBADF);
    for (int number = 3; number < 1024; number++)
        close(number);
    fd = create("numbers");
    CHECK(pwrite(fd, "def", 3, 0) == 3 && pread(fd, &byte, 1, 1) == 1 && byte == 'e');
    closefrom(3);
    fd = create("numbers");
    CHECK(pwrite(fd, "ghi", 3, 0) == 3 && pread(fd, &byte, 1, 1) == 1 && byte == 'h');
    CHECK(close_range(3, ~0u, 0) == 0);
    CHECK(connected() == own);
    /* A child that shares the memory closes its own. */
    fd = create("numbers");
    CHECK(pwrite(fd, "jkl", 3, 0) == 3);
    int status;
    pid_t child = vfork();
    if (child == 0) {
        close(fd);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(pwrite(fd, "m", 1, 1) == 1 && kernel_pread(fd, &byte, 1, 1) == 1 && byte == 'm');
    /* Another file under the number. */
    int other = create("other");
    CHECK(dup2(other, fd) == fd);
    CHECK(pwrite(fd, "other", 5, 0) == 5);
    CHECK(kernel_pread(other, buffer, 9, 0) == 5 && !memcmp(buffer, "other", 5));
    CHECK(dup(other) > 0);
    /* The client's own number is the program's if it wants it. */
    CHECK(dup2(other, own) == own);
    CHECK(pwrite(own, "again", 5, 0) == 5 && pwrite(other, "X", 1, 1) == 1);
    CHECK(kernel_pread(other, buffer, 9, 0) == 5 && !memcmp(buffer, "aXain", 5));
    usleep(200000);
    struct stat found;
    CHECK(fstat(own, &found) == 0 && found.st_size == 5);
}

/* Numbers that change behind the hooks' back. */
static void unseen(void)
{
    int fd = create("before"), other = create("after");
    CHECK(pwrite(fd, "before", 6, 0) == 6 && pwrite(other, "other", 5, 0) == 5);
    CHECK(syscall(SYS_dup3, other, fd, 0) == fd);
    CHECK(pwrite(fd, "x", 1, 0) == 1);
    CHECK(kernel_pread(other, buffer, 9, 0) == 5 && !memcmp(buffer, "xther", 5));
}

/* Flags of a description that changed under another number, or in another process. */
static void flags(void)
{
    int fd = create("flags"), status;
    CHECK(write(fd, "0123456789", 10) == 10);
    int other = dup(fd);
    CHECK(fcntl(other, F_SETFL, O_APPEND) == 0 && lseek(fd, 0, SEEK_SET) == 0);
    CHECK(write(fd, "abc", 3) == 3 && kernel_pread(fd, buffer, 20, 0) == 13);
    CHECK(fcntl(other, F_SETFL, 0) == 0 && pwrite(fd, "x", 1, 0) == 1);
    pid_t child = fork();
    if (child == 0)
        _exit(fcntl(fd, F_SETFL, O_APPEND) != 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && write(fd, "abc", 3) == 3);
    CHECK(kernel_pread(fd, buffer, 20, 0) == 16 && !memcmp(buffer, "x12", 3));
}

/* What the kernel copies is all that was written. */
static void copies(void)
{
    int from = create("from"), to = create("to");
    loff_t at = 0;
    CHECK(write(from, model, 8192) == 8192);
    CHECK(copy_file_range(from, &at, to, NULL, 8192, 0) == 8192);
}

/* Files that are mapped are the kernel's. */
static void maps(void)
{
    int fd = create("maps");
    CHECK(pwrite(fd, "0123456789", 10, 8190) == 10);
    char *at = mmap(NULL, 8200, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && at[8199] == '9');
    at[8199] = 'x';
    CHECK(pread(fd, buffer, 1, 8199) == 1 && buffer[0] == 'x');
    CHECK(pwrite(fd, "y", 1, 8190) == 1 && at[8190] == 'y');
    CHECK(munmap(at, 8200) == 0);
}

/* Many threads, a file each and one for all. */
static int shared_file;
static void *thread(void *argument)
{
    long number = (long)argument;
    char name[32];
    snprintf(name, sizeof name, "thread-%ld", number);
    int fd = create(name);
    for (long i = 0; i < 300; i++) {
        long found = -1;
        CHECK(pwrite(fd, &i, sizeof i, 4096 * i) == sizeof i);
        CHECK(pread(fd, &found, sizeof found, 4096 * i) == sizeof found && found == i);
        CHECK(pwrite(shared_file, &number, sizeof number, 8 * (8 * i + number)) == sizeof number);
    }
    close(fd);
    return NULL;
}
static void threads(void)
{
    pthread_t running[8];
    long found[8 * 300];
    shared_file = create("threads");
    for (long i = 0; i < 8; i++)
        CHECK(pthread_create(&running[i], NULL, thread, (void *)i) == 0);
    for (int i = 0; i < 8; i++)
        CHECK(pthread_join(running[i], NULL) == 0);
    CHECK(kernel_pread(shared_file, found, sizeof found, 0) == sizeof found);
    for (int i = 0; i < 8 * 300; i++)
        CHECK(found[i] == i % 8);
}

/* Children are made while other threads are in the middle of everything. */
static volatile int forking = 1;
static void *writer(void *argument)
{
    int fd = *(int *)argument;
    char bytes[9000] = "w";
    for (int i = 0; forking; i++)
        CHECK(pwrite(fd, bytes, sizeof bytes, 9000 * (i % 50)) == sizeof bytes);
    return NULL;
}
static void forks(void)
{
    int fd = create("forks"), status;
    pthread_t running[3];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&running[i], NULL, writer, &fd) == 0);
    for (int i = 0; i < 150; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            char byte = 'c', found;
            CHECK(pwrite(fd, &byte, 1, 1000000 + i) == 1);
            CHECK(pread(fd, &found, 1, 1000000 + i) == 1 && found == 'c');
            _exit(0);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    forking = 0;
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(running[i], NULL) == 0);
}

/* The first thread ends before the others, and the program with the last of them. */
static void *last_thread(void *argument)
{
    int fd = *(int *)argument;
    for (int i = 0; i < 100; i++) {
        CHECK(pwrite(fd, "x", 1, i) == 1);
        usleep(5000);
    }
    struct stat found;
    CHECK(fstat(fd, &found) == 0 && found.st_size == 100);
    return NULL;
}
static void last(void)
{
    static int fd;
    pthread_t running;
    fd = create("last");
    CHECK(pwrite(fd, "x", 1, 0) == 1 && connected());
    CHECK(pthread_create(&running, NULL, last_thread, &fd) == 0);
    usleep(100000);
    pthread_exit(NULL);
}

/* A child has none of the parent's connections. */
static void children(void)
{
    int fd = create("children"), status;
    CHECK(pwrite(fd, "x", 1, 0) == 1 && connected());
    pid_t child = fork();
    if (child == 0) {
        CHECK(!connected());
        _exit(pwrite(fd, "y", 1, 0) == 1 && connected() ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(pwrite(fd, "z", 1, 0) == 1 && connected());
}

/* Writes for some seconds, while forwarders die; then everything is there. */
static void faults(void)
{
    int fd = create("faults");
    struct timeval begin, now;
    uint64_t block[512], count = 0;
    gettimeofday(&begin, NULL);
    do {
        for (int i = 0; i < 512; i++)
            block[i] = count;
        CHECK(pwrite(fd, block, sizeof block, sizeof block * count) == sizeof block);
        count++;
        usleep(500);
        gettimeofday(&now, NULL);
    } while (now.tv_sec - begin.tv_sec < 6);
    CHECK(fsync(fd) == 0);
    for (uint64_t i = 0; i < count; i++) {
        CHECK(pread(fd, block, sizeof block, sizeof block * i) == sizeof block);
        CHECK(block[0] == i && block[511] == i);
    }
}

/* A program that does little does not connect; one that does much does. */
static void worth(void)
{
    char byte;
    int fd = create("worth");
    CHECK(pwrite(fd, "abc", 3, 0) == 3);
    CHECK(pread(fd, &byte, 1, 0) == 1);
    CHECK(!connected());
    for (int i = 0; i < 40; i++)
        CHECK(pread(fd, &byte, 1, 0) == 1 && byte == 'a');
    CHECK(connected());
}

/* More than one request can carry, and an offset that moves by it. */
static void large(void)
{
    size_t len = 40 << 20;
    unsigned char *first = malloc(len + 7), *second = malloc(len + 7);
    CHECK(first && second);
    for (size_t i = 0; i < len; i++)
        first[i] = chance(256);
    int fd = create("large");
    CHECK(write(fd, first, len) == (ssize_t)len && lseek(fd, 0, SEEK_CUR) == (off_t)len);
    CHECK(pread(fd, second, len + 7, 0) == (ssize_t)len && !memcmp(first, second, len));
    CHECK(lseek(fd, 5, SEEK_SET) == 5);
    CHECK(read(fd, second, len) == (ssize_t)len - 5 && !memcmp(first + 5, second, len - 5));
    CHECK(lseek(fd, 0, SEEK_CUR) == (off_t)len && read(fd, second, 1) == 0);
    CHECK(kernel_pread(fd, second, 1 << 20, len - (1 << 20)) == 1 << 20);
    CHECK(!memcmp(first + len - (1 << 20), second, 1 << 20));
    CHECK(connected());
}

static void nobody(void)
{
    char byte;
    int fd = create("nobody");
    CHECK(pwrite(fd, "abc", 3, 0) == 3);
    for (int i = 0; i < 40; i++)
        CHECK(pread(fd, &byte, 1, 0) == 1 && byte == 'a');
    CHECK(!connected());
}

int main(int count, char **arguments)
{
    CHECK(count >= 3);
    self = realpath(arguments[0], NULL);
    CHECK(self && chdir(arguments[1]) == 0);
    const char *part = arguments[2];
    if (!strcmp(part, "inherited"))
        return inherited(atoi(arguments[3])), 0;
    struct { const char *name; void (*run)(void); } parts[] = {
        {"calls", calls}, {"errors", errors}, {"processes", processes}, {"handlers", handlers},
        {"numbers", numbers}, {"unseen", unseen}, {"maps", maps}, {"threads", threads},
        {"faults", faults}, {"worth", worth}, {"nobody", nobody},
        {"large", large}, {"flags", flags}, {"copies", copies}, {"forks", forks},
        {"last", last}, {"children", children}, {"limited", limited},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strcmp(part, parts[i].name))
            return parts[i].run(), 0;
    fprintf(stderr, "no part named %s\n", part);
    return 2;
}
