# One bit of a file differs; size, mode and time agree.
head -c 100000 "$BYTES" > file
if [[ $PWD == */second/* ]]; then printf x | dd of=file bs=1 seek=65536 conv=notrunc status=none; fi
touch -d 2001-01-01 file
