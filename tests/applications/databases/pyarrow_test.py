"""Writes tables by pyarrow into the working directory in each of its formats, and reads them again."""
import hashlib
import os

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
from pyarrow import fs

LONG = os.environ.get("MODE") == "long"
ROWS = 1_000_000 if LONG else 100_000
LARGE = (6 << 30) if LONG else (300 << 20)

numbers = pa.array(range(ROWS), pa.int64())
table = pa.table({
    "id": numbers,
    "part": pc.bit_wise_and(numbers, 7),
    "value": pc.sqrt(pc.cast(numbers, pa.float64())),
    "name": pa.array([f"name {number * 7919 % ROWS}" if number % 13 else None for number in range(ROWS)]),
    "kind": pa.array([f"kind {number % 9}" for number in range(ROWS)]).dictionary_encode(),
    "list": pa.array([list(range(number % 5)) for number in range(ROWS)]),
})


def refused(call, *words, **options):
    """The kind of error that a call ends in; in messages are paths."""
    try:
        call(*words, **options)
    except (OSError, pa.ArrowException) as error:
        return type(error).__name__
    return "nothing"


def decoded(read):
    """The same without dictionaries, whose order is the reader's choice."""
    for at, field in enumerate(read.schema):
        if pa.types.is_dictionary(field.type):
            read = read.set_column(at, field.name, read[field.name].cast(pa.string()))
    return read


def same(read, wanted=table):
    """Whether a table that was read is the one that was written, and sound."""
    read.validate(full=True)
    return decoded(read).equals(decoded(wanted))


