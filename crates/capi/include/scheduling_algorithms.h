/* The numbers and names of AGIOS's algorithms, by Tidegate. AGIOS's own test uses them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MLF_SCHEDULER 0
#define TOAGG_SCHEDULER 1
#define SJF_SCHEDULER 2
#define AIOLI_SCHEDULER 3
#define TO_SCHEDULER 4
#define SW_SCHEDULER 5
#define NOOP_SCHEDULER 6
#define TWINS_SCHEDULER 7
#define WFQ_SCHEDULER 8
#define IO_SCHEDULER_COUNT 9

/* The number of the algorithm in use. */
extern int32_t config_agios_default_algorithm;

/* The name of a number, or NULL. Static. */
char *get_algorithm_name_from_index(int32_t index);

/* The number of a name; false, and that of SJF, if there is none. */
bool get_algorithm_from_string(const char *alg, int32_t *index);

#ifdef __cplusplus
}
#endif
