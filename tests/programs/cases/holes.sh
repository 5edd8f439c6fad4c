# Sparse files: SEEK_HOLE and SEEK_DATA, fallocate in its modes, truncate up and down.
python3 "$SRC/py/holes.py"
truncate -s 3000003 t; stat -c %s t; tr -d '\0' < t | wc -c
printf end >> t; truncate -s -1 t; tail -c 2 t; echo
truncate -s 5 t; truncate -s +10 t; od -c t
truncate -s %4096 t; stat -c %s t
truncate -s 0 t; head -c 70000 "$BYTES" > t; truncate -s 65537 t; sha256sum t
truncate -c -s 5 nothing; test ! -e nothing && echo "not made"
fallocate -l 1234567 f; stat -c %s f; fallocate -l 9 f; stat -c %s f
fallocate -n -o 2M -l 1M f; stat -c %s f
head -c 1234567 "$BYTES" > p; fallocate -p -o 100000 -l 300001 p; sha256sum p
fallocate -z -o 1M -l 1M p; stat -c %s p; sha256sum p
fallocate -l 0 f 2>&1 | sed 's/.*: //' || true
