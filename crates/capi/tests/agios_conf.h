/* The configuration file of the programs that test AGIOS's interface. */
#ifndef AGIOS_CONF_H
#define AGIOS_CONF_H

#include "check.h"

/* The folder that the test was given, and the file in it. */
static const char *folder;
static char path[4096];

/* Writes FOLDER/agios.conf with these settings, and what comes before and after them. */
static inline char *config_with(const char *before, const char *settings, const char *after) {
    snprintf(path, sizeof path, "%s/agios.conf", folder);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    fprintf(file, "%slibrary_options:\n{\n%s\n};\n%s", before, settings, after);
    CHECK(fclose(file) == 0);
    return path;
}

#endif
