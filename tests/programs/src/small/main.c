/* Prints its arguments times a factor. */
#include <stdio.h>
#include <stdlib.h>
#include "numbers.h"
#include "text.h"
int main(int argc, char **argv) {
    printf("%s", greeting());
    for (int i = 1; i < argc; i++) printf("%d ", atoi(argv[i]) * FACTOR);
    puts("");
    return 0;
}
