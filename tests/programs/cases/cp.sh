# cp: whole trees, with attributes, sparse files, into an existing folder, forced over read-only files.
cp -r "$FIXTURE/" plain
cp -a "$FIXTURE/" kept
cp -r --sparse=always "$FIXTURE/holes" sparse-copy
cp --sparse=never sparse-copy full-copy
cp -r kept plain/
cp kept/read-only plain/script || echo "cannot happen"
cp -f kept/secret plain/read-only
cp -u kept/secret kept/script plain/empty/
cp -l kept/size-4097 another-name
cp -s kept/size-1 symbolic
cp -n kept/size-1 plain/size-0
cp kept kept2 2>&1 || echo "a folder is refused: $?"
cp kept/nothing . 2>&1 || echo "a missing file is refused: $?"
cp --backup=numbered kept/size-511 plain/size-1
cmp kept/holes full-copy
diff -r --no-dereference kept plain/kept && echo "trees are alike"
