# Files that are unlinked or replaced while open stay usable until their last close.
exec 3<>gone
head -c 1500000 "$BYTES" >&3
rm gone
test ! -e gone && echo "the name is gone"
sha256sum < /proc/self/fd/3
python3 "$SRC/py/unlinked.py"
echo again > gone
cat gone
exec 4<gone; mv gone kept; echo other > gone; cat <&4
exec 5<kept; cp gone kept; cat <&5
exec 3>&- 4>&- 5>&-
ls -A | sort
