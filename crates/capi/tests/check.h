/* What the C tests share: checks that tell file and line, and a fixed random sequence. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(what) check_that((what) ? 1 : 0, #what, __FILE__, __LINE__)

static inline void check_that(int holds, const char *what, const char *file, int line) {
    if (!holds) {
        fprintf(stderr, "%s:%d: %s does not hold\n", file, line, what);
        abort();
    }
}

/* splitmix64: every run of a seed does the same. */
static inline uint64_t random_of(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void sleep_ms(int ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

#endif
