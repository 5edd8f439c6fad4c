/* Tidegate's client library for C: files behind forwarders, by path or inode.
 *
 * Functions return 0, a count, or a negative errno; tidegate_error_text() says more. Handles may be
 * used by many threads. A fork child must not use its parent's: there every call ends with -EIO.
 * Compile with `pkg-config --cflags --libs tidegate_client` (docs/client.md).
 *
 * Made from crates/client/src/capi by a test; do not edit.
 */

#ifndef TIDEGATE_H
#define TIDEGATE_H

#include <stddef.h>
#include <stdint.h>

/*
 A client of a set of forwarders. For many threads; not for a fork child.
 */
typedef struct tidegate_client tidegate_client;

/*
 An open directory. For many threads, which share its position.
 */
typedef struct tidegate_dir tidegate_dir;

/*
 An open file. For many threads.
 */
typedef struct tidegate_file tidegate_file;

/*
 Attributes of a file. Times are ns since 1970.
 */
typedef struct tidegate_attr {
    /*
     Inode number on the exported file system.
     */
    uint64_t inode;
    /*
     Time of birth, which tells a reused inode number apart; 0 if unknown.
     */
    uint64_t birth;
    /*
     Bytes.
     */
    uint64_t size;
    /*
     Allocated blocks of 512 bytes.
     */
    uint64_t blocks;
    /*
     Last access.
     */
    int64_t atime_ns;
    /*
     Last change of data.
     */
    int64_t mtime_ns;
    /*
     Last change of attributes.
     */
    int64_t ctime_ns;
    /*
     Type and permission bits, as st_mode.
     */
    uint32_t mode;
    /*
     Number of names.
     */
    uint32_t nlink;
    /*
     Owner.
     */
    uint32_t uid;
    /*
     Group.
     */
    uint32_t gid;
    /*
     Device number of a device file.
     */
    uint32_t rdev;
    /*
     Preferred I/O size.
     */
    uint32_t block_size;
} tidegate_attr;

/*
 One piece of a list: bytes of a file, and where they are in memory.
 */
typedef struct tidegate_piece {
    /*
     Place in the file, bytes.
     */
    uint64_t offset;
    /*
     Number of bytes; an empty piece is passed over.
     */
    size_t len;
    /*
     Where a read puts them, or a write takes them from.
     */
    void *buffer;
} tidegate_piece;

/*
 One entry of a directory.
 */
typedef struct tidegate_entry {
    /*
     Inode number.
     */
    uint64_t inode;
    /*
     Type, as d_type: 4 directory, 8 regular file, 10 symbolic link ...
     */
    uint8_t kind;
    /*
     Name, ended by NUL.
     */
    char name[256];
} tidegate_entry;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Opens sessions with the forwarders that `config` names, such as
 "unix:/run/a.sock,tcp:node7:7000;secret=/etc/tidegate/secret;timeout_s=30", and sets `*client`.
 -EINVAL for a wrong `config`, -ENOTCONN if nobody answers, -EACCES if they refuse.
 */
int tidegate_connect(const char *config, struct tidegate_client **client);

/*
 Ends the sessions of a client, within a second. Calls that still run, and later ones on its
 files, end with -EIO; the files and directories must still be closed.
 */
int tidegate_disconnect(struct tidegate_client *client);

/*
 Names the application that later calls of this client belong to.
 */
int tidegate_set_application(struct tidegate_client *client, const char *name);

/*
 Copies the state of forwarder `index` as JSON text to `buffer`, cut to `len` bytes with the
 final NUL. Returns the whole text's length without NUL.
 */
int64_t tidegate_status(struct tidegate_client *client, size_t index, char *buffer, size_t len);

/*
 Version of this library, such as "0.1.0".
 */
const char *tidegate_version(void);

/*
 Why the last call of this thread that failed did so; empty if none has. Valid until the thread's
 next failure.
 */
const char *tidegate_error_text(void);

/*
 Opens a regular file by its path from the root of the export and sets `*file`. `flags` are those
 of open(2): O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT, O_EXCL, O_TRUNC, O_NOFOLLOW, O_CLOEXEC,
 O_LARGEFILE; others are -EINVAL. To append, use tidegate_append.
 */
