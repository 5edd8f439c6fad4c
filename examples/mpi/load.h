// What the loads share: options, known contents, times. Every word of 8 bytes in a file says where
// it belongs, so that a read knows what it must find without another copy.
#ifndef LOAD_H
#define LOAD_H

#include <mpi.h>
#include <stdint.h>

// An option of a program: --NAME NUMBER, or --NAME WORD, or --NAME alone. The one pointer that is
// set says which, and holds the default.
struct load_option {
    const char *name;
    const char *help;
    int64_t *number; // with K, M or G behind it for 2^10, 2^20, 2^30; at least 0
    const char **word;
    int *flag;
};

extern int load_rank, load_ranks;

// Starts MPI and reads the command line: options, then one FILE, which it returns. `--help` prints
// `about` and the options, and ends the program; so does a wrong option, with code 2. The list of
// options ends with one without a name.
const char *load_begin(int argc, char **argv, const char *about, const struct load_option *options);

// Ends MPI; returns the program's exit code: 1 if any rank read a wrong word, else 0.
int load_end(void);

// Ends all ranks with code 2 and a message of rank 0, where all of them find the same thing wrong.
_Noreturn void load_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Ends all ranks with a message if an MPI call failed.
void load_must(int code, const char *call);
#define MUST(call) load_must((call), #call)

MPI_File load_open(MPI_Comm comm, const char *path, int mode);
void *load_memory(int64_t bytes);

// The word that belongs to place `index` of a file's version `version`.
static inline uint64_t load_word(int64_t index, int64_t version) {
    uint64_t mixed =
        (uint64_t)index * 0x9e3779b97f4a7c15u + (uint64_t)version * 0xbf58476d1ce4e5b9u;
    return mixed ^ (mixed >> 29);
}
void load_fill(uint64_t *words, int64_t count, int64_t index, int64_t version);
// Counts words that are not what they must be; the first one is told.
void load_expect(const uint64_t *words, int64_t count, int64_t index, int64_t version);

// Prints, once all ranks are here, the time since `started` (MPI_Wtime) of the slowest rank, and
// the speed if `bytes`, the sum over all ranks, is not 0. Returns that time in seconds.
double load_report(const char *what, double started, int64_t bytes);
// All ranks begin together.
double load_start(void);

#endif
