# A static C program: its system calls pass no C library that could be interposed.
command -v gcc >/dev/null || { echo "gcc is not installed"; exit 77; }
gcc -O1 -static -o static "$SRC/static.c"
./static work
cp static copy && ./copy work2 && cmp work work2
rm static copy
