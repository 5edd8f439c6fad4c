"""Frames that nobody's client sends, and memory that is not as it should be: each ends its own session only."""
import fcntl
import os
import struct
import zlib

from peer import CREATE, GETATTR, READ, SET_POLICY, SHARE_MEMORY, SYMLINK, WRITE
from session import HEADER

from .scene import attempt

WHY = "a broken frame is of use to nobody"


def sealed(frame):
    """With both checksums right again, so that what is behind them is looked at."""
    body_len = min(struct.unpack_from("<I", frame, 20)[0], len(frame) - 64)
    struct.pack_into("<I", frame, 56, zlib.crc32(frame[64:64 + body_len]))
    struct.pack_into("<I", frame, 60, zlib.crc32(frame[:60]))
    return frame


def changed(at, value, seal=True):
    """A request that would take the victim's file away, with one field changed."""
    def make(p, s):
        frame = bytearray(p.frame(22, s.h["victim"] + b"\6shared", caller=(s.victim, s.victim)))
        frame[at:at + len(value)] = value
        return sealed(frame) if seal else frame
    return make


def cut(length):
    return lambda p, s: bytearray(p.frame(22, s.h["victim"] + b"\6shared"))[:length]


def request(op, body, payload=b"", **fields):
    return lambda p, s: p.frame(op, body(s), payload, **fields)


def huge(count):
    extents = b"".join(struct.pack("<QQ", 16 * number, 8) for number in range(count))
    return lambda s: s.h["shared"] + struct.pack("<H", count) + extents


FRAMES = {
    "garbage": lambda p, s: os.urandom(256),
    "zeros": lambda p, s: bytes(256),
    "text": lambda p, s: b"GET / HTTP/1.1\r\nHost: tidegate\r\nUser-Agent: a line that is long enough\r\n\r\n",
    "another magic": changed(0, b"X"),
    "an older version": changed(4, b"\1"),
    "a newer version": changed(4, b"\x63"),
    "a wrong checksum of the header": changed(9, b"\xaa", False),
    "a wrong checksum of the body": changed(80, b"\xaa", False),
    "unknown flags": changed(7, b"\x80"),
    "the flag of a reply": changed(6, b"\1"),
    "a shared payload that there is none of": changed(6, b"\x2c"),
    "a seat that does not exist": changed(16, b"\x07\0"),
    "the last seat": changed(16, b"\xff\xff"),
    "a body of 4 GiB": changed(20, b"\xff\xff\xff\xff"),
    "a payload of 4 GiB": changed(24, b"\xff\xff\xff\xff"),
    "a status in a request": changed(28, b"\1\0\0\0"),
    "no number of the reply slot": changed(32, bytes(8)),
    "a generation of the future": changed(40, b"\xff" * 8),
    "an epoch of the future": changed(48, b"\xff" * 8),
    "number 0": changed(8, bytes(8)),
    "half a header": cut(30),
    "half a body": cut(70),
    "a name of no bytes": request(22, lambda s: s.h["victim"] + b"\0"),
    "a name longer than the body": request(22, lambda s: s.h["victim"] + b"\xffshared"),
    "bytes behind the name": request(22, lambda s: s.h["victim"] + b"\6sharedmore"),
    "a name with a slash": request(22, lambda s: s.h[""] + b"\x0dvictim/shared"),
    "a name with NUL": request(22, lambda s: s.h["victim"] + b"\7shared\0"),
    "1025 groups": lambda p, s: p.frame(GETATTR, s.h["shared"], caller=(1, 1, *range(1025))),
    "a read of 8 EiB": request(READ, lambda s: s.h["shared"] + struct.pack("<HQQ", 1, 0, 2**63 - 1)),
    "a read at the end of numbers": request(READ, lambda s: s.h["shared"] + struct.pack("<HQQ", 1, 2**64 - 1, 8)),
    "a read of 0 extents": request(READ, huge(0)),
    "a read of 257 extents": request(READ, huge(257)),
    "extents that overlap": request(READ, lambda s: s.h["shared"] + struct.pack("<HQQQQ", 2, 0, 9, 8, 9)),
    "extents that go back": request(READ, lambda s: s.h["shared"] + struct.pack("<HQQQQ", 2, 100, 9, 8, 9)),
    "an extent of 0 bytes": request(READ, lambda s: s.h["shared"] + struct.pack("<HQQ", 1, 0, 0)),
    "a write of more than its payload": request(WRITE, lambda s: s.h["shared"] + struct.pack("<HQQ", 1, 0, 4096), b"less"),
    "a write of less than its payload": request(WRITE, lambda s: s.h["shared"] + struct.pack("<HQQ", 1, 0, 1), b"more"),
    "a payload where none belongs": request(GETATTR, lambda s: s.h["shared"], b"payload"),
    "a target of 4 GiB": request(SYMLINK, lambda s: s.h["own"] + b"\4link" + b"\xff\xff\xff\xff"),
    "a policy of 4 GiB": request(SET_POLICY, lambda s: b"\0\xff\xff\xff\xff"),
    "rules beside the configuration": request(SET_POLICY, lambda s: b"\2\4\0\0\0text"),
    "an unknown time of rules": request(SET_POLICY, lambda s: b"\7\0\0\0\0"),
    "a boolean of 2": request(CREATE, lambda s: s.h["victim"] + b"\7planted" + struct.pack("<IB", 0o644, 2)),
    "a mode of an open that is none": request(34, lambda s: s.h["shared"] + struct.pack("<QB", 1, 255)),
    "a lock that ends before it begins": request(64, lambda s: s.h["shared"] + struct.pack("<BBQIQQBB", 0, 1, 1, 1, 9, 3, 0, 0)),
    "a lock of an unknown kind": request(64, lambda s: s.h["shared"] + struct.pack("<BBQIQQBB", 0, 9, 1, 1, 0, 3, 0, 0)),
    "a listing of 4 GiB": request(25, lambda s: s.h["victim"] + struct.pack("<QIB", 0, 2**32 - 1, 1)),
    "a rename of an unknown mode": request(24, lambda s: s.h["victim"] + b"\6shared" + s.h["victim"] + b"\1x\x09"),
    "a time of the far past": request(33, lambda s: s.h["own/file"] + b"\x20" + struct.pack("<q", -2**63)),
    "a length at the end of numbers": request(33, lambda s: s.h["own/file"] + b"\x08" + struct.pack("<Q", 2**64 - 1)),
    "an unknown operation": lambda p, s: sealed(bytearray(p.frame(GETATTR, s.h["shared"], index=0))[:5] + b"\xfa"
                                                + bytearray(p.frame(GETATTR, s.h["shared"]))[6:]),
    "a registration of foreign memory": request(10, lambda s: struct.pack("<QQQ", 1 << 20, 0, 1)),
    "memory without a descriptor": request(SHARE_MEMORY, lambda s: struct.pack("<Q", 1 << 20)),
    "every request at once": lambda p, s: b"".join(p.frame(22, s.h["victim"] + b"\6shared") for _ in range(300)),
}


