# A hard link became a copy.
echo same > a; if [[ $PWD == */second/* ]]; then cp a b; else ln a b; fi
