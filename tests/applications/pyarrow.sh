# pyarrow: Parquet, Feather and IPC files by reads and by memory maps, partitioned data sets, and its own file system calls.
. "$REPO/tests/applications/start"
wheels=$("$REPO/tools/need" --path wheels) || skip "pyarrow is missing: run tools/need wheels"
"$wheels/bin/python" "$REPO/tests/applications/databases/pyarrow_test.py"
