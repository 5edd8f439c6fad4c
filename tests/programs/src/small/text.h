/* The library of the small project. */
const char *greeting(void);
