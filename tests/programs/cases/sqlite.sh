# sqlite3: schema, transactions, rollback, concurrent writers with the rollback journal, integrity_check.
exec bash -euo pipefail "$SRC/sqlite.sh" delete
