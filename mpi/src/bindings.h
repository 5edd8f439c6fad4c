// What the objects of this process have as the addresses of MPI's functions, and which of our names
// the dynamic linker finds.
#ifndef TIDEGATE_BINDINGS_H
#define TIDEGATE_BINDINGS_H

// One of our names.
struct named {
    const char *name;
    void *entry;  // our function
    void *found;  // what stands behind it, or NULL
    int is_later; // hidden by its version so far
};

// Where nothing stands behind a name, weak references to it become NULL. Where something stands
// behind one that is hidden, what was bound to it is bound to our function, and the name is shown
// to objects that are loaded from now on. `at_start`: no thread runs beside this one.
void bindings_mend(const struct named *names, int count, int at_start);

#endif
