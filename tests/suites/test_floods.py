"""While one user floods a forwarder of root, another user's new sessions are served, his reads and writes
are done, and what the first did is counted for the first alone. Judged by counts, not by speed;
tests/floods_p99 measures that."""
import json
import os
import pathlib
import signal
import struct
import zlib

import floods
import noise
import pytest
from conftest import FORK, Forwarder, free_port, process_field, stop, tidegate, until
from floods import FLOODER, MIB, OPEN, OTHER, SET_LOCK, SHARED, become, extent, greeted, lock
from peer import Peer, user
from session import BYE, READ, STATUS, WRITE, Refused

# Rounds of the other user under each flood.
ROUNDS = 20
# Opens and locks of one user (crates/forward/src/forwarder/holdings.rs), and 64 more a session.
OPENS_MAX, LOCKS_MAX = (1 << 17) + 64 * 64, (1 << 14) + 64 * 64


@pytest.fixture
def forwarder(work):
    if os.geteuid():
        pytest.skip("only root can be several users")
    with work.part() as part:
        data = part.folder("data")
        for folder, mode in (work.path, 0o711), (part.path, 0o711), (data, 0o1777):
            os.chmod(folder, mode)
        (data / SHARED).write_bytes(b"")
        (data / SHARED).chmod(0o666)
        address = f"unix:{part / 'socket'}"
        forwarder = Forwarder(part, "forwarder", export=data, listen=[address], sessions_max=512,
                              pool_bytes=16 * MIB, stall_ms=600000, **{"trace.file": part / "trace",
                                                                       "trace.buffer_records": 1024})
        yield address, forwarder.process.pid
        stop(forwarder.process)


def memory(pid):
    """Bytes that a process has in memory."""
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def other(address, base, done):
    """New sessions that write and read, lock a byte, make a name, and look at the status."""
    become(OTHER)
    for number in range(ROUNDS):
        session = greeted(address, base + number)
        session.handle = session.create("other")
        own = b"%08d" % number * (MIB // 8)
        session.call(WRITE, extent(session, 0, MIB), own, reply_slot=True)
        read = session.call(READ, extent(session, 0, MIB))[1]
        shared = session.create(SHARED)
        session.call(OPEN, shared + b"\1\0\0\0\0\0\0\0\3")
        session.call(SET_LOCK, lock(shared, 1, 7))
        session.call(SET_LOCK, lock(shared, 2, 7))
        session.create(f"other-{number}")
        session.call(STATUS)
        if read == own:
            done.value += 1
        session.call(BYE)
        session.socket.close()


@pytest.mark.parametrize("kind", floods.KINDS)
def test_another_user_is_served(forwarder, work, kind):
    address, pid = forwarder
    going, done = FORK.Value("i"), FORK.Value("i")
    base = zlib.crc32(kind.__name__.encode()) << 8
    flooding = work.fork(floods.run, kind, address, going)
    until(lambda: going.value > 0, f"no flood of {kind.__name__}", 60)
    rounds = work.fork(other, address, base, done)
    until(lambda: done.value == ROUNDS or not rounds.is_alive(), "the other user is not served", 60)
    assert done.value == ROUNDS
    before = going.value
    until(lambda: going.value > before, "the flood has ended", 60)
    root = greeted(address, base + 255)
    state = json.loads(root.status())
    root.bye()
    flooding.kill()
    uids = {application.get("uid") for application in state["applications"]}
    assert uids <= {None, FLOODER, OTHER}
    his = [application for application in state["applications"] if application.get("uid") == FLOODER]
    assert len(his) <= 513
    assert state["pool"]["bytes"] <= state["pool"]["bytes_max"] // 4
    of_flooder = [session for session in state["sessions"] if session["uid"] == FLOODER]
    assert sum(session["opens"] for session in of_flooder) <= OPENS_MAX
    assert sum(session["locks"] for session in of_flooder) <= LOCKS_MAX
    assert state["trace"]["buffered"] <= 2048
    assert memory(pid) < 256 * MIB, memory(pid)


def test_who_asks_much_has_a_turn_as_others_have(forwarder):
    # All requests lie in the sockets when the forwarder looks. The flood's last one in each session wants the
    # byte that the other user's only one wants: who is served first has it.
    address, pid = forwarder

    def session(uid, client):
        with user(uid):
            made = greeted(address, client)
        made.handle = made.create(SHARED)
        made.call(OPEN, made.handle + b"\1\0\0\0\0\0\0\0\3")
        return made
    flooding = [session(FLOODER, (9 << 40) + number) for number in range(4)]
    quiet = session(OTHER, 10 << 40)
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: process_field(pid, 3) == "T", "the forwarder does not stop")
        for number, each in enumerate(flooding):
            for one in range(1, floods.DEEP):
                each.send(SET_LOCK, lock(each.handle, 1, 1000 * (number + 1) + 2 * one))
            each.send(SET_LOCK, lock(each.handle, 1, 7))
        quiet.send(SET_LOCK, lock(quiet.handle, 1, 7))
    finally:
        os.kill(pid, signal.SIGCONT)
    quiet.take()
    for each in flooding:
        for _ in range(1, floods.DEEP):
            each.take()
        with pytest.raises(Refused):
            each.take()


