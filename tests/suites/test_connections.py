"""Thousands of sessions with one forwarder: each writes and reads its own bytes, a mount goes on beside
them, and the forwarder's memory is what it was when they have gone."""
import json
import os
import pathlib
import random
import resource
import struct
import time

import pytest
from conftest import FORK, LONG, Forwarder, free_port, need_fuse, run, stop, tidegate, until
from session import BYE, READ, WRITE, Session

# A sixth of the connections may have said no hello, of one address. Quick runs have about 700.
SIZE, AT_ONCE, KIB, MIB = 4096, 100, 1024, 1024 * 1024


class Site:
    """A forwarder and a mount, and an ordinary program on it."""

    def __init__(self, work, count):
        self.count, self.data, self.mount = count, work.folder("data"), work / "mnt"
        self.addresses = f"unix:{work / 'socket'}", f"tcp:127.0.0.1:{free_port()}"
        self.forwarder = Forwarder(work, "forwarder", export=self.data, listen=self.addresses, insecure=True,
                                   sessions_max=count + count // 7 + 30, sessions_of_user_max=count + 10, hello_ms=120000,
                                   stall_ms=120000)
        assert "room for" not in self.forwarder.log.read_text(), "something is too low"
        self.client = work.toml("client.toml", forwarders=self.addresses[:1])
        self.mounting = work.mount_at(self.mount, "--client", self.client)
        self.rounds, self.leave = FORK.Value("i"), FORK.Event()
        self.program = work.fork(ordinary, self.mount / "ordinary", self.rounds, self.leave)
        until(lambda: self.rounds.value > 0, "the program on the mount makes no progress")
        self.settle()
        self.before, self.after = self.least_memory(), {}

    def memory(self, *keys):
        """That much memory of the forwarder, bytes."""
        status = pathlib.Path(f"/proc/{self.forwarder.process.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return sum(int(fields[key].split()[0]) * KIB for key in keys)

    def least_memory(self):
        """The least of some looks: the rest of it comes and goes."""
        looks = []
        for _ in range(10):
            looks.append(self.memory("VmRSS"))
            time.sleep(0.2)
        return min(looks)

    def settle(self):
        """Waits until the forwarder has no sessions but the mount's and those of who asks."""
        def left():
            # While thousands go at once it may give no answer.
            done = tidegate("stat", "--client", self.client, "--json", code=None)
            return len(json.loads(done.stdout)[0]["sessions"]) if done.returncode == 0 else self.count
        until(lambda: left() <= 3, lambda: f"{left()} sessions are still there", 120, pause=0.3)


def ordinary(path, rounds, leave):
    """Writes and reads back, over and over, until it is told to stop."""
    chance, file = random.Random(1), os.open(path, os.O_RDWR | os.O_CREAT)
    while not leave.is_set():
        data, at = chance.randbytes(chance.randrange(1, 200000)), chance.randrange(0, 1 << 20)
        assert os.pwrite(file, data, at) == len(data)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(file, len(data), at) == data, f"round {rounds.value}: other bytes at {at}"
        rounds.value += 1


@pytest.fixture(scope="module")
def site(work):
    need_fuse()
    count, (_, hard) = 10000 if LONG else 400, resource.getrlimit(resource.RLIMIT_NOFILE)
    # The clients and the forwarder each have a descriptor for each connection, the forwarder some more.
    if hard != resource.RLIM_INFINITY and hard < count * 5 // 4 + 1500:
        count = (hard - 1500) * 4 // 5
        if count < 100:
            pytest.skip(f"the hard limit of open files is {hard}; 2000 are needed at least")
        print(f"the hard limit of open files is {hard}: {count} connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with work.part() as part:
        yield Site(part, count)


def together(sessions, send, take):
    """In groups, whose requests are all under way at once."""
    for first in range(0, len(sessions), AT_ONCE):
        group = list(enumerate(sessions))[first:first + AT_ONCE]
        for number, session in group:
            send(number, session)
        for number, session in group:
            take(number, session)


def many(site, where, turn, bye):
    """So many sessions, which each write and read what is their own."""
    def own(number):
        return (b"%08d-%d " % (number, turn) * (SIZE // 11 + 1))[:SIZE]

    def extent(number):
        return handle + struct.pack("<HQQ", 1, number * SIZE, SIZE)

    def reads_its_own(number, session):
        assert session.take()[1] == own(number), f"session {number} read what is not its own"
    before, began, sessions = site.memory("RssAnon"), time.monotonic(), []
    for first in range(0, site.count, AT_ONCE):
        group = [Session(where, (turn << 32) + number + 1)
                 for number in range(first, min(first + AT_ONCE, site.count))]
        together(group, lambda _, session: session.send_hello(), lambda _, session: session.take_hello())
        sessions += group
    greeted, idle = time.monotonic() - began, site.memory("RssAnon")
    handle = sessions[0].create("shared")
    together(sessions, lambda number, session: session.send(WRITE, extent(number), own(number), reply_slot=True),
             lambda _, session: session.take())
    together(sessions, lambda number, session: session.send(READ, extent(number)), reads_its_own)
    worked, busy = time.monotonic() - began, site.memory("RssAnon")
    if bye:
        together(sessions, lambda _, session: session.send(BYE), lambda _, session: session.take())
    for session in sessions:
        session.socket.close()
    print(f"{site.count} sessions: greeted after {greeted:.1f} s, I/O done {worked:.1f} s; bytes for each:"
          f" {(idle - before) // site.count} after its hello, {(busy - before) // site.count} after I/O")


@pytest.mark.parametrize("turn, path", enumerate(["Unix", "TCP", "Unix", "TCP"], 1))
def test_round(site, turn, path):
    # A killed client says no goodbye: its session ends with its lease.
    many(site, site.addresses[path == "TCP"], turn, bye=turn != 3)
    site.settle()
    tidegate("stat", "--client", site.client)
    site.after[turn] = site.least_memory()
    print(f"memory: {site.before // KIB} KiB before all, {site.after[turn] // KIB} KiB now", end=" ")


def test_memory(site):
    assert site.after[2] - site.before <= 6 * MIB
    # A second time takes nothing more, but for what comes and goes.
    assert site.after[4] - site.after[2] <= MIB


def test_the_program_on_the_mount(site):
    site.leave.set()
    site.program.join(60)
    assert site.program.exitcode == 0 and site.rounds.value > 5
    print(f"{site.rounds.value} rounds", end=" ")
    run("cmp", site.mount / "ordinary", site.data / "ordinary")
    stop(site.mounting)
    site.forwarder.stop()
