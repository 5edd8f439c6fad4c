"""Keeps a DuckDB database in the working directory, and looks at what is in it."""
import itertools
import os
import shutil
import subprocess
import sys

import duckdb

LONG = os.environ.get("MODE") == "long"
ROWS = 200_000 if LONG else 100_000
BATCH = 100


def opened(path="store.duckdb", **options):
    base = duckdb.connect(path, **options)
    base.execute("SET threads = 2")
    return base


def ask(base, text):
    return base.execute(text).fetchall()


def refused(call, *words, **options):
    """The kind of error that a call ends in; in messages are paths and process ids."""
    try:
        call(*words, **options)
    except (duckdb.Error, OSError) as error:
        return type(error).__name__
    return "nothing"


def child(*words):
    """A process of its own that does such a work of this program."""
    return subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True)


def locked():
    """Whether a second process may open the base: for writing, for reading."""
    print("second process:", refused(opened), refused(opened, read_only=True))


def reads():
    with opened(read_only=True) as base:
        print(ask(base, "SELECT count(*) FROM items"))


def endless(log):
    """Commits batches without end and says which; they are checkpointed when there is so much of a log."""
    base = opened()
    base.execute(f"SET wal_autocheckpoint = '{log}'")
    for number in itertools.count(ask(base, "SELECT coalesce(max(batch), 0) + 1 FROM told")[0][0]):
        base.begin()
        base.execute(f"INSERT INTO told SELECT {number}, range, repeat('t', range % 300) FROM range({BATCH})")
        base.execute("UPDATE sums SET number = number + 1, items = items + ?", [BATCH])
        base.commit()
        print(number, flush=True)


def tables():
    """Tables, indexes and transactions."""
    with opened() as base:
        base.execute("CREATE TABLE kinds (id INTEGER PRIMARY KEY, name VARCHAR UNIQUE)")
        base.execute("CREATE TABLE items (id BIGINT PRIMARY KEY, kind INTEGER REFERENCES kinds (id), price DECIMAL(12, 2),"
                     " label VARCHAR, tags VARCHAR[], made TIMESTAMP)")
        base.execute("INSERT INTO kinds SELECT range, 'kind ' || range FROM range(100)")
        base.execute(f"""INSERT INTO items SELECT range, range % 100, (hash(range) % 1000000) / 100, md5(range::VARCHAR),
            ['tag ' || range % 7, 'tag ' || range % 11], TIMESTAMP '2000-01-01' + to_seconds(range) FROM range({ROWS})""")
        base.execute("CREATE INDEX by_label ON items (label)")
        base.execute("CREATE VIEW dear AS SELECT * FROM items WHERE price > 9000")
        base.execute("CHECKPOINT")
        base.begin()
        base.execute("DELETE FROM items WHERE id % 3 = 0")
        base.rollback()
        base.begin()
        base.execute("DELETE FROM items WHERE id % 10 = 7")
        base.execute("UPDATE items SET price = price + 1, label = 'changed ' || id WHERE id % 10 = 3")
        base.commit()
        print("same key:", refused(base.execute, "INSERT INTO items (id, kind) VALUES (1, 1)"))
        print("no such kind:", refused(base.execute, f"INSERT INTO items (id, kind) VALUES ({ROWS}, 1000)"))
        # Two transactions that change one row: the second is refused.
        other = base.cursor()
        base.begin()
        other.begin()
        base.execute("UPDATE items SET price = 1 WHERE id = 1")
        print("conflict:", refused(other.execute, "UPDATE items SET price = 2 WHERE id = 1"))
        other.rollback()
        base.commit()
        print(child("locked").communicate()[0].strip())
    # Closed, it is in one file.
    print(sorted(os.listdir()))
    with opened(read_only=True) as base:
        print("both read:", child("reads").communicate()[0].strip())
        print("read only:", refused(base.execute, "DELETE FROM items"))
        verify(base)


def verify(base):
    """What is in the tables, as the queries say that check themselves."""
    base.execute("PRAGMA enable_verification")
    base.execute("PRAGMA verify_external")
    print(ask(base, "SELECT count(*), sum(price), min(made), max(made), bit_xor(hash(id, kind, label, tags)) FROM items"))
    print(ask(base, "SELECT name, count(*), sum(price) FROM items JOIN kinds ON kind = kinds.id GROUP BY ALL ORDER BY ALL LIMIT 5"))
    print(ask(base, "SELECT id, tags FROM items WHERE label = 'changed 1003' OR label = md5('77') OR id = 4 ORDER BY ALL"))
    print(ask(base, "SELECT count(*), max(rank) FROM (SELECT rank() OVER (PARTITION BY kind ORDER BY price, id) rank FROM dear)"))


def recovered():
    """What was told to be committed is there after the writer was killed, whole, and nothing of the batch after it in part."""
    with opened() as base:
        base.execute("CREATE TABLE told (batch BIGINT, item INTEGER, text VARCHAR, PRIMARY KEY (batch, item))")
        base.execute("CREATE TABLE sums AS SELECT 0::BIGINT AS number, 0::BIGINT AS items")
    for kill_at, log in ((1, "1GB"), (7, "64KB"), (40, "64KB"), (41, "1GB"), *(((150, "64KB"), (151, "512KB")) if LONG else ())):
        writer = child("endless", log)
        told = [int(next(writer.stdout)) for _ in range(kill_at)]
        writer.kill()
        told += [int(line) for line in writer.stdout]
        writer.wait()
        assert log != "1GB" or os.path.getsize("store.duckdb.wal")
        with opened() as base:
            (count, last), (number, items) = (ask(base, text)[0] for text in
                                              ("SELECT count(*), max(batch) FROM told", "SELECT * FROM sums"))
            assert told[-1] <= last <= told[-1] + 1, (told[-1], last)
            assert (number, items, count) == (last, last * BATCH, last * BATCH), (last, number, items, count)
            assert not ask(base, f"SELECT batch FROM told GROUP BY batch HAVING count(*) != {BATCH}")
            assert not ask(base, "SELECT * FROM told WHERE text != repeat('t', item % 300)")
        print("killed after", kill_at, "and recovered:", sorted(os.listdir()))


