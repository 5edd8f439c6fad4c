/* What client and server say to each other over a Unix socket: a fixed header, then `len` bytes.
 * Both run on one machine, so numbers have its byte order. Replies may come in any order; the tag
 * says which request one belongs to. */
#ifndef PROTOCOL_H
#define PROTOCOL_H

#include <errno.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

enum { MAGIC = 0x54474653, LEN_MAX = 1 << 20 };

enum operation {
    OP_HELLO = 1, /* payload: the application's name */
    OP_OPEN,      /* payload: name; offset: 1 creates and empties. Reply: file, size */
    OP_READ,      /* file, offset, len. Reply: the bytes */
    OP_WRITE,     /* file, offset, payload. Reply: size is the bytes written */
    OP_STAT,      /* file. Reply: size */
    OP_CLOSE,     /* file */
    OP_POLICY,    /* payload: "window window_ms=250" */
    OP_STATS      /* reply: text */
};

struct request {
    uint32_t magic;
    uint32_t op;
    uint64_t tag;
    uint64_t offset;
    uint32_t len;
    uint32_t file;
};

struct reply {
    uint32_t magic;
    int32_t status; /* 0, or an errno */
    uint64_t tag;
    uint64_t size;
    uint32_t len;
    uint32_t file;
};

/* Whether all `len` bytes came; not at the end of the stream. */
static inline int receive_all(int fd, void *into, size_t len) {
    char *at = into;
    while (len > 0) {
        ssize_t got = recv(fd, at, len, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        at += got;
        len -= (size_t)got;
    }
    return 1;
}

/* Whether all `len` bytes went out. */
static inline int send_all(int fd, const void *from, size_t len) {
    const char *at = from;
    while (len > 0) {
        ssize_t put = send(fd, at, len, MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return 0;
        at += put;
        len -= (size_t)put;
    }
    return 1;
}

#endif
