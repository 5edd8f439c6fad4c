# The mode of a file differs.
echo same > file; if [[ $PWD == */second/* ]]; then chmod 600 file; fi
