// Open MPI files, and the descriptors behind them.
#ifndef TIDEGATE_FILES_H
#define TIDEGATE_FILES_H

#include "predict.h"

#include <sys/types.h>

struct file {
    struct file *next;
    MPI_File handle;
    MPI_Comm comm; // our own, unless the file has one rank
    int rank, size;
    int fd;        // of a file on a mount of ours, or -1
    int looks;     // for it, after the file was opened
    dev_t device;  // of the file by its name, else by the descriptor
    ino_t inode;
    uint64_t app;  // application that the descriptor counts for
    struct predictor *predictor;
    uint64_t operations;    // number of the first operation, the same on all ranks
    uint64_t collectives;   // so far
    int64_t clock_ahead_ns; // of forwarders
    uint64_t split;         // operation of a split collective that has not ended, or 0
    // For the line at the end.
    uint64_t predicted, hinted, off_grid;
    char path[256];
};

// The numbers that new descriptors get: a bit for each that is free of those from `first` on, which
// is the lowest.
struct free_numbers {
    int first;
    unsigned is_free;
};
void files_look(struct free_numbers *now);

// After MPI_File_open has opened `path` on all ranks of `comm`. `before`: what
// `files_look` found before that.
void files_opened(MPI_File handle, MPI_Comm comm, const char *path,
                  const struct free_numbers *before);
// The one of that handle, or NULL.
struct file *files_find(MPI_File handle);
// Before MPI_File_close.
void files_close(MPI_File handle);
// Before MPI_Finalize: tells of files that are still open.
void files_finish(void);
// Looks for the descriptor of a file that was opened later than by MPI_File_open, a few times.
void files_look_again(struct file *file);
// Whether its descriptor is still of that file. Another may have closed it.
int files_has_descriptor(struct file *file);

// The path without ROMIO's prefix for a kind of file system, as in "ufs:/scratch/x".
const char *files_path(const char *path);

// What the mount says of a descriptor; 0 if it is one of ours.
struct tidegate_file;
int files_ask(int fd, struct tidegate_file *said);

#endif
