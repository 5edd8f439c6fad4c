# LMDB: writers and readers by shared memory maps, a writer killed in the midst, a compacted copy.
. "$REPO/tests/applications/start"
/usr/bin/python3 -c 'import lmdb' 2> /dev/null || skip "the Python module lmdb is missing: install python3-lmdb"
has mdb_stat lmdb-utils
/usr/bin/python3 "$REPO/tests/applications/databases/lmdb_test.py" store $([ "$MODE" = quick ] && echo 400 || echo 3000)
mdb_stat -a store | grep -e Entries -e Depth
mdb_dump store | cksum
mdb_copy -c store copy 2> /dev/null || { mkdir copy && mdb_copy -c store copy; }
mdb_dump copy | cksum
# Pages that nobody uses have the bytes of whoever used them before.
rm -r store copy
