// Reads ROMIO's effective hints. MPICH's MPI_File_get_info returns them; Open MPI's returns only
// what the program gave, so there ROMIO's defaults and its file of hints are put together here.
#include "tuning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "flatten.h"
#include "real.h"

static int text(MPI_Info info, const char *key, char *value) {
    int found = 0;
    if (real_MPI_Info_get(info, key, MPI_MAX_INFO_VAL, value, &found) != 0) return 0;
    return found;
}

static int64_t number(MPI_Info info, const char *key, int64_t otherwise) {
    char value[MPI_MAX_INFO_VAL + 1];
    return text(info, key, value) ? atoi(value) : otherwise;
}

static enum collective_buffering buffering(MPI_Info info, const char *key,
                                           enum collective_buffering otherwise) {
    char value[MPI_MAX_INFO_VAL + 1];
    if (!text(info, key, value)) return otherwise;
    if (strcasecmp(value, "enable") == 0 || strcasecmp(value, "requested") == 0) return CB_ENABLE;
    if (strcasecmp(value, "disable") == 0) return CB_DISABLE;
    return strcasecmp(value, "automatic") == 0 ? CB_AUTOMATIC : otherwise;
}

static void rehash(struct tuning *tuning) {
    uint64_t hash = flatten_mixed((uint64_t)tuning->aggregators, (uint64_t)tuning->buffer_size);
    hash = flatten_mixed(hash, (uint64_t)tuning->stripe);
    hash = flatten_mixed(hash, (uint64_t)tuning->domain_min);
    for (int i = 0; i < tuning->aggregators; i++)
        hash = flatten_mixed(hash, (uint64_t)tuning->ranks[i]);
    tuning->hash = hash;
}

// A hint that the file does not tell stays as it was.
static void read_changeable(struct tuning *tuning, MPI_Info info) {
    char value[MPI_MAX_INFO_VAL + 1];
    tuning->buffer_size = number(info, "cb_buffer_size", tuning->buffer_size);
    tuning->stripe = number(info, "striping_unit", tuning->stripe);
    tuning->domain_min = number(info, "romio_min_fdomain_size", tuning->domain_min);
    tuning->read = buffering(info, "romio_cb_read", tuning->read);
    tuning->write = buffering(info, "romio_cb_write", tuning->write);
    // Whoever promises collective I/O alone gets it.
    if (text(info, "romio_no_indep_rw", value) && strcasecmp(value, "true") == 0)
        tuning->read = tuning->write = CB_ENABLE;
    tuning->persistent_realms = buffering(info, "romio_cb_pfr", CB_DISABLE) == CB_ENABLE;
    if (tuning->stripe < 0) tuning->stripe = 0;
    rehash(tuning);
}

// "0 1 3 ": ROMIO cuts a list that is longer than an info value, and then it is too short here.
static int read_aggregators(struct tuning *tuning, MPI_Info info, int ranks) {
    char value[MPI_MAX_INFO_VAL + 1], *at = value, *end;
    int64_t nodes = number(info, "cb_nodes", 0);
    if (nodes < 1 || nodes > ranks || !text(info, "romio_aggregator_list", value)) return -1;
    for (tuning->aggregators = 0; tuning->aggregators < nodes; tuning->aggregators++) {
        long rank = strtol(at, &end, 10);
        // The last number counts only with its space behind it.
        if (end == at || *end != ' ' || rank < 0 || rank >= ranks) return -1;
        tuning->ranks[tuning->aggregators] = (int)rank;
        at = end;
    }
    return 0;
}

#ifdef OPEN_MPI

// The file of hints counts where the program gave no such hint; ROMIO reads it once, on rank 0.
static void system_hints(MPI_Info info, MPI_Comm comm) {
    char lines[4096];
    char *line, *next_line, *key, *value, *next, old[MPI_MAX_INFO_VAL + 1];
    int rank = 0;
    memset(lines, 0, sizeof lines);
    real_MPI_Comm_rank(comm, &rank);
    if (rank == 0) {
        const char *path = getenv("ROMIO_HINTS");
        FILE *file = path ? fopen(path, "r") : NULL;
        if (!file) file = fopen("/etc/romio-hints", "r");
        if (file) {
            if (fread(lines, 1, sizeof lines - 1, file) == 0) lines[0] = 0;
            fclose(file);
        }
    }
    real_MPI_Bcast(lines, sizeof lines, MPI_CHAR, 0, comm);
    for (line = strtok_r(lines, "\n", &next_line); line; line = strtok_r(NULL, "\n", &next_line)) {
        key = strtok_r(line, " \t", &next);
        value = key ? strtok_r(NULL, " \t", &next) : NULL;
        if (!value || key[0] == '#' || strtok_r(NULL, " \t", &next)) continue;
        if (!text(info, key, old)) real_MPI_Info_set(info, key, value);
    }
}

