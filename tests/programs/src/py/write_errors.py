"""What each descriptor is told of a back end that fails: write_errors.py WHAT FILE; one line of what the
calls said, in their order, "ok" or an errno. The file is 1 MiB long and has its room."""
import errno
import mmap
import os
import sys

MIB = 1 << 20
WHAT, FILE = sys.argv[1:]


def said(call, *words, **more):
    try:
        call(*words, **more)
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]


def descriptor(flags=os.O_RDWR):
    return os.open(FILE, flags)


def write(fd, offset=0, length=MIB):
    return said(os.pwrite, fd, b"x" * length, offset)


def descriptors():
    """All that were open before are told once, one that was opened after the first was told is not."""
    writer, other, reader = descriptor(), descriptor(), descriptor(os.O_RDONLY)
    yield write(writer)
    yield from (said(os.fdatasync, fd) for fd in (other, writer, reader))
    late = descriptor()
    yield from (said(os.fdatasync, fd) for fd in (other, writer, reader, late))


def fsync():
    """The same by fsync, which also writes the file's attributes."""
    fds = [descriptor() for _ in range(2)]
    yield write(fds[0])
    yield from (said(os.fsync, fd) for fd in fds)


def direct():
    """The same of what is written with O_DIRECT: the program's page cache has never had it."""
    writer, other = descriptor(os.O_RDWR | os.O_DIRECT), descriptor()
    with mmap.mmap(-1, MIB) as memory:
        memory[:] = b"x" * MIB
        wrote = said(os.pwrite, writer, memory, 0)
    told = [said(os.fdatasync, fd) for fd in (other, writer, other, writer)]
    # A file system may tell it at once, or when it is asked.
    yield "told" if wrote != "ok" or told[:2] == ["ENOSPC"] * 2 else f"{wrote} {told}"
    yield from told[2:]


def closed():
    """close tells nothing; who opens the file afterwards is told."""
    writer = descriptor()
    yield write(writer)
    yield said(os.close, writer)
    late = descriptor()
    yield said(os.fdatasync, late)
    yield said(os.fdatasync, late)


def duplicate():
    """Two numbers of one open file are told together once."""
    one = descriptor()
    two = os.dup(one)
    yield write(one)
    yield from (said(os.fdatasync, fd) for fd in (two, one))


def stable():
    """Writes that must be stable fail themselves."""
    for flags in (os.O_SYNC, os.O_DSYNC):
        fd = descriptor(os.O_RDWR | flags)
        yield write(fd, length=4096)
        os.close(fd)
    fd = descriptor()
    yield said(os.pwritev, fd, [b"x" * 4096], 8192, os.RWF_DSYNC)


def mapped():
    """msync tells what the mapping's own bytes met."""
    fd = descriptor()
    with mmap.mmap(fd, MIB) as memory:
        memory[:] = b"y" * MIB
        yield said(memory.flush)


def processes():
    """Two processes write; the one that syncs first is not the only one that is told."""
    to_child, from_child = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        fd = descriptor()
        wrote = write(fd, MIB // 2, MIB // 2)
        os.write(from_child[1], f"{wrote} ".encode())
        os.read(to_child[0], 1)
        told = [said(os.fdatasync, fd)]
        os.write(from_child[1], f"{told[0]} ".encode())
        os.read(to_child[0], 1)
        os.write(from_child[1], said(os.fdatasync, fd).encode())
        os._exit(0)
    fd = descriptor()
    yield write(fd, 0, MIB // 2)
    yield os.read(from_child[0], 99).decode().strip()
    os.write(to_child[1], b"1")
    yield os.read(from_child[0], 99).decode().strip()
    yield said(os.fdatasync, fd)
    os.write(to_child[1], b"2")
    yield os.read(from_child[0], 99).decode().strip()
    yield said(os.fdatasync, fd)
    os.waitpid(child, 0)


def once():
    """A call to the back end that fails once: the first write or the first fsync."""
    fds = [descriptor() for _ in range(2)]
    yield from (write(fds[0], length=4096) for _ in range(2))
    yield from (said(os.fsync, fd) for fd in fds * 2)


def longer():
    """A write that needs room which is not there, and the fsync after it."""
    fd = descriptor()
    yield said(os.pwrite, fd, b"x" * MIB, 100 * MIB)
    yield said(os.fdatasync, fd)


def refused():
    """Writes, syncs and opens of a file system that has turned read-only."""
    fd = descriptor()
    yield write(fd, length=4096)
    yield said(os.fdatasync, fd)
    print("ready", flush=True)
    sys.stdin.readline()
    yield write(fd, length=4096)
    yield said(os.ftruncate, fd, 0)


print(*globals()[WHAT](), flush=True)
