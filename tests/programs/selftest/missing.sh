# An empty folder is missing.
mkdir a; if [[ $PWD == */first/* ]]; then mkdir a/b; fi
