// The names that the shim stands before; each as MPI_ and as PMPI_. Knows nothing of MPI, so that
// the chooser, which is loaded into every program, can use it too.
#ifndef TIDEGATE_NAMES_H
#define TIDEGATE_NAMES_H

#define EVERY_NAME(X)                                                                              \
    X(Init) X(Init_thread) X(Session_init) X(Finalize)                                             \
    X(File_open) X(File_close) X(File_delete) X(File_set_view) X(File_set_info)                    \
    X(File_read_all) X(File_write_all) X(File_read_at_all) X(File_write_at_all)                    \
    X(File_read_all_c) X(File_write_all_c) X(File_read_at_all_c) X(File_write_at_all_c)            \
    X(File_read_all_begin) X(File_write_all_begin)                                                 \
    X(File_read_at_all_begin) X(File_write_at_all_begin)                                           \
    X(File_read_all_begin_c) X(File_write_all_begin_c)                                             \
    X(File_read_at_all_begin_c) X(File_write_at_all_begin_c)                                       \
    X(File_read_all_end) X(File_write_all_end)                                                     \
    X(File_read_at_all_end) X(File_write_at_all_end)                                               \
    X(File_iread_all) X(File_iwrite_all) X(File_iread_at_all) X(File_iwrite_at_all)                \
    X(File_iread_all_c) X(File_iwrite_all_c) X(File_iread_at_all_c) X(File_iwrite_at_all_c)

// Where a name stands: MPI_X at NAME_X, PMPI_X at NAME_X + NAMES.
enum {
#define NUMBER(name) NAME_##name,
    EVERY_NAME(NUMBER)
#undef NUMBER
    NAMES
};

// What the chooser and a family's shim say to each other.
//
// The shim's one entry: `next` has the function behind each name, or NULL where the MPI lacks it;
// `find` yields any function of that MPI. Returns the shim's wrappers, numbered alike; NULL if it
// will not work with this MPI.
struct found {
    void *const *next;
    void *(*find)(const char *name);
    const char *library; // where the MPI's library lies
};
typedef void *const *(*start_function)(const struct found *);
#define START_NAME "tidegate_shim_start"

#endif
