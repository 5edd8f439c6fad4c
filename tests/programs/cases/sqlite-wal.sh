# sqlite3 with a write-ahead log: readers and writers share memory-mapped index pages.
exec bash -euo pipefail "$SRC/sqlite.sh" wal
