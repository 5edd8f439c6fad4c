"""A session of any user with a forwarder, for suites that attack: every operation and field of a frame by
hand, also wrong ones, and everything that the forwarder said, to be searched for what it must not say.
"""
import contextlib
import os
import socket
import struct
import zlib

import noise
from session import (CREATE, FLAG_HINTS, FLAG_REPLY, FLAG_ROW, GETATTR, HEADER, HELLO, PING, READ, VERSION,
                     WRITE, Refused, Session)

SET_POLICY, RESOLVE, SET_SHARES, APPLICATION, SHARE_MEMORY, REGISTER_MEMORY, DRAIN = 5, 6, 7, 8, 9, 10, 11
LOOKUP, MKDIR, MKNOD, SYMLINK, LINK, UNLINK, RMDIR, RENAME, READDIR = 16, 18, 19, 20, 21, 22, 23, 24, 25
SETATTR, OPEN, CLOSE, READLINK, ACCESS, FSYNC, STATFS, FALLOCATE, COPY_RANGE, SEEK = 33, 34, 35, 36, 37, 38, 39, 40, 41, 42
GETXATTR, SETXATTR, LISTXATTR, REMOVEXATTR = 43, 44, 45, 46
SET_LOCK, TEST_LOCK, DROP_LOCKS, CANCEL_LOCK, RECLAIM_DONE, APPEND = 64, 65, 66, 67, 68, 82
FLAG_REPLAY, FLAG_CALLER, FLAG_SHARED = 2, 8, 32
# Operations that carry a reply slot.
MUTATING = {CREATE, MKDIR, MKNOD, SYMLINK, LINK, UNLINK, RMDIR, RENAME, SETATTR, SETXATTR, REMOVEXATTR, FALLOCATE,
            COPY_RANGE, APPEND, WRITE}
RANGE, WHOLE = 0, 1
SHARED, EXCLUSIVE, NONE = 0, 1, 2
UNKNOWN_HANDLE = 5002
TIMEOUT_S = 20
# What may come of a request of somebody who is not let in.
NO = (Refused, ConnectionError, OSError, noise.Unproved, ValueError)


def blob(data):
    return struct.pack("<I", len(data)) + data


def short(name):
    name = name if isinstance(name, bytes) else os.fsencode(name)
    return bytes([len(name) & 255]) + name


@contextlib.contextmanager
def user(uid, groups=()):
    """This process as that user, whom the kernel tells who listens on a socket."""
    before = os.getgroups()
    os.setgroups(groups)
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


