"""Floods of one user, for the suite `floods` and for floods_p99: each does something to a forwarder without
end, in steps, and says after each step whether the flood is there."""
import contextlib
import os
import socket
import struct
import time

from conftest import until
from session import CREATE, READ, STATUS, WRITE, Refused, Session

FLOODER, OTHER = 12345, 12346
MIB = 1024 * 1024
APPLICATION, OPEN, CLOSE, SET_LOCK, UNLINK, RENAME, READDIR = 8, 34, 35, 64, 22, 24, 25
# Requests that a flooding session has under way at once.
DEEP = 24
# A file of root's in the export that all may read, write and lock.
SHARED = "shared"


def become(uid):
    """This process as a user without other groups."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def extent(session, offset, length):
    return session.handle + struct.pack("<HQQ", 1, offset, length)


def greeted(address, client):
    def connected():
        try:
            return Session(address, client)
        except BlockingIOError:
            # As many wait to be accepted as can; a client of Tidegate comes again too.
            return None
    session = until(connected, "the forwarder accepts no connection", 60, pause=0.005)
    session.greet()
    return session


def own(kind):
    """The first id of this process's clients."""
    return kind << 48 | os.getpid() << 20


def hash_of(name):
    """The id of an application by its name."""
    value = 0xcbf29ce484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001b3 % 2**64
    for factor in (0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53):
        value = (value ^ (value >> 33)) * factor % 2**64
    return value ^ (value >> 33)


def lock(handle, kind, at):
    """The body of a request to lock or release (2) one byte of a file."""
    return handle + struct.pack("<BBQIQQBB", 0, kind, 1, 1, at, at, 0, 0)


def several(address, base, count=4):
    """Sessions that have opened the shared file."""
    made = []
    for number in range(count):
        session = greeted(address, base + number)
        session.handle = session.create(SHARED)
        session.call(OPEN, session.handle + struct.pack("<QB", 1, 3))
        made.append(session)
    return made


def at_once(sessions, requests, deep=DEEP):
    """Has each session send its requests, and takes all answers. How many were refused."""
    refused = 0
    for session in sessions:
        for request in requests(session):
            session.send(*request)
    for session in sessions:
        for _ in range(deep):
            try:
                session.take()
            except Refused:
                refused += 1
    return refused


def connections(address, pause=0.0005):
    """Connections that never say hello: each new one for an old one that was closed."""
    held = []
    while True:
        with contextlib.suppress(OSError):
            one = socket.socket(socket.AF_UNIX)
            one.connect(address.removeprefix("unix:"))
            held.append(one)
        if len(held) > 800:
            held.pop(0).close()
            # Else it would be a flood of the socket's queue, of which the kernel gives no share.
            time.sleep(pause)
        yield len(held) > 300


def knocks(address):
    """The same without a pause. Not in the suite: who finds the socket's queue full must come again and again."""
    yield from connections(address, 0)


def sessions(address):
    """As many sessions as he gets."""
    held, number, refused = [], own(1), 0
    while True:
        number += 1
        try:
            held.append(greeted(address, number))
        except (Refused, OSError, ConnectionError):
            refused += 1
        yield refused > 10


def payload(address):
    """Writes of 1 MiB of which one byte comes at a time."""
    slow = []
    for number in range(60):
        session = greeted(address, own(2) + number)
        session.handle = session.create(f"slow-{number}")
        head = []
        send, session.socket = session.socket, Recorder(head)
        session.send(WRITE, extent(session, 0, MIB), bytes(MIB), reply_slot=True)
        session.socket = send
        send.sendall(b"".join(head)[:-MIB])
        # The forwarder does not read what it has no room for.
        send.setblocking(False)
        slow.append(session)
    while True:
        for session in slow:
            with contextlib.suppress(OSError):
                session.socket.send(b"x")
        time.sleep(0.002)
        yield True


class Recorder:
    """Keeps what is sent."""

    def __init__(self, pieces):
        self.pieces = pieces

    def sendmsg(self, pieces):
        self.pieces.extend(bytes(piece) for piece in pieces)
        return sum(len(piece) for piece in pieces)


def applications(address):
    """Applications without end, and looks at the status."""
    session, number = greeted(address, own(3)), 0
    while True:
        for _ in range(30):
            number += 1
            name = b"flood-%d" % number
            body = struct.pack("<Q", hash_of(name.decode())) + b"".join(
                struct.pack("<I", len(it)) + it for it in (name, b"", b""))
            with contextlib.suppress(Refused):
                session.call(APPLICATION, body)
        session.call(STATUS)
        yield number > 1000


def opens(address):
    """Opens of one file without a close."""
    held, number = several(address, own(4)), 1
    while True:
        first = number
        number += DEEP
        at_once(held, lambda session: (
            (OPEN, session.handle + struct.pack("<QB", first + one, 3)) for one in range(1, DEEP + 1)))
        yield number > 1000


def locks(address):
    """Locks of single bytes of a file that the other user locks too, and releases of some."""
    held, at = several(address, own(5)), 2
    for session in held:
        session.owner = session.client
    while True:
        first = at
        at += 2 * DEEP
        refused = at_once(held, lambda session: (
            (SET_LOCK, lock(session.handle, 1, 1000 + (session.client % 4 << 32) + first + 2 * one)) for one in range(DEEP)))
        yield at > 4000 or refused > 0


def status(address):
    """Looks at the status."""
    held = several(address, own(6))
    while True:
        at_once(held, lambda _: ((STATUS,) for _ in range(DEEP)))
        yield True


def names(address):
    """Files that come, move, and go, and lists of them, in a folder that all may use."""
    held, number = several(address, own(7), 16), 0
    short = lambda name: bytes([len(name)]) + name
    for session in held:
        session.names = [b"flood-%d-%d" % (session.client, which) for which in range(2)]
        for one in range(20):
            session.create(f"flood-{session.client}-{one}-kept")
    while True:
        number += 1
        # Changes use one reply slot, one after another.
        at_once(held, lambda it: [(CREATE, it.root + short(it.names[0]) + struct.pack("<IB", 0o644, 0), b"", True)], 1)
        at_once(held, lambda it: [(RENAME, it.root + short(it.names[0]) + it.root + short(it.names[1]) + b"\0", b"", True)], 1)
        at_once(held, lambda it: [(UNLINK, it.root + short(it.names[1]), b"", True)], 1)
        at_once(held[:4], lambda session: (
            (READDIR, session.root + struct.pack("<QIBB", 0, 32 * 1024, 1, 0)) for _ in range(DEEP)))
        yield number > 3


def traces(address):
    """Reads of single bytes, as fast as they go: each is a record of the trace."""
    held = several(address, own(8))
    for session in held:
        session.write(session.handle, 0, bytes(4096))
    while True:
        at_once(held, lambda session: ((READ, extent(session, one, 1)) for one in range(DEEP)))
        yield True


def spin(_address):
    """No flood: a process that takes as much of a processor, to compare floods with."""
    while True:
        sum(range(10_000))
        yield True


def spin_twice(address):
    """As much as a flood and the forwarder that serves it, where the two are never idle."""
    above = os.getpid()
    if os.fork() == 0:
        while os.getppid() == above:
            next(spin(address))
        os._exit(0)
    yield from spin(address)


KINDS = (connections, sessions, payload, applications, opens, locks, status, names, traces)


def run(kind, address, going):
    """Floods until this process is ended; counts in `going` the steps with which the flood was there."""
    become(FLOODER)
    for full in kind(address):
        going.value += full
