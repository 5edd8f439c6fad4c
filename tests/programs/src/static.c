/* Writes, reads back, renames and lists files by plain calls, for a statically linked binary. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static void must(int ok, const char *what) {
    if (!ok) {
        printf("%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "work";
    static char block[70001], back[70001];
    struct stat status;
    for (size_t i = 0; i < sizeof block; i++) block[i] = (char)(i * 31 % 251);
    int fd = open("temporary", O_RDWR | O_CREAT | O_EXCL, 0640);
    must(fd >= 0, "open");
    must(open("temporary", O_RDWR | O_CREAT | O_EXCL, 0640) < 0 && errno == EEXIST, "O_EXCL");
    for (int i = 0; i < 30; i++)
        must(pwrite(fd, block, sizeof block, (off_t)i * 50000) == (ssize_t)sizeof block, "pwrite");
    struct iovec parts[3] = {{block, 10}, {block + 100, 1}, {block + 200, 5000}};
    must(lseek(fd, -3, SEEK_END) > 0 && writev(fd, parts, 3) == 5011, "writev");
    must(fsync(fd) == 0 && fdatasync(fd) == 0, "fsync");
    must(pread(fd, back, 50000, 29 * 50000) == 50000 && !memcmp(back, block, 50000), "pread");
    must(pread(fd, back, 100, 10 << 20) == 0, "read past the end");
    must(fstat(fd, &status) == 0, "fstat");
    printf("size %lld mode %o links %d\n", (long long)status.st_size, status.st_mode & 07777,
           (int)status.st_nlink);
    must(rename("temporary", name) == 0 && access("temporary", F_OK) != 0, "rename");
    must(fchmod(fd, 0604) == 0 && ftruncate(fd, 1234567) == 0 && close(fd) == 0, "close");
    int entries = 0;
    DIR *folder = opendir(".");
    must(folder != NULL, "opendir");
    while (readdir(folder)) entries++;
    closedir(folder);
    printf("entries > 2: %d\n", entries > 2);
    must(read(open(".", O_RDONLY), back, 1) < 0 && errno == EISDIR, "read of a folder");
    must(open("no/thing", O_RDONLY) < 0 && errno == ENOENT, "ENOENT");
    must(open(name, O_RDONLY | O_DIRECTORY) < 0 && errno == ENOTDIR, "ENOTDIR");
    puts("done");
    return 0;
}