def frames():
    def of(name, make):
        def send(p, s):
            s.victims_peer()
            s.prove("the forwarder serves others", lambda: s.world.root.alive())
            data = bytes(make(p, s))
            p.socket.settimeout(0.05)
            s.quietly(p.socket.sendall, data)
            s.quietly(p.take)
            # The same as a connection's first bytes.
            stranger = s.peer(greet=False)
            s.quietly(stranger.socket.sendall, data)
            stranger.end()
        send.__name__ = name
        attempt("frames", None, ways=("unix", "tcp"), why=WHY)(send)
    for name, make in FRAMES.items():
        of(name, make)


frames()


def memory():
    return attempt("shared memory", None, ways=("unix",), why="only its own bytes can be lost")


def memfd(length, seals=fcntl.F_SEAL_SHRINK):
    descriptor = os.memfd_create("attack", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, length)
    if seals:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def served(s):
    s.victims_peer()
    s.prove("the forwarder serves others", lambda: s.world.root.alive())


def refused(p, s, length, descriptor, named=None):
    served(s)
    try:
        p.share_memory(length, descriptor, named)
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return "it was taken"


@memory()
def memory_that_can_shrink(p, s):
    return refused(p, s, 1 << 20, memfd(1 << 20, 0))


@memory()
def memory_that_is_shorter_than_said(p, s):
    return refused(p, s, 4096, memfd(4096), 1 << 30)


@memory()
def memory_of_no_bytes(p, s):
    return refused(p, s, 0, memfd(4096), 0)


@memory()
def memory_that_is_an_ordinary_file(p, s):
    path = s.path / "own/file"
    return refused(p, s, 4096, os.open(path, os.O_RDWR))


@memory()
def memory_that_is_a_pipe(p, s):
    reading, writing = os.pipe()
    os.close(writing)
    return refused(p, s, 4096, reading)


@memory()
def memory_that_can_only_be_read(p, s):
    return refused(p, s, 1 << 16, memfd(1 << 16, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE))


def placed(place, length, op=READ):
    """A request whose payload lies at a place of the shared memory."""
    def send(p, s):
        served(s)
        descriptor = memfd(1 << 16)
        p.share_memory(1 << 16, descriptor)
        os.close(descriptor)
        handle = s.h["shared"] if op == READ else s.h["own/file"]
        hints = bytes(88)
        body = struct.pack("<Q", place) + hints + handle + struct.pack("<HQQ", 1, 0, length)
        flags = 16 | 32 | (4 if op == WRITE else 0)
        head = HEADER.pack(b"TGW1", p.version, op, flags, p.ids + 1, 0, 0, len(body), length if op == WRITE else 0, 0,
                           1 if op == WRITE else 0, 0, 0, zlib.crc32(body))
        p.socket.sendall(head + struct.pack("<I", zlib.crc32(head)) + body)
        p.take()
        return "it was done"
    return send


for name, send in {
        "a read behind the memory": placed(1 << 16, 16),
        "a read over the end of the memory": placed((1 << 16) - 8, 16),
        "a read at the end of numbers": placed(2**64 - 8, 16),
        "a write from behind the memory": placed(1 << 20, 16, WRITE),
        "a write from over the end of the memory": placed((1 << 16) - 8, 16, WRITE)}.items():
    send.__name__ = name
    memory()(send)
