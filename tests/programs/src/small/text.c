/* Gives the greeting. */
#include "text.h"
const char *greeting(void) { return "hello "; }
