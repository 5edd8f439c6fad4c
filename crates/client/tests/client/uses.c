/* Uses every function of tidegate.h once; the argument is the configuration to connect with. */

#define _GNU_SOURCE
#include "tidegate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(tidegate_attr) == ATTR_SIZE, "size of tidegate_attr");
_Static_assert(offsetof(tidegate_attr, mode) == ATTR_MODE_AT, "layout of tidegate_attr");
_Static_assert(sizeof(tidegate_piece) == PIECE_SIZE, "size of tidegate_piece");
_Static_assert(offsetof(tidegate_piece, buffer) == PIECE_BUFFER_AT, "layout of tidegate_piece");
_Static_assert(sizeof(tidegate_entry) == ENTRY_SIZE, "size of tidegate_entry");
_Static_assert(offsetof(tidegate_entry, name) == ENTRY_NAME_AT, "layout of tidegate_entry");

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, tidegate_error_text());   \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

static void files(tidegate_client *client)
{
    tidegate_file *file = NULL;
    CHECK(tidegate_open(client, "/missing", O_RDONLY, 0, &file) == -ENOENT);
    CHECK(strstr(tidegate_error_text(), "No such file") != NULL);
    CHECK(tidegate_open(client, "/file", O_RDWR | O_CREAT | O_CLOEXEC, 0644, &file) == 0);
    CHECK(tidegate_pwrite(file, "hello", 5, 0) == 5);
    uint64_t at = 0;
    CHECK(tidegate_append(file, " world", 6, &at) == 6 && at == 5);
    char buffer[32];
    CHECK(tidegate_pread(file, buffer, sizeof buffer, 0) == 11);
    CHECK(memcmp(buffer, "hello world", 11) == 0);
    CHECK(tidegate_pread(file, NULL, 1, 0) == -EINVAL);
    CHECK(tidegate_pwrite(file, buffer, SIZE_MAX, 0) == -EINVAL);
    CHECK(tidegate_fsync(file, 0) == 0);
    CHECK(tidegate_append(file, "again", 5, &at) == 3 && at == 11);
    CHECK(tidegate_append(file, "in", 2, &at) == -ENOSPC);
    CHECK(tidegate_ftruncate(file, 5) == 0);
    tidegate_attr attr;
    CHECK(tidegate_fstat(file, &attr) == 0 && attr.size == 5 && attr.mode == 0100644);

    tidegate_file *same = NULL;
    CHECK(tidegate_open_inode(client, attr.inode, attr.birth, O_RDONLY, &same) == 0);
    CHECK(tidegate_pread(same, buffer, 5, 0) == 5);
    CHECK(tidegate_close(same) == 0);
    CHECK(tidegate_close(same) == -EINVAL);
    CHECK(tidegate_pread(same, buffer, 5, 0) == -EINVAL);
    CHECK(tidegate_close((tidegate_file *)client) == -EINVAL);
    CHECK(tidegate_close(file) == 0);
}

static void lists(tidegate_client *client)
{
    tidegate_file *file = NULL;
    CHECK(tidegate_open(client, "/list", O_RDWR | O_CREAT, 0644, &file) == 0);
    char text[] = "onetwothree", bytes[32], got[16];
    tidegate_piece pieces[] = {{20, 5, text + 6}, {0, 3, text}, {7, 0, NULL}, {10, 3, text + 3}};
    CHECK(tidegate_write_list(file, pieces, 4) == 11);
    CHECK(tidegate_pread(file, bytes, sizeof bytes, 0) == 25);
    CHECK(memcmp(bytes, "one\0\0\0\0\0\0\0two\0\0\0\0\0\0\0three", 25) == 0);
    /* The last piece begins before the end of the file and goes beyond it. */
    tidegate_piece wanted[] = {{22, 8, got + 4}, {11, 2, got}, {1, 2, got + 2}};
    CHECK(tidegate_read_list(file, wanted, 3) == 7);
    CHECK(memcmp(got, "woneree", 7) == 0);
    CHECK(tidegate_read_list(file, NULL, 0) == 0);
    CHECK(tidegate_read_list(file, NULL, 1) == -EINVAL);
    tidegate_piece shared[] = {{0, 4, got}, {3, 4, got + 4}};
    CHECK(tidegate_write_list(file, shared, 2) == -EINVAL);
    CHECK(strstr(tidegate_error_text(), "share") != NULL);
    CHECK(tidegate_close(file) == 0);
    CHECK(tidegate_read_list(file, wanted, 3) == -EINVAL);
    CHECK(tidegate_unlink(client, "/list") == 0);
}

static void paths(tidegate_client *client)
{
    tidegate_attr attr;
    CHECK(tidegate_mkdir(client, "/folder", 0755) == 0);
    CHECK(tidegate_stat(client, "/folder", &attr) == 0 && attr.mode == 040755);
    CHECK(tidegate_lstat(client, "/file", &attr) == 0);
    CHECK(tidegate_stat(client, NULL, &attr) == -EINVAL);
    CHECK(tidegate_stat(client, "/file", NULL) == -EINVAL);
    CHECK(tidegate_rename(client, "/file", "/moved") == 0);
    CHECK(tidegate_truncate(client, "/moved", 100) == 0);
    CHECK(tidegate_stat(client, "/moved", &attr) == 0 && attr.size == 100);

    tidegate_dir *dir = NULL;
    tidegate_entry entry;
    CHECK(tidegate_opendir(client, "/moved", &dir) == -ENOTDIR);
    CHECK(tidegate_opendir(client, "/", &dir) == 0);
    CHECK(tidegate_readdir(dir, &entry) == 1 && strcmp(entry.name, "folder") == 0);
    CHECK(tidegate_readdir(dir, &entry) == 1 && strcmp(entry.name, "moved") == 0);
    CHECK(tidegate_readdir(dir, &entry) == 0);
    CHECK(tidegate_closedir(dir) == 0);
    CHECK(tidegate_rmdir(client, "/folder") == 0);
    CHECK(tidegate_unlink(client, "/moved") == 0);
    CHECK(tidegate_unlink(client, "/moved") == -ENOENT);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    CHECK(strlen(tidegate_version()) > 0);
    tidegate_client *client = NULL;
    CHECK(tidegate_connect("nonsense", &client) == -EINVAL);
    CHECK(tidegate_connect("unix:/nonexistent/sock;connect_timeout_s=0", &client) == -ENOTCONN);
    CHECK(tidegate_connect(argv[1], NULL) == -EINVAL);
    CHECK(tidegate_connect(argv[1], &client) == 0);
    CHECK(tidegate_set_application(client, "a job") == 0);
    char text[8];
    CHECK(tidegate_status(client, 0, text, sizeof text) == 13);
    CHECK(strcmp(text, "{\"fake\"") == 0);
    files(client);
    lists(client);
    paths(client);
    CHECK(tidegate_disconnect(client) == 0);
    CHECK(tidegate_disconnect(client) == -EINVAL);
    return 0;
}