// The aggregators by cb_config_list: "*:N" takes the first N ranks of every host, host by host in
// the order of their first rank; "*:*" all. Other lists are not read here.
static int choose_aggregators(struct tuning *tuning, MPI_Info info, MPI_Comm comm, int ranks) {
    char value[MPI_MAX_INFO_VAL + 1] = "*:1", name[MPI_MAX_PROCESSOR_NAME + 1] = "", *names;
    int length = 0, per_host;
    char *done = calloc((size_t)ranks, 1);
    int64_t nodes = number(info, "cb_nodes", ranks);
    names = malloc((size_t)ranks * sizeof name);
    if (!names || !done) {
        free(names);
        free(done);
        return -1;
    }
    real_MPI_Get_processor_name(name, &length);
    real_MPI_Allgather(name, sizeof name, MPI_CHAR, names, sizeof name, MPI_CHAR, comm);
    if (nodes < 1 || nodes > ranks) nodes = ranks;
    text(info, "cb_config_list", value);
    tuning->aggregators = 0;
    if (strcmp(value, "*:*") == 0) {
        for (; tuning->aggregators < nodes; tuning->aggregators++)
            tuning->ranks[tuning->aggregators] = tuning->aggregators;
    } else if (strncmp(value, "*:", 2) == 0 && (per_host = atoi(value + 2)) > 0) {
        for (int i = 0; i < ranks; i++)
            for (int j = i, n = 0; !done[i] && j < ranks; j++) {
                if (strcmp(names + i * sizeof name, names + j * sizeof name) != 0) continue;
                done[j] = j > i;
                if (n++ < per_host && tuning->aggregators < nodes)
                    tuning->ranks[tuning->aggregators++] = j;
            }
    }
    free(names);
    free(done);
    return tuning->aggregators > 0 ? 0 : -1;
}

// Which component serves MPI-IO is a parameter of Open MPI; without it, it is its own OMPIO.
static int is_romio(void) {
    const char *chosen = getenv("OMPI_MCA_io");
    return chosen && strncmp(chosen, "romio", 5) == 0;
}

static int completed(MPI_File file, MPI_Info *info, MPI_Comm comm) {
    if (!is_romio() || real_MPI_File_get_info(file, info) != 0) return -1;
    system_hints(*info, comm);
    return 0;
}

#endif

int tuning_open(struct tuning *tuning, MPI_File file, MPI_Comm comm) {
    MPI_Info info = MPI_INFO_NULL;
    int ranks, done = -1;
    memset(tuning, 0, sizeof *tuning);
    real_MPI_Comm_size(comm, &ranks);
    tuning->ranks = calloc((size_t)ranks, sizeof *tuning->ranks);
    tuning->buffer_size = 16 << 20; // ROMIO's default
    if (!tuning->ranks) return -1;
#ifdef OPEN_MPI
    if (completed(file, &info, comm) != 0) return -1;
    done = choose_aggregators(tuning, info, comm, ranks);
    (void)read_aggregators;
#else
    if (real_MPI_File_get_info(file, &info) != 0) return -1;
    done = read_aggregators(tuning, info, ranks);
#endif
    if (done == 0) read_changeable(tuning, info);
    real_MPI_Info_free(&info);
    return done == 0 && tuning->buffer_size > 0 ? 0 : -1;
}

int tuning_refresh(struct tuning *tuning, MPI_File file) {
    MPI_Info info;
    if (real_MPI_File_get_info(file, &info) != 0) return -1;
    read_changeable(tuning, info);
    real_MPI_Info_free(&info);
    return tuning->buffer_size > 0 ? 0 : -1;
}

void tuning_free(struct tuning *tuning) {
    free(tuning->ranks);
    memset(tuning, 0, sizeof *tuning);
}
