# dup, fork and exec share one file offset, in C and in the shell.
command -v gcc >/dev/null || { echo "gcc is not installed"; exit 77; }
gcc -O1 -o offsets "$SRC/offsets.c"
./offsets file; cat file
( echo one; (echo two; bash -c 'echo three'); echo four ) > shared; cat shared
exec 3>both; echo first >&3; ( echo second >&3 ); exec 4>&3; echo third >&4; exec 3>&- 4>&-; cat both
{ read -r a; read -r b; cat; } < shared; echo "$a $b"
exec 5<shared; head -c 4 <&5 | cat; dd bs=1 count=4 status=none <&5; exec 5<&-
rm offsets
