# The program never ends in the second directory.
if [[ $PWD == */second/* ]]; then sleep 100; fi
