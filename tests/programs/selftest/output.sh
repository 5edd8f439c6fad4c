# One line of output differs.
echo same; if [[ $PWD == */second/* ]]; then echo "more"; fi
