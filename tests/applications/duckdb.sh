# DuckDB: a database in one file is changed, checkpointed, killed in the midst, and recovered; tables go to Parquet and back.
. "$REPO/tests/applications/start"
wheels=$("$REPO/tools/need" --path wheels) || skip "DuckDB is missing: run tools/need wheels"
"$wheels/bin/python" "$REPO/tests/applications/databases/duckdb_test.py"