class Peer(Session):
    """A client: `where` as in Session; over TCP with a secret, if there is one."""

    count = 0

    def __init__(self, where, client=None, secret=None, least=noise.OFF, version=VERSION):
        Peer.count += 1
        self.heard, self.version, self.incarnation, self.wants = bytearray(), version, 1, (0, 0)
        self.flags, self.name, self.hints = {}, b"peer.py", bytes(88)
        super().__init__(where, client or int.from_bytes(os.urandom(7), "little") << 8 | 1)
        self.socket.settimeout(TIMEOUT_S)
        self.secret = secret
        if secret:
            self.socket = noise.Channel(self.socket, secret, least)

    def send_hello(self, joins=0, asks=0):
        hello = struct.pack("<BQQBBBQIBIII", self.version, self.client, self.incarnation, joins, asks, 0, 1, self.payload_max, 2,
                            self.payload_max, *self.wants) + blob(self.name)
        # Before version 5 a proof followed.
        self.send(HELLO, hello + (blob(b"") if self.version < 5 else b""))

    def greeted(self, **how):
        self.send_hello(**how)
        self.take_hello()
        return self

    def frame(self, op, body=b"", payload=b"", caller=None, flags=0, seat=0, index=0, sequence=None, generation=0, number=None,
              payload_len=None):
        """A request, of which every field can be another one than it should be."""
        self.ids += 1
        if caller is not None:
            uid, gid, *groups = caller
            flags |= FLAG_CALLER
            front = struct.pack(f"<IIH{len(groups)}I", uid, gid, len(groups), *groups)
        else:
            front = b""
        if op in (READ, WRITE, APPEND):
            flags |= FLAG_HINTS
            front += self.hints
        if op in MUTATING:
            flags |= FLAG_ROW
            if sequence is None:
                self.sequence += 1
                sequence = self.sequence
        body = front + body
        head = HEADER.pack(b"TGW1", self.version, op, flags, self.ids if number is None else number, seat, index, len(body),
                           len(payload) if payload_len is None else payload_len, 0, sequence or 0, generation, 0,
                           zlib.crc32(body))
        return head + struct.pack("<I", zlib.crc32(head)) + body + payload

    def send(self, op, body=b"", payload=b"", reply_slot=False, **fields):
        self.socket.sendall(self.frame(op, body, payload, **fields))

    def call(self, op, body=b"", payload=b"", reply_slot=False, **fields):
        self.send(op, body, payload, **fields)
        return self.take()

    def take(self):
        head = self._take(64)
        (magic, version, op, flags, _, _, _, body_len, payload_len, status, _, _, _, _) = HEADER.unpack(head[:60])
        if magic != b"TGW1" or version != self.version or not flags & FLAG_REPLY:
            raise ValueError(f"not a reply: {head.hex()}")
        body = self._take(body_len)
        payload = b"" if flags & FLAG_SHARED else self._take(payload_len)
        if status:
            raise Refused(op, status)
        return body, payload

    def _take(self, length):
        data = super()._take(length)
        self.heard += data
        return data

    def end(self):
        self.socket.close()

    # Each operation, with its fields in their order.

    def lookup(self, parent, name, **how):
        return self.call(LOOKUP, parent + short(name), **how)[0][:16]

    def walk(self, path):
        handle = self.root
        for name in path.split("/"):
            handle = self.lookup(handle, name)
        return handle

    def attr(self, handle, **how):
        return self.call(GETATTR, handle, **how)[0]

    def make(self, parent, name, mode=0o644, exclusive=0, **how):
        return self.call(CREATE, parent + short(name) + struct.pack("<IB", mode, exclusive), **how)[0][:16]

    def mkdir(self, parent, name, mode=0o755, **how):
        return self.call(MKDIR, parent + short(name) + struct.pack("<I", mode), **how)[0][:16]

    def mknod(self, parent, name, mode, rdev=0, **how):
        return self.call(MKNOD, parent + short(name) + struct.pack("<II", mode, rdev), **how)[0][:16]

    def symlink(self, parent, name, target, **how):
        return self.call(SYMLINK, parent + short(name) + blob(os.fsencode(target)), **how)[0][:16]

    def link(self, handle, parent, name, **how):
        return self.call(LINK, parent + short(name) + handle, **how)

    def unlink(self, parent, name, **how):
        return self.call(UNLINK, parent + short(name), **how)

    def rmdir(self, parent, name, **how):
        return self.call(RMDIR, parent + short(name), **how)

    def rename(self, parent, name, to, new, mode=0, **how):
        return self.call(RENAME, parent + short(name) + to + short(new) + bytes([mode]), **how)

    def listing(self, handle, plus=1, **how):
        return self.call(READDIR, handle + struct.pack("<QIBB", 0, 16384, plus, 0), **how)[0]

    def open(self, handle, read=True, write=False, number=7, **how):
        return self.call(OPEN, handle + struct.pack("<QB", number, read | write << 1), **how)[0]

    def close_file(self, handle, number=7, **how):
        return self.call(CLOSE, handle + struct.pack("<Q", number), **how)

    def read(self, handle, offset=0, length=64, **how):
        return self.call(READ, handle + struct.pack("<HQQ", 1, offset, length), **how)[1]

    def write(self, handle, offset=0, data=b"overwritten", **how):
        return self.call(WRITE, handle + struct.pack("<HQQ", 1, offset, len(data)), data, **how)

    def append(self, handle, data=b"appended", **how):
        return self.call(APPEND, handle, data, **how)

    def setattr(self, handle, mode=None, uid=None, gid=None, size=None, mtime=None, **how):
        fields = [(mode, "I"), (uid, "I"), (gid, "I"), (size, "Q"), (None, "q"), (mtime, "q")]
        bits = sum(1 << at for at, (value, _) in enumerate(fields) if value is not None)
        body = b"".join(struct.pack("<" + kind, value) for value, kind in fields if value is not None)
        return self.call(SETATTR, handle + bytes([bits]) + body, **how)

    def xattr(self, handle, name, **how):
        return self.call(GETXATTR, handle + short(name), **how)[0]

    def xattrs(self, handle, **how):
        return self.call(LISTXATTR, handle, **how)[0]

    def set_xattr(self, handle, name, value, **how):
        return self.call(SETXATTR, handle + short(name) + blob(value) + bytes(4), **how)

    def remove_xattr(self, handle, name, **how):
        return self.call(REMOVEXATTR, handle + short(name), **how)

    def allocate(self, handle, mode=0, offset=0, length=8192, **how):
        return self.call(FALLOCATE, handle + struct.pack("<IQQ", mode, offset, length), **how)

    def copy(self, source, target, length=64, **how):
        return self.call(COPY_RANGE, target + source + struct.pack("<QQQ", 0, 0, length), **how)

    def readlink(self, handle, **how):
        return self.call(READLINK, handle, **how)[0]

    def access(self, handle, mask=4, **how):
        return self.call(ACCESS, handle + struct.pack("<I", mask), **how)

    def fsync(self, handle, **how):
        return self.call(FSYNC, handle + b"\0", **how)

    def seek(self, handle, **how):
        return self.call(SEEK, handle + struct.pack("<QI", 0, 4), **how)[0]

    def resolve(self, handle, path="", **how):
        return self.call(RESOLVE, handle + blob(os.fsencode(path)), **how)[0][:16]

    @staticmethod
    def lock_of(kind, family=RANGE, owner=1, start=0, end=2**64 - 1):
        return struct.pack("<BBQIQQ", family, kind, owner, 4242, start, end)

    def lock(self, handle, kind=EXCLUSIVE, wait=0, reclaim=0, more=None, **what):
        return self.call(SET_LOCK, handle + self.lock_of(kind, **what) + bytes([wait, reclaim]), **(more or {}))

    def holder(self, handle, kind=EXCLUSIVE, **what):
        """What lock of somebody else is in the way of this one; empty if there is none."""
        body = self.call(TEST_LOCK, handle + self.lock_of(kind, **what))[0]
        return body[1:] if body[0] else b""

    def drop_locks(self, handle, family=RANGE, owner=1, **how):
        return self.call(DROP_LOCKS, handle + struct.pack("<BQ", family, owner), **how)

    def cancel(self, request, **how):
        return self.call(CANCEL_LOCK, struct.pack("<Q", request), **how)

    def policy(self, text, keep=0, **how):
        return self.call(SET_POLICY, bytes([keep]) + blob(text), **how)

    def shares(self, text, keep=0, **how):
        return self.call(SET_SHARES, bytes([keep]) + struct.pack("<QQ", 2**64 - 1, 1) + blob(text), **how)

    def drain(self, undo=0, **how):
        return self.call(DRAIN, bytes([undo]), **how)

    def introduce(self, name, job=b"", project=b"", app=None, **how):
        app = app_of(name) if app is None else app
        return self.call(APPLICATION, struct.pack("<Q", app) + blob(name) + blob(job) + blob(project), **how)

    def claim(self, app):
        """Later reads and writes say that they are of this application."""
        self.hints = struct.pack("<Q", app) + bytes(80)

    def share_memory(self, length, descriptor, named=None):
        """Offers memory with a descriptor; over a Unix socket only."""
        frame = self.frame(SHARE_MEMORY, struct.pack("<Q", named or length), number=2**64 - 1)
        socket.send_fds(self.socket, [frame[:1]], [descriptor] if descriptor is not None else [])
        self.socket.sendall(frame[1:])
        return self.take()

    def alive(self):
        """Whether the session goes on."""
        try:
            self.call(PING)
            return True
        except NO:
            return False


def mix(value):
    """The finaliser of ids (docs/protocol.md, "Applications")."""
    for factor in (0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53):
        value = (value ^ (value >> 33)) * factor % 2**64
    return value ^ (value >> 33)


def app_of(name):
    """The id of an application by its name."""
    value = 0xcbf29ce484222325
    for byte in name:
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return mix(value)


def unnamed_of(uid):
    """The id under which counts what a user does without a name."""
    return mix(0x7469646567617465 ^ uid << 32)