int tidegate_open(struct tidegate_client *client,
                  const char *path,
                  int flags,
                  uint32_t mode,
                  struct tidegate_file **file);

/*
 Opens a regular file by inode number and birth, as tidegate_stat reports them. `flags` are
 O_RDONLY, O_WRONLY or O_RDWR.
 */
int tidegate_open_inode(struct tidegate_client *client,
                        uint64_t inode,
                        uint64_t birth,
                        int flags,
                        struct tidegate_file **file);

/*
 Closes a file. Its bytes are with the forwarders, but stable only after tidegate_fsync; a
 negative errno tells that some are not that were held back (`coalesce_bytes`). Closed it is in
 any case.
 */
int tidegate_close(struct tidegate_file *file);

/*
 Reads up to `len` bytes at `offset`; returns how many, fewer only at the end of the file.
 */
int64_t tidegate_pread(struct tidegate_file *file, void *buffer, size_t len, uint64_t offset);

/*
 Writes `len` bytes at `offset`; returns how many.
 */
int64_t tidegate_pwrite(struct tidegate_file *file,
                        const void *buffer,
                        size_t len,
                        uint64_t offset);

/*
 Writes at the end of the file in one piece; returns how many bytes, which may be fewer than
 `len`, and sets `*offset`, unless it is NULL, to where they are.
 */
int64_t tidegate_append(struct tidegate_file *file,
                        const void *buffer,
                        size_t len,
                        uint64_t *offset);

/*
 Returns when all that was written to the file is stable; without the attributes that reading
 does not need if `data_only` is not 0.
 */
int tidegate_fsync(struct tidegate_file *file, int data_only);

/*
 Cuts or extends the file to `size` bytes.
 */
int tidegate_ftruncate(struct tidegate_file *file, uint64_t size);

/*
 Fills `*attr` with the attributes of the file.
 */
int tidegate_fstat(struct tidegate_file *file, struct tidegate_attr *attr);

/*
 Reads `count` pieces of a file in one call. They may be in any order; none may share bytes of
 the file with another. Returns how many bytes were read: fewer than the pieces hold only at the
 end of the file, and then those of the lowest offsets. -EINVAL for more than 65536 pieces, or
 2147479552 bytes.
 */
int64_t tidegate_read_list(struct tidegate_file *file,
                           const struct tidegate_piece *pieces,
                           size_t count);

/*
 Writes `count` pieces of a file in one call, as tidegate_read_list reads them; buffers are only
 read. Returns how many bytes were written; fewer than the pieces hold if there was no room for
 more, or another error, and then those of the lowest offsets.
 */
int64_t tidegate_write_list(struct tidegate_file *file,
                            const struct tidegate_piece *pieces,
                            size_t count);

/*
 Fills `*attr` with the attributes of the file that a path leads to.
 */
int tidegate_stat(struct tidegate_client *client, const char *path, struct tidegate_attr *attr);

/*
 The same, of a symbolic link itself if the path ends in one.
 */
int tidegate_lstat(struct tidegate_client *client, const char *path, struct tidegate_attr *attr);

/*
 Creates a directory.
 */
int tidegate_mkdir(struct tidegate_client *client, const char *path, uint32_t mode);

/*
 Removes an empty directory.
 */
int tidegate_rmdir(struct tidegate_client *client, const char *path);

/*
 Removes a name of a file that is no directory.
 */
int tidegate_unlink(struct tidegate_client *client, const char *path);

/*
 Moves a file to another path, replacing what is there.
 */
int tidegate_rename(struct tidegate_client *client, const char *from, const char *to);

/*
 Cuts or extends the file at a path to `size` bytes.
 */
int tidegate_truncate(struct tidegate_client *client, const char *path, uint64_t size);

/*
 Opens the directory at a path and sets `*dir`.
 */
int tidegate_opendir(struct tidegate_client *client, const char *path, struct tidegate_dir **dir);

/*
 Fills `*entry` with the next entry, without "." and "..". Returns 1, or 0 at the end.
 */
int tidegate_readdir(struct tidegate_dir *dir, struct tidegate_entry *entry);

/*
 Closes a directory.
 */
int tidegate_closedir(struct tidegate_dir *dir);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TIDEGATE_H */