class Nodes:
    """A forwarder with a Unix socket and TCP, and nodes whose secrets have limits."""

    def __init__(self, part):
        self.part, self.site, data = part, part / "site", part.folder("data")
        data.chmod(0o1777)
        tidegate("secret", "new", self.site)
        self.unix, self.tcp = f"unix:{part / 'socket'}", f"tcp:127.0.0.1:{free_port()}"
        self.forwarder = Forwarder(part, "nodes", export=data, listen=[self.unix, self.tcp], pool_bytes=16 * MIB,
                                   stall_ms=600000, payload_rate_min=0, encryption="off", secret_file=self.site)
        self.root = Peer(self.unix).greeted()
        self.file = self.root.make(self.root.root, "file", 0o666)

    def secret(self, name):
        path = self.part / name
        if not path.exists():
            tidegate("secret", "derive", path, "--from", self.site, "--role", "mount", "--name", name,
                     "--uids", "1000-60000")
        return noise.Secret.read(path)

    def mount(self, name):
        return Peer(self.tcp, secret=self.secret(name)).greeted()

    def slow(self, peer):
        """A write of 1 MiB of which only the beginning comes."""
        handle = peer.make(peer.root, "slow", 0o666, caller=(FLOODER, FLOODER)) if peer.secret else self.file
        frame = peer.frame(WRITE, handle + extent_of(MIB), bytes(MIB), caller=(FLOODER, FLOODER) if peer.secret else None)
        peer.socket.sendall(frame[:-MIB + 1])
        return peer

    def held(self):
        pool = json.loads(self.root.status())["pool"]
        return pool["bytes"] / MIB

    def works(self, peer):
        """Whether writes and reads of 1 MiB by this client are done."""
        caller = (OTHER, OTHER) if peer.secret else None
        handle = peer.make(peer.root, "works", 0o666, caller=caller)
        for _ in range(3):
            peer.write(handle, 0, bytes(MIB), caller=caller)
            assert peer.read(handle, 0, MIB, caller=caller) == bytes(MIB)
        return True


def extent_of(length):
    return struct.pack("<HQQ", 1, 0, length)


@pytest.fixture
def nodes(work):
    if os.geteuid():
        pytest.skip("only root can be several users")
    with work.part() as part:
        for folder in (work.path, part.path):
            folder.chmod(0o711)
        made = Nodes(part)
        yield made
        made.root.end()
        made.forwarder.stop()


def test_a_node_whose_secret_has_limits_holds_a_part_of_the_memory_for_payload(nodes):
    slow = [nodes.slow(nodes.mount("cn1")) for _ in range(20)]
    until(lambda: nodes.held() == 4, lambda: f"{nodes.held()} MiB are held, not a quarter")
    with user(OTHER):
        another = Peer(nodes.unix).greeted()
    assert nodes.works(another) and nodes.works(nodes.root) and nodes.works(nodes.mount("cn2"))
    assert nodes.held() == 4
    # Its own next ones come when the first have ended.
    for one in slow[:19]:
        one.end()
    slow[19].socket.sendall(bytes(MIB - 1))
    slow[19].take()


def test_users_and_nodes_at_once_leave_memory_for_payload_to_others(nodes):
    slow = []
    for number in range(4):
        for _ in range(6):
            slow.append(nodes.slow(nodes.mount(f"cn{number}")))
            with user(20000 + number):
                slow.append(nodes.slow(Peer(nodes.unix).greeted()))
    # 14 of 16 that all have, and one that is left to nodes.
    until(lambda: nodes.held() == 15, lambda: f"{nodes.held()} MiB are held")
    assert nodes.works(nodes.root) and nodes.works(Peer(nodes.tcp, secret=noise.Secret.read(nodes.site)).greeted())
    assert nodes.held() == 15
    for one in slow:
        one.end()
    until(lambda: nodes.held() == 0, "what they held is not free")
