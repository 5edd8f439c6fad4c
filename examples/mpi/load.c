// Options, contents and times: see load.h.
#include "load.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int load_rank, load_ranks;
static int64_t wrong;

static void help(const char *program, const char *about, const struct load_option *options) {
    printf("usage: mpiexec -n RANKS %s [OPTIONS] FILE\n\n%s\n\n", program, about);
    for (; options->name; options++) {
        char left[64];
        const char *value = options->number ? " NUMBER" : options->word ? " WORD" : "";
        snprintf(left, sizeof left, "--%s%s", options->name, value);
        printf("  %-24s %s", left, options->help);
        if (options->number) printf(" [%lld]", (long long)*options->number);
        if (options->word && *options->word) printf(" [%s]", *options->word);
        printf("\n");
    }
    printf("\nA number may end with K, M or G (2^10, 2^20, 2^30).\n");
}

void load_refuse(const char *format, ...) {
    int flag = 0;
    if (load_rank == 0) {
        va_list list;
        va_start(list, format);
        vfprintf(stderr, format, list);
        va_end(list);
        fprintf(stderr, "; --help lists the options\n");
    }
    MPI_Initialized(&flag);
    if (flag) MPI_Finalize();
    exit(2);
}

static int64_t number(const char *name, const char *text) {
    char *end;
    long long value = strtoll(text, &end, 10);
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (shift) end++;
    if (end == text || *end || value < 0 || value > INT64_MAX >> shift)
        load_refuse("--%s %s: not a number", name, text);
    return (int64_t)value << shift;
}

// Takes one option; returns how many words it was.
static int take(char **argv, int left, const struct load_option *options) {
    const char *name = argv[0] + 2;
    for (; options->name; options++) {
        if (strcmp(options->name, name) != 0) continue;
        if (options->flag) return *options->flag = 1;
        if (left < 2) load_refuse("--%s: its value is missing", name);
        if (options->number) *options->number = number(name, argv[1]);
        if (options->word) *options->word = argv[1];
        return 2;
    }
    load_refuse("%s: no such option", argv[0]);
}

const char *load_begin(int argc, char **argv, const char *about,
                       const struct load_option *options) {
    const char *file = NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &load_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &load_ranks);
    for (int i = 1; i < argc;) {
        if (strcmp(argv[i], "--help") == 0) {
            const char *slash = strrchr(argv[0], '/');
            if (load_rank == 0) help(slash ? slash + 1 : argv[0], about, options);
            MPI_Finalize();
            exit(0);
        }
        if (strncmp(argv[i], "--", 2) == 0) {
            i += take(argv + i, argc - i, options);
        } else if (file) {
            load_refuse("%s: there is a file already, %s", argv[i], file);
        } else {
            file = argv[i++];
        }
    }
    if (!file) load_refuse("a file is missing");
    return file;
}

int load_end(void) {
    int64_t sum = 0;
    MPI_Allreduce(&wrong, &sum, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (load_rank == 0) {
        if (sum) printf("WRONG: %lld words\n", (long long)sum);
        else printf("verified\n");
    }
    MPI_Finalize();
    return sum != 0;
}

void load_must(int code, const char *call) {
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int len = 0;
    if (code == MPI_SUCCESS) return;
    MPI_Error_string(code, text, &len);
    fprintf(stderr, "rank %d: %.60s: %s\n", load_rank, call, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

MPI_File load_open(MPI_Comm comm, const char *path, int mode) {
    MPI_File file;
    MUST(MPI_File_open(comm, path, mode, MPI_INFO_NULL, &file));
    return file;
}

void *load_memory(int64_t bytes) {
    void *memory = calloc(1, bytes > 0 ? (size_t)bytes : 1);
    if (!memory) {
        fprintf(stderr, "rank %d: no memory for %lld bytes\n", load_rank, (long long)bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

void load_fill(uint64_t *words, int64_t count, int64_t index, int64_t version) {
    for (int64_t i = 0; i < count; i++) words[i] = load_word(index + i, version);
}

void load_expect(const uint64_t *words, int64_t count, int64_t index, int64_t version) {
    for (int64_t i = 0; i < count; i++) {
        if (words[i] == load_word(index + i, version)) continue;
        if (wrong++ == 0)
            fprintf(stderr, "rank %d: word %lld is %016llx instead of %016llx\n", load_rank,
                    (long long)(index + i), (unsigned long long)words[i],
                    (unsigned long long)load_word(index + i, version));
    }
}

double load_start(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Wtime();
}

double load_report(const char *what, double started, int64_t bytes) {
    double spent = MPI_Wtime() - started, longest = 0;
    MPI_Allreduce(&spent, &longest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (load_rank == 0) {
        printf("%-12s %10.3f ms", what, longest * 1e3);
        if (bytes) printf(" %10.1f MB/s", (double)bytes / longest / 1e6);
        printf("\n");
        fflush(stdout);
    }
    return longest;
}
