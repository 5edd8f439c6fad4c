"""While one user floods a forwarder of root, another user's new sessions are served, his reads and writes
are done, and what the first did is counted for the first alone. Judged by counts, not by speed."""
import contextlib
import json
import os
import socket
import struct

import pytest
from conftest import FORK, Forwarder, stop, until
from session import BYE, READ, STATUS, WRITE, Refused, Session

FLOODER, OTHER = 12345, 12346
MIB = 1024 * 1024
# Rounds of the other user under each flood.
ROUNDS = 20
APPLICATION = 8


@pytest.fixture
def forwarder(work):
    if os.geteuid():
        pytest.skip("only root can be several users")
    with work.part() as part:
        data = part.folder("data")
        for folder, mode in (work.path, 0o711), (part.path, 0o711), (data, 0o1777):
            os.chmod(folder, mode)
        address = f"unix:{part / 'socket'}"
        forwarder = Forwarder(part, "forwarder", export=data, listen=[address], sessions_max=512,
                              pool_bytes=16 * MIB, stall_ms=600000)
        yield address
        stop(forwarder.process)


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


def hash_of(name):
    """The id of an application by its name."""
    value = 0xcbf29ce484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001b3 % 2**64
    for factor in (0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53):
        value = (value ^ (value >> 33)) * factor % 2**64
    return value ^ (value >> 33)


def connections(address):
    """Connections that never say hello: each new one for an old one that was closed."""
    held = []
    while True:
        with contextlib.suppress(OSError):
            one = socket.socket(socket.AF_UNIX)
            one.connect(address.removeprefix("unix:"))
            held.append(one)
        if len(held) > 800:
            held.pop(0).close()
        yield len(held) > 300


def sessions(address):
    """As many sessions as he gets."""
    held, number, refused = [], 1 << 40, 0
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
        session = greeted(address, (2 << 40) + number)
        session.handle = session.create(f"slow-{number}")
        head = []
        send, session.socket = session.socket, Recorder(head)
        session.send(WRITE, extent(session, 0, MIB), bytes(MIB), reply_slot=True)
        session.socket = send
        send.sendall(b"".join(head)[:-MIB])
        slow.append(session)
    while True:
        for session in slow:
            with contextlib.suppress(OSError):
                session.socket.sendall(b"x")
        yield True


class Recorder:
    """Keeps what is sent."""

    def __init__(self, pieces):
        self.pieces = pieces

    def sendmsg(self, pieces):
        self.pieces.extend(bytes(piece) for piece in pieces)
        return sum(len(piece) for piece in pieces)


def names(address):
    """Applications without end, and looks at the status."""
    session, number = greeted(address, 3 << 40), 0
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


def flood(kind, address, going):
    os.setgroups([])
    os.setresgid(FLOODER, FLOODER, FLOODER)
    os.setresuid(FLOODER, FLOODER, FLOODER)
    for full in kind(address):
        going.value += full


def other(address, base, done):
    """New sessions that write and read."""
    os.setgroups([])
    os.setresgid(OTHER, OTHER, OTHER)
    os.setresuid(OTHER, OTHER, OTHER)
    for number in range(ROUNDS):
        session = greeted(address, base + number)
        session.handle = session.create("other")
        own = b"%08d" % number * (MIB // 8)
        session.call(WRITE, extent(session, 0, MIB), own, reply_slot=True)
        if session.call(READ, extent(session, 0, MIB))[1] == own:
            done.value += 1
        session.call(BYE)
        session.socket.close()


@pytest.mark.parametrize("kind", [connections, sessions, payload, names])
def test_another_user_is_served(forwarder, work, kind):
    going, done = FORK.Value("i"), FORK.Value("i")
    flooding = work.fork(flood, kind, forwarder, going)
    until(lambda: going.value > 0, f"no flood of {kind.__name__}", 60)
    rounds = work.fork(other, forwarder, hash(kind.__name__) % 2**32 << 8, done)
    until(lambda: done.value == ROUNDS or not rounds.is_alive(), "the other user is not served", 60)
    assert done.value == ROUNDS
    before = going.value
    until(lambda: going.value > before, "the flood has ended", 60)
    root = greeted(forwarder, (hash(kind.__name__) % 2**32 << 8) + 255)
    state = json.loads(root.status())
    root.bye()
    flooding.kill()
    uids = {application.get("uid") for application in state["applications"]}
    assert uids <= {None, FLOODER, OTHER}
    his = [application for application in state["applications"] if application.get("uid") == FLOODER]
    assert len(his) <= 513
    assert state["pool"]["bytes"] <= state["pool"]["bytes_max"] // 4