def parquet():
    pq.write_table(table, "one.parquet", compression="zstd", row_group_size=ROWS // 10, use_dictionary=["name"], write_page_index=True)
    print("parquet", same(pq.read_table("one.parquet")), same(pq.read_table("one.parquet", memory_map=True, pre_buffer=False)))
    with pq.ParquetWriter("grown.parquet", table.schema, compression="snappy", write_page_checksum=True) as writer:
        for begin in range(0, ROWS, ROWS // 20):
            writer.write_table(table.slice(begin, ROWS // 20))
    with pq.ParquetFile("grown.parquet", memory_map=True, page_checksum_verification=True) as file:
        print(file.num_row_groups, file.metadata.num_rows, file.schema_arrow.equals(table.schema))
        print(same(file.read_row_groups([3, 17], columns=["value", "id"]),
                   pa.concat_tables(table.slice(n * ROWS // 20, ROWS // 20) for n in (3, 17)).select(["value", "id"])))
        print(sum(batch.num_rows for batch in file.iter_batches(batch_size=4099)))
    found = pq.read_table("one.parquet", filters=[("id", ">=", ROWS // 2), ("kind", "in", ["kind 1", "kind 8"])])
    print(found.num_rows, pc.sum(found["id"]).as_py())
    # Half of a file is no file: the end has what is in it.
    with open("one.parquet", "rb") as whole, open("half.parquet", "wb") as half:
        half.write(whole.read(os.path.getsize("one.parquet") // 2))
    print("half a file:", refused(pq.read_table, "half.parquet"), "no file:", refused(pq.read_table, "none.parquet"))


def feather_and_ipc():
    for kind in ("uncompressed", "lz4", "zstd"):
        pa.feather.write_feather(table, f"{kind}.feather", compression=kind, chunksize=10_007)
        print(kind, *(same(pa.feather.read_table(f"{kind}.feather", memory_map=mapped)) for mapped in (True, False)),
              pa.feather.read_table(f"{kind}.feather", columns=["id", "kind"], memory_map=True).num_rows)
    with pa.OSFile("file.arrow", "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=9_973):
            writer.write_batch(batch)
    before = pa.total_allocated_bytes()
    with pa.memory_map("file.arrow") as source:
        reader = pa.ipc.open_file(source)
        print("mapped", reader.num_record_batches, same(reader.read_all()), pa.total_allocated_bytes() - before < table.nbytes // 2)
        last = reader.get_batch(reader.num_record_batches - 1)
    # A view of the map outlives the file's name.
    os.rename("file.arrow", "renamed.arrow")
    os.unlink("renamed.arrow")
    print(last.column("id")[-1].as_py())
    # A map that is written to and grows, read by the file's calls meanwhile.
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    stream = stream.getvalue()
    with pa.create_memory_map("stream.arrow", stream.size) as mapped:
        mapped.write(stream[:stream.size // 2])
        mapped.flush()
        with pa.OSFile("stream.arrow") as file:
            print("half", file.read_buffer(stream.size // 2).equals(stream[:stream.size // 2]))
        mapped.write(stream[stream.size // 2:])
        mapped.seek(0)
        print("written map", same(pa.ipc.open_stream(mapped).read_all()))
        mapped.resize(stream.size + 4096)
        mapped.seek(stream.size)
        mapped.write(b"more" * 1024)
    with pa.memory_map("stream.arrow", "r+") as mapped:
        print(mapped.size() - stream.size, mapped.read_at(8, stream.size + 4))
        mapped.seek(0)
        print(same(pa.ipc.open_stream(mapped).read_all()))
    print("read only:", refused(pa.memory_map("stream.arrow").write, b"one"))


def other_formats():
    flat = table.drop_columns(["list", "kind"])
    pa.orc.write_table(flat, "one.orc", compression="zstd")
    print("orc", same(pa.orc.read_table("one.orc"), flat))
    with pa.CompressedOutputStream("one.csv.gz", "gzip") as out:
        pa.csv.write_csv(flat.select(["id", "part", "value"]), out)
    print("csv", same(pa.csv.read_csv("one.csv.gz"), flat.select(["id", "part", "value"])))
    # A compressor's head names no time, but its version.
    os.unlink("one.csv.gz")


def data_set():
    for form in ("parquet", "feather"):
        write = {"format": form, "partitioning": ds.partitioning(pa.schema([("part", pa.int64())]), flavor="hive"),
                 "max_rows_per_file": ROWS // 20, "max_rows_per_group": ROWS // 40, "max_open_files": 3, "preserve_order": True}
        ds.write_dataset(table, form, **write)
        print(form, "there already:", refused(ds.write_dataset, table, form, **write))
        half = table.filter(pc.less(table["part"], 4))
        ds.write_dataset(half, form, existing_data_behavior="delete_matching", basename_template="again-{i}.part", **write)
        more = table.slice(0, 1000)
        ds.write_dataset(more, form, existing_data_behavior="overwrite_or_ignore", basename_template="more-{i}.part", **write)
        read = ds.dataset(form, schema=table.schema, format=form, partitioning=write["partitioning"])
        print(read.count_rows(), pc.sum(read.to_table(columns=["id"])["id"]).as_py())
        print(read.count_rows(filter=(ds.field("part") == 3) & (ds.field("id") > ROWS // 2)),
              sorted({os.path.dirname(fragment.path) for fragment in read.get_fragments(filter=ds.field("part") == 7)}))
        print("same", same(read.to_table().sort_by("id").combine_chunks().select(["id", "value", "name"]),
                           pa.concat_tables([table, more]).sort_by("id").combine_chunks().select(["id", "value", "name"])))
        # Which rows come into which file depends on what was under way at once.
        fs.LocalFileSystem().delete_dir(form)


def large_file():
    """A file of more bytes than one call or 32 bits can have, in pieces that are no multiple of anything."""
    piece = hashlib.shake_256(b"tidegate").digest((1 << 20) + 7)
    for at in range(0, LARGE, 64 << 20):
        with pa.OSFile("large", "ab") as file:
            for _ in range(3):
                file.write(piece)
        # The rest of it is holes.
        os.truncate("large", at + (64 << 20))
    print("large", os.path.getsize("large"))
    with pa.OSFile("large") as file, pa.memory_map("large") as mapped:
        print(file.size() == mapped.size(), *(file.read_at(100, at) == mapped.read_at(100, at) for at in (0, (1 << 20) - 50, LARGE - (64 << 20) - 50)))
    os.unlink("large")


def local_files():
    """The calls of its local file system: what they do, and what they refuse."""
    for mapped in (False, True):
        local = fs.LocalFileSystem(use_mmap=mapped)
        top = fs.SubTreeFileSystem(os.path.abspath("tree"), local)
        local.create_dir("tree/a/b/c", recursive=True)
        print("no parent:", refused(local.create_dir, "tree/x/y", recursive=False), "again:", refused(top.create_dir, "a/b"))
        with top.open_output_stream("a/one") as out:
            out.write(b"one" * 100_000)
        with top.open_append_stream("a/one") as out:
            out.write(b"end")
        with top.open_input_file("a/one") as file, top.open_input_stream("a/one", buffer_size=4096) as stream:
            print(file.size(), file.read_at(6, 299_997), len(stream.read()), stream.read())
        top.copy_file("a/one", "a/b/two")
        top.move("a/b/two", "a/b/c/three")
        top.move("a/b", "moved")
        with top.open_output_stream("over") as out:
            out.write(b"over")
        top.move("over", "moved/c/three")
        for path, call in (("a", top.delete_file), ("none", top.delete_file), ("a/one", top.delete_dir), ("none", top.delete_dir),
                           ("none", top.open_input_file), ("a", top.open_input_file), ("a", top.open_output_stream)):
            print(call.__name__, path, refused(call, path))
        print("move:", refused(top.move, "none", "some"), refused(top.move, "a/one", "moved"), refused(top.move, "moved", "moved/c/d"))
        for selector in (fs.FileSelector("", recursive=True), fs.FileSelector("moved"), fs.FileSelector("none", allow_not_found=True)):
            print(sorted((entry.path, entry.type.name, entry.size) for entry in top.get_file_info(selector)))
        print("listed:", refused(top.get_file_info, fs.FileSelector("none")))
        print([(entry.type.name, entry.size) for entry in top.get_file_info(["a", "a/one", "none", "moved/c/three"])])
        names = [f"many/{number % 17}/file {number}" for number in range(800 if LONG else 200)]
        for number in range(17):
            top.create_dir(f"many/{number}")
        for name in names:
            with top.open_output_stream(name) as out:
                out.write(name.encode())
        found = [entry.path for entry in top.get_file_info(fs.FileSelector("many", recursive=True)) if entry.is_file]
        print(len(found), sorted(found) == sorted(names))
        fs.copy_files(os.path.abspath("tree/many"), os.path.abspath("tree/copied"))
        print(len(top.get_file_info(fs.FileSelector("copied", recursive=True))))
        top.delete_dir_contents("many")
        print(top.get_file_info(fs.FileSelector("many")), "root:", refused(top.delete_dir_contents, ""))
        if not mapped:
            top.delete_dir_contents("/", accept_root_dir=True)
            print(top.get_file_info(fs.FileSelector("")))


for step in (parquet, feather_and_ipc, other_formats, data_set, large_file, local_files):
    step()
