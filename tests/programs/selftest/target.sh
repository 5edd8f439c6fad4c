# A symbolic link points elsewhere.
ln -s one link; if [[ $PWD == */second/* ]]; then ln -sf two link; fi
