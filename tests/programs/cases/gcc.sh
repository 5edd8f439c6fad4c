# gcc and make: a small project is built in place, run from there, changed and built again.
command -v gcc >/dev/null && command -v make >/dev/null || { echo "gcc or make is not installed"; exit 77; }
cp -r "$SRC/small" . && cd small && find . -exec touch -d 2005-05-05 {} +
make -s -j2 all; ./program 12 30
make -q all && echo "nothing to do"
sed -i 's/hello/goodbye/' text.c; make -s all; ./program 3
./plugin-user ./plugin.so
make -s check && make -s clean && ls | sort
make -s all && ./program 5 | tr a-z A-Z > result; cat result
ar t libtext.a; ldd ./plugin.so >/dev/null && echo "the loader reads it"
