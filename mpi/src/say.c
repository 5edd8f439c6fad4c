// One line at a time on standard error, past stdio: a program may have closed or redirected it.
#include "say.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

int mpi_verbose;

void mpi_say(const char *format, ...) {
    char line[1024] = "tidegate: ";
    int at = sizeof "tidegate: " - 1;
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line + at, sizeof line - at - 1, format, arguments);
    va_end(arguments);
    if (more < 0) return;
    at += more < (int)sizeof line - at - 2 ? more : (int)sizeof line - at - 2;
    line[at++] = '\n';
    // Nobody is there to tell if it fails.
    ssize_t written = write(2, line, at);
    (void)written;
}