def spilled():
    """A sort of more than what memory there is, beside the database."""
    with opened() as base:
        base.execute("SET threads = 1")
        base.execute(f"SET memory_limit = '{200 if LONG else 100}MB'")
        base.execute("SET temp_directory = 'spill'")
        # With hashes for keys nothing is in order before.
        sort = f"""CREATE OR REPLACE TABLE sorted AS SELECT hash(range) AS key, repeat(range::VARCHAR, 60) AS text
            FROM range({1_000_000 if LONG else 400_000}) ORDER BY key DESC"""
        base.execute("SET max_temp_directory_size = '1MB'")
        assert refused(base.execute, sort) == "OutOfMemoryException"
        base.execute("SET max_temp_directory_size = '8GB'")
        base.execute(sort)
        print(ask(base, "SELECT count(*), bit_xor(hash(key, text)) FROM sorted"))
        print("not in order:", ask(base, "SELECT count(*) FROM (SELECT key, lag(key) OVER (ORDER BY rowid) AS one FROM sorted) WHERE key > one"))
        base.execute("DROP TABLE sorted")
        base.execute("VACUUM")
        base.execute("CHECKPOINT")
        print("bytes spilled that are left:", sum(entry.stat().st_size for entry in os.scandir("spill")))


def copied():
    """Tables to files and back."""
    with opened() as base:
        # One thread and kept order: the bytes of the files are always the same.
        base.execute("SET threads = 1")
        base.execute("COPY (SELECT * FROM items ORDER BY id) TO 'items.parquet' (COMPRESSION zstd, ROW_GROUP_SIZE 20000)")
        base.execute("COPY kinds TO 'kinds.csv' (HEADER)")
        base.execute("COPY kinds TO 'kinds.json.gz' (FORMAT json)")
        base.execute("COPY (SELECT *, kind % 5 AS part FROM items ORDER BY id) TO 'parts' (FORMAT parquet, PARTITION_BY part)")
        print(sorted(os.path.join(top, name) for top, _, names in os.walk("parts") for name in names))
        print("there already:", refused(base.execute, "COPY (SELECT 1 AS one, 2 AS part) TO 'parts' (FORMAT parquet, PARTITION_BY part)"))
        base.execute("COPY (SELECT 1 AS one, 2 AS part) TO 'overwritten' (FORMAT parquet, PARTITION_BY part)")
        base.execute("COPY (SELECT 3 AS one, 4 AS part) TO 'overwritten' (FORMAT parquet, PARTITION_BY part, OVERWRITE)")
        print(ask(base, "SELECT * FROM 'overwritten/*/*.parquet'"))
        for source in ("'items.parquet'", "read_parquet('parts/*/*.parquet', hive_partitioning = true)"):
            read = f"SELECT COLUMNS(name -> name != 'part') FROM {source}"
            print("differ:", ask(base, f"SELECT count(*) FROM ({read} EXCEPT ALL FROM items)"),
                  ask(base, f"SELECT count(*) FROM (FROM items EXCEPT ALL {read})"))
        print(ask(base, "SELECT count(*) FROM 'kinds.csv' JOIN 'kinds.json.gz' USING (id, name)"))
        print(ask(base, "SELECT row_group_id, sum(total_compressed_size) > 0 FROM parquet_metadata('items.parquet') GROUP BY ALL ORDER BY ALL LIMIT 3"))
        base.execute("EXPORT DATABASE 'exported' (FORMAT parquet)")
        base.execute("ATTACH 'second.duckdb' AS second")
        for table in ("kinds", "items"):
            base.execute(f"CREATE TABLE second.{table} AS FROM store.{table}")
        base.execute("CREATE VIEW second.dear AS FROM second.items WHERE price > 9000")
        base.execute("DETACH second")
    for path in ("second.duckdb", "imported.duckdb"):
        with opened(path) as base:
            if path == "imported.duckdb":
                base.execute("IMPORT DATABASE 'exported'")
                base.execute("FORCE CHECKPOINT")
                # Of which rows groups are made depends on what was under way at once.
                shutil.rmtree("exported")
            verify(base)
            base.execute("DELETE FROM items WHERE id % 2 = 0")
            base.execute("CHECKPOINT")
    # Where pages of a base lie depends on what was under way at once.
    with opened(read_only=True) as base:
        verify(base)
        print(ask(base, "SELECT used_blocks + free_blocks = total_blocks, wal_size FROM pragma_database_size()"))


if len(sys.argv) > 1:
    {"locked": locked, "endless": endless, "reads": reads}[sys.argv[1]](*sys.argv[2:])
else:
    for step in (tables, recovered, spilled, copied):
        step()
    for name in ("store.duckdb", "second.duckdb", "imported.duckdb"):
        os.unlink(name)
