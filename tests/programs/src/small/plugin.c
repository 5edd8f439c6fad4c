/* A plug-in that is loaded at run time. */
int plugged(int x) { return x * x; }
