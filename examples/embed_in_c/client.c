/* A client of the server beside it.
 *
 * client SOCKET put NAME [APP] < bytes     writes a file, many requests at a time
 * client SOCKET get NAME [APP] > bytes     reads a file, many requests at a time
 * client SOCKET stat NAME                  its size
 * client SOCKET policy "NAME [OPTION=VALUE ...]"
 * client SOCKET stats
 */
#include "protocol.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

enum { PIECE = 16384, WINDOW = 64 };

static int server;

static void fail(const char *what, int status) {
    fprintf(stderr, "client: %s: %s\n", what, strerror(status));
    exit(1);
}

static void ask(uint32_t op, uint64_t tag, uint32_t file, uint64_t offset, const void *payload,
                uint32_t len) {
    struct request request = {MAGIC, op, tag, offset, len, file};
    if (!send_all(server, &request, sizeof request) ||
        (payload != NULL && !send_all(server, payload, len)))
        fail("the server", ECONNRESET);
}

/* The next reply; its bytes are put where `place` says for its tag. */
static struct reply answer(char *(*place)(uint64_t tag)) {
    struct reply reply;
    static char rest[LEN_MAX + 1];
    if (!receive_all(server, &reply, sizeof reply) || reply.magic != MAGIC || reply.len > LEN_MAX)
        fail("the server", ECONNRESET);
    char *into = place != NULL ? place(reply.tag) : rest;
    if (!receive_all(server, into, reply.len)) fail("the server", ECONNRESET);
    if (place == NULL && reply.len > 0) {
        rest[reply.len] = 0;
        fputs(rest, stdout);
    }
    if (reply.status != 0) fail("the server", reply.status);
    return reply;
}

static struct reply call(uint32_t op, uint32_t file, uint64_t offset, const char *payload) {
    ask(op, 0, file, offset, payload, payload ? (uint32_t)strlen(payload) : 0);
    return answer(NULL);
}

static char *whole;

static char *piece_at(uint64_t tag) { return whole + tag * PIECE; }

/* Moves a file with WINDOW requests on their way; replies may come in any order. */
static void move_file(uint32_t op, uint32_t file, uint64_t size) {
    uint64_t pieces = (size + PIECE - 1) / PIECE, asked = 0, answered = 0;
    while (answered < pieces) {
        while (asked < pieces && asked < answered + WINDOW) {
            uint64_t offset = asked * PIECE;
            uint32_t len = size - offset < PIECE ? (uint32_t)(size - offset) : PIECE;
            ask(op, asked, file, offset, op == OP_WRITE ? whole + offset : NULL, len);
            asked++;
        }
        struct reply reply = answer(piece_at);
        uint64_t offset = reply.tag * PIECE;
        uint64_t expected = size - offset < PIECE ? size - offset : PIECE;
        if ((op == OP_WRITE ? reply.size : reply.len) != expected) fail("short", EIO);
        answered++;
    }
}

static uint64_t read_input(void) {
    uint64_t size = 0, room = 1 << 20;
    whole = malloc(room);
    for (size_t got = 1; whole != NULL && got > 0; size += got) {
        if (room - size < 1 << 16) whole = realloc(whole, room *= 2);
        got = whole != NULL ? fread(whole + size, 1, 1 << 16, stdin) : 0;
    }
    if (whole == NULL) fail("memory", ENOMEM);
    return size;
}

static void command(int argc, char **argv) {
    if (argc > 4) call(OP_HELLO, 0, 0, argv[4]);
    if (strcmp(argv[2], "put") == 0) {
        uint64_t size = read_input();
        struct reply opened = call(OP_OPEN, 0, 1, argv[3]);
        move_file(OP_WRITE, opened.file, size);
        call(OP_CLOSE, opened.file, 0, NULL);
    } else if (strcmp(argv[2], "get") == 0) {
        struct reply opened = call(OP_OPEN, 0, 0, argv[3]);
        whole = malloc(opened.size + PIECE);
        if (whole == NULL) fail("memory", ENOMEM);
        move_file(OP_READ, opened.file, opened.size);
        call(OP_CLOSE, opened.file, 0, NULL);
        if (fwrite(whole, 1, opened.size, stdout) != opened.size) fail("output", EIO);
    } else if (strcmp(argv[2], "stat") == 0) {
        struct reply opened = call(OP_OPEN, 0, 0, argv[3]);
        printf("%llu\n", (unsigned long long)call(OP_STAT, opened.file, 0, NULL).size);
    } else {
        call(OP_POLICY, 0, 0, argv[3]);
    }
    free(whole);
}

int main(int argc, char **argv) {
    static const char *const known[] = {"put", "get", "stat", "policy"};
    int stats = argc == 3 && strcmp(argv[2], "stats") == 0, found = stats;
    for (int i = 0; argc > 3 && i < 4; i++) found |= strcmp(argv[2], known[i]) == 0;
    if (!found) {
        fprintf(stderr, "usage: client SOCKET put|get NAME [APP]\n"
                        "       client SOCKET stat NAME | policy LINE | stats\n");
        return 2;
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(argv[1]) >= sizeof address.sun_path) fail(argv[1], ENAMETOOLONG);
    strcpy(address.sun_path, argv[1]);
    server = socket(AF_UNIX, SOCK_STREAM, 0);
    if (server < 0 || connect(server, (struct sockaddr *)&address, sizeof address) != 0)
        fail(argv[1], errno);
    if (stats) call(OP_STATS, 0, 0, NULL);
    else command(argc, argv);
    close(server);
    return 0;
}
