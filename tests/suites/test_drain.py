"""Maintenance: a forwarder is drained and taken back, then all are restarted one after the other. Programs
that write, rename, lock and read meanwhile see no error, and `stat --check` says who serves what."""
import fcntl
import os
import random
import time

import pytest
from conftest import FORK, matches, run, until


class Load:
    """Programs that write or read on the mount, each in a process of its own, until they are told to stop."""

    def __init__(self, up):
        self.up, self.leave = up, FORK.Event()
        (up.plain / "first").write_bytes(os.urandom(1000000))
        run("cp", up.plain / "first", up.mount / "first")
        (up.mount / "lock").touch()
        self.rounds = {work: FORK.Value("i") for work in (self.write, self.read)}
        self.longest = {work: FORK.Value("d") for work in self.rounds}
        self.programs = [up.fork(self.work, work) for work in self.rounds]

    def work(self, work):
        def timed(call, *arguments):
            began = time.monotonic()
            result = call(*arguments)
            self.longest[work].value = max(self.longest[work].value, time.monotonic() - began)
            return result
        held = os.open(self.up.mount / "held", os.O_RDWR | os.O_CREAT)
        while not self.leave.is_set():
            work(timed, held, self.rounds[work].value)
            self.rounds[work].value += 1

    def write(self, timed, held, number):
        data = random.Random(number).randbytes(200_000)
        for folder in (self.up.mount, self.up.plain):
            name = f"{folder}/{number % 20}"
            file = timed(os.open, name + ".new", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            for at in range(0, 150_000, 30_000):
                assert timed(os.pwrite, file, data[at:at + 30_000], at) == 30_000
            timed(os.fsync, file)
            end = timed(os.open, name + ".new", os.O_WRONLY | os.O_APPEND)
            assert timed(os.write, end, data[150_000:]) == 50_000
            os.close(end)
            timed(os.rename, name + ".new", name)
            assert timed(os.fstat, file).st_size == 200_000
            assert timed(os.pread, file, 300_000, 0) == data, f"{name} reads otherwise than it was written"
            os.close(file)
        with open(self.up.mount / "lock", "w") as lock:
            timed(fcntl.lockf, lock, fcntl.LOCK_EX)
            timed(fcntl.lockf, lock, fcntl.LOCK_UN)
        timed(fcntl.lockf, held, fcntl.LOCK_EX, 1, number)  # and keeps them

    def read(self, timed, _held, _number):
        with open(self.up.mount / "first", "rb") as file:
            assert timed(file.read) == (self.up.plain / "first").read_bytes(), "first reads otherwise"
        assert "first" in timed(os.listdir, self.up.mount)

    def goes_on(self):
        """Each has done three more rounds."""
        before = {work: rounds.value for work, rounds in self.rounds.items()}
        until(lambda: all(rounds.value >= before[work] + 3 for work, rounds in self.rounds.items()),
              lambda: f"not all go on: {[rounds.value for rounds in self.rounds.values()]} rounds")

    def end(self):
        """They saw no error, and what they wrote is there."""
        self.leave.set()
        for program, work in zip(self.programs, self.rounds):
            program.join(60)
            print(f"{self.rounds[work].value} rounds, longest call {self.longest[work].value * 1000:.0f} ms", end=" ")
            assert program.exitcode == 0
        run("diff", "-r", "--exclude", "held", "--exclude", "lock", self.up.plain, self.up.mount)


@pytest.fixture(scope="module")
def up(forwarders):
    with forwarders(3, "--stripe", 65536) as up:  # so that each file is on each of them
        yield up


@pytest.fixture(scope="module")
def load(up):
    load = Load(up)
    load.goes_on()
    yield load
    load.leave.set()


def healthy(up):
    """All is well, and `stat --check` comes to say so."""
    until(lambda: up.tidegate("stat", "--check", code=None).returncode == 0,
          lambda: up.tidegate("stat", "--check", code=None).stdout)


def test_a_forwarder_is_drained(up, load):
    healthy(up)
    assert matches("^3 forwarders, each serves its own seat$", up.tidegate("stat", "--check").stdout)
    assert matches("forwarder 1 .* holds no seat", up.tidegate("drain", "1").stdout)

    def told():
        said = up.tidegate("stat", "--check", code=None)
        return said.returncode == 1 and "a stand-in" in said.stdout and said.stdout
    said = until(told, "stat --check does not say who stands in")
    first, second = said.splitlines()
    assert matches(r"^forwarder 1 \(.*\) is draining", said)
    assert matches(r"^seat 1 is served by forwarder [02] \(.*\), a stand-in", said)
    said = up.json("stat", "--check", code=1)
    assert not said["healthy"] and said["forwarders"] == 3
    assert sorted(one["kind"] for one in said["wrong"]) == ["draining", "stand-in"]
    load.goes_on()
    one = up.states()[1]
    assert one["draining"] and one["seats"] == [], "it still holds none, and answers"
    up.tidegate("drain", "1")  # drained twice is drained


def test_the_last_one_is_not_drained_and_the_others_come_back(up, load):
    up.tidegate("drain", f"unix:{up.state}/forwarder.0.sock")
    load.goes_on()
    assert matches("forwarder 2 .* is the last one that serves", up.tidegate("drain", "2", code=1).stderr)
    assert matches("forwarder 3 is none of these", up.tidegate("drain", "3", code=2).stderr)
    for index in (1, 0):
        said = up.tidegate("drain", index, "--undo").stdout
        assert matches(f"forwarder {index} .* serves its seat", said), said
    healthy(up)


def test_a_rolling_restart(up, load):
    up.tidegate("drain", "0")
    for index in range(3):
        up.end(index)
        up.restart(index)
        healthy(up)
        load.goes_on()
    load.end()
