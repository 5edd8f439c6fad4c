// The names that the shim stands before; each as MPI_ and as PMPI_. Knows nothing of MPI, so that
// the chooser, which is loaded into every program, can use it too.
#ifndef TIDEGATE_NAMES_H
#define TIDEGATE_NAMES_H

// Those that every MPI has that the shim works with: they are in MPI 3.0.
#define LASTING_NAMES(X)                                                                           \
    X(Init) X(Init_thread) X(Finalize)                                                             \
    X(File_open) X(File_close) X(File_delete) X(File_set_view) X(File_set_info)                    \
    X(File_get_info)                                                                               \
    X(File_read_all) X(File_write_all) X(File_read_at_all) X(File_write_at_all)                    \
    X(File_read_all_begin) X(File_write_all_begin)                                                 \
    X(File_read_at_all_begin) X(File_write_at_all_begin)                                           \
    X(File_read_all_end) X(File_write_all_end)                                                     \
    X(File_read_at_all_end) X(File_write_at_all_end)

// Those that came later, which an MPI may lack: with MPI 3.1, and with 4.0.
#define LATER_NAMES(X)                                                                             \
    X(File_iread_all) X(File_iwrite_all) X(File_iread_at_all) X(File_iwrite_at_all)                \
    X(Session_init)                                                                                \
    X(File_read_all_c) X(File_write_all_c) X(File_read_at_all_c) X(File_write_at_all_c)            \
    X(File_read_all_begin_c) X(File_write_all_begin_c)                                             \
    X(File_read_at_all_begin_c) X(File_write_at_all_begin_c)                                       \
    X(File_iread_all_c) X(File_iwrite_all_c) X(File_iread_at_all_c) X(File_iwrite_at_all_c)

#define EVERY_NAME(X) LASTING_NAMES(X) LATER_NAMES(X)

// Where a name stands: MPI_X at NAME_X, PMPI_X at NAME_X + NAMES.
enum {
#define NUMBER(name) NAME_##name,
    LASTING_NAMES(NUMBER)
    NAMES_LASTING,
    NAMES_BEFORE_LATER = NAMES_LASTING - 1, // the numbers go on without a gap
    LATER_NAMES(NUMBER)
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
