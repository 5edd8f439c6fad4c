/* Shows that descriptors made by dup, fork and exec share one offset and one append flag. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static long long at(int fd) { return (long long)lseek(fd, 0, SEEK_CUR); }

static void put(int fd, const char *text) {
    if (write(fd, text, strlen(text)) < 0) perror("write");
}

int main(int argc, char **argv) {
    if (argc > 2) { /* The second life, after exec: descriptor 9 was passed on. */
        put(9, "after exec\n");
        dprintf(1, "exec: %lld\n", at(9));
        return 0;
    }
    int first = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    int second = dup(first);
    put(first, "first\n");
    put(second, "second\n");
    dprintf(1, "dup: %lld %lld\n", at(first), at(second));
    if (fork() == 0) {
        put(first, "child\n");
        lseek(second, 4, SEEK_CUR);
        _exit(0);
    }
    wait(NULL);
    dprintf(1, "fork: %lld\n", at(first));
    put(first, "parent\n");
    int own = open(argv[1], O_RDWR);
    dprintf(1, "own: %lld\n", at(own));
    put(own, "FIRST");
    dup2(first, 9);
    if (fork() == 0) {
        execl("/proc/self/exe", argv[0], argv[1], "again", (char *)NULL);
        _exit(127);
    }
    wait(NULL);
    dprintf(1, "after: %lld\n", at(second));
    fcntl(second, F_SETFL, O_APPEND);
    lseek(first, 0, SEEK_SET);
    put(first, "appended\n");
    dprintf(1, "append: %lld\n", at(second));
    return 0;
}
