"""A forwarder is killed at a chosen request of a running program: restarted after 2 s, or left dead.

Which forwarder gets how many requests follows from the inode numbers of the program's files. A new
tmpfs counts these from 1, so a program gives a forwarder the same requests in each run.
"""
import contextlib
import os
import subprocess

import pytest
from conftest import LONG, REPO, alive, need_fuse

STRIPE = ("--stripe", 65536)  # small enough that each of the programs uses each of the forwarders
FAULTS = [("cp", 1, 150, "restart"), ("fio-processes", 2, 400, "restart"), ("sqlite", 3, 200, "restart"),
          ("cp", 2, 150, "dead"), ("fio-processes", 1, 400, "dead"), ("sqlite", 0, 200, "dead")]


@contextlib.contextmanager
def new_tmpfs(work):
    """A folder to export."""
    need_fuse()
    folder = work.folder()
    mount = subprocess.run(["mount", "-t", "tmpfs", "tidegate", folder], capture_output=True, text=True, check=False)
    if mount.returncode:
        pytest.skip(f"no right to mount a tmpfs: {mount.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], capture_output=True, check=False)


def fault(forwarders, data, case, index, at, then):
    """Forwarder `index` dies at its request `at` of the case."""
    with forwarders(4, *STRIPE, "--kill-at-request", f"{index}:{at}", data=data) as up:
        victim = up.pid(index)
        again = up.restart_when_dead(index) if then == "restart" else None
        up.compare(case, case)
        assert not alive(victim), f"of forwarder {index}'s {up.answered()[index]} requests none was number {at}"
        if again is None:
            synced(up.mount / "synced")
            return
        again.join(20)
        assert up.restarted, "the forwarder was not restarted"
        subprocess.run(["cp", "-r", REPO / "tests/programs/src", up.mount / "afterwards"], check=True)
        subprocess.run(["diff", "-r", REPO / "tests/programs/src", data / "afterwards"], check=True)


def synced(path):
    """fsync does not fail with a forwarder dead."""
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    for number in range(32):
        os.pwrite(file, bytes([number]) * 70000, number * 70000)
        os.fsync(file)
    assert all(os.pread(file, 1, number * 70000 + 69999) == bytes([number]) for number in range(32))
    os.close(file)


@pytest.mark.parametrize("case, index, at, then", FAULTS)
def test_fault(forwarders, work, case, index, at, then):
    with new_tmpfs(work) as data:
        fault(forwarders, data, case, index, at, then)


@pytest.mark.long
@pytest.mark.parametrize("case, then", [("fio-shared", "restart"), ("git", "restart"), ("append", "dead")])
def test_all_along(forwarders, work, case, then):
    with new_tmpfs(work) as data, forwarders(4, *STRIPE, data=data) as up:
        looks = up.answered(), up.answered()
        up.compare(case, case)
        # Without what one look asks, as --kill-at-request counts no operations on sessions.
        counts = [after - 2 * later + earlier for after, later, earlier in zip(up.answered(), *reversed(looks))]
    print(f"{case} without a fault: {counts} requests")
    for index, count in enumerate(counts):
        for at in (1, 7, count // 10, count // 2, count * 9 // 10):
            print(f"{case}: forwarder {index} dies at request {at}")
            with new_tmpfs(work) as data:
                fault(forwarders, data, case, index, max(at, 1), then)
