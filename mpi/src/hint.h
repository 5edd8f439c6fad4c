// What the shim tells the short-cut (by calls) and the mount (by device control calls) about I/O
// that is to come. The same layouts are in crates/client/src/shortcut.rs.
#ifndef TIDEGATE_HINT_H
#define TIDEGATE_HINT_H

#include <stdint.h>
#include <sys/ioctl.h>

// Requests of one open file that belong to one operation: those inside of one step each.
struct tidegate_hint {
    uint64_t operation;       // its number, for all ranks the same
    uint64_t operation_bytes; // that it moves, over all ranks; 0: not known
    uint64_t stamp_ns;        // when it began, for all ranks the same
    uint64_t first, last;     // bytes of the file
    uint64_t step;            // steps begin at first + i*step
    uint32_t shuffle_us;      // work that follows its requests
    uint32_t flags;           // HINT_
    // Answered: of this open file so far.
    uint64_t hinted;   // requests that carried hints
    uint64_t off_grid; // that should have fitted, and did not
    // Told: the longest shuffle of all parts of the operation, and how many parts have a longer one.
    uint32_t shuffle_max_us, shuffle_rank;
};

// While it is there, every request has to fit: nothing else is done on this file meanwhile.
#define HINT_EXCLUSIVE 1u
// Steps are predicted, and may be wrong; without, they are no prediction at all.
#define HINT_PREDICTED 2u

// What the mount says of a file or directory.
struct tidegate_file {
    char magic[8]; // FILE_MAGIC
    uint64_t inode, birth;
    uint64_t app;            // application that the open counts for
    uint64_t clock_ahead_ns; // two's complement: how far forwarders' clocks are ahead of this one's
    uint64_t stripe_bytes;
    uint64_t forwarders;
    uint64_t text_len, name_len;
    char text[4024];
};
#define FILE_MAGIC "tidegat2"

// The name of the caller's application, ended by NUL.
struct tidegate_application {
    char name[256];
};

#define TIDEGATE_FILE _IOR(0xf7, 1, struct tidegate_file)
#define TIDEGATE_HINT _IOWR(0xf7, 2, struct tidegate_hint)
#define TIDEGATE_HINT_END _IOWR(0xf7, 3, struct tidegate_hint)
#define TIDEGATE_APPLICATION _IOW(0xf7, 4, struct tidegate_application)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "as on the wire");
_Static_assert(sizeof(struct tidegate_hint) == 80, "as in crates/client/src/shortcut.rs");
_Static_assert(sizeof(struct tidegate_file) == 4096, "as in crates/client/src/shortcut.rs");

// The short-cut's: 1 if it does the file's I/O itself, and has heard; 0 if the mount does.
typedef int (*hint_function)(int fd, struct tidegate_hint *hint);

#endif
