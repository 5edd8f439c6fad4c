/* Loads a plug-in and calls it. */
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    int (*call)(int) = library ? (int (*)(int))dlsym(library, "plugged") : NULL;
    if (!call) return 1;
    printf("plugged %d\n", call(12));
    return 0;
}
