"""Builds the source data of the program cases: a tree of awkward files and 8 MiB of fixed bytes."""
import os, random

SIZES = (0, 1, 511, 4095, 4096, 4097, 65535, 65537, (1 << 20) - 1, 1 << 20, (3 << 20) + 7)
DATE_S = 1000000000


def build(scratch):
    """Makes scratch/fixture and scratch/bytes; the same bytes at every run."""
    source = random.Random(20090901)
    with open(os.path.join(scratch, "bytes"), "wb") as file:
        file.write(source.randbytes(8 << 20))
    root = os.path.join(scratch, "fixture")
    os.makedirs(os.path.join(root, "deep/er/and/deeper"))
    os.mkdir(os.path.join(root, "empty"))
    os.mkdir(os.path.join(root, "many"))
    for size in SIZES:
        put(root, f"size-{size}", source.randbytes(size))
    for index in range(120):
        put(root, f"many/{index:03}.txt", b"line %d\n" % index * (index % 7 + 1))
    put(root, "name with space", b"space\n")
    put(root, "n\u00e4me-\u65e5\u672c", b"not ASCII\n")
    put(root, "-starts-with-a-dash", b"dash\n")
    put(root, "x" * 250, b"a long name\n")
    put(root, ".hidden", b"hidden\n")
    put(root, "deep/er/and/deeper/leaf", b"leaf\n" * 1000)
    put(root, "script", b"#!/bin/sh\necho a script ran\n", 0o755)
    put(root, "secret", b"mode 0600\n", 0o600)
    put(root, "read-only", b"mode 0444\n", 0o444)
    os.link(os.path.join(root, "size-4097"), os.path.join(root, "deep/hard"))
    os.symlink("size-4096", os.path.join(root, "soft"))
    os.symlink("../nowhere", os.path.join(root, "deep/dangling"))
    os.symlink("deep/er", os.path.join(root, "to-folder"))
    with open(os.path.join(root, "holes"), "wb") as file:
        for offset in (0, 1 << 20, (5 << 20) + 4096):
            file.seek(offset)
            file.write(source.randbytes(4096))
        file.truncate(6 << 20)
    for folder, folders, files in os.walk(root, topdown=False):
        for name in files + folders:
            os.utime(os.path.join(folder, name), (DATE_S, DATE_S), follow_symlinks=False)
    os.utime(root, (DATE_S, DATE_S))


def put(root, name, data, mode=0o644):
    """One file of the tree."""
    path = os.path.join(root, name)
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)
