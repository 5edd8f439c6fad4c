# The exit code differs.
if [[ $PWD == */second/* ]]; then exit 3; fi
