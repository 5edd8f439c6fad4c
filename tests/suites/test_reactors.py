"""Forwarders with four reactors each: programs, connections that fill all of them, stops, and a kill."""
import os
import pathlib
import sys

import pytest
from conftest import LONG, alive, run, until

os.environ["REACTORS"] = "4"
SIZES = [1000, 70000, 1048576, 5000001, *([50000000] if LONG else [])]
CLIENTS = range(12)
# Writes files, reads them back, and tells their checksums.
BUSY = """
import hashlib, os, random, sys
path, seed, sizes = sys.argv[1], int(sys.argv[2]), [int(size) for size in sys.argv[3:]]
chance = random.Random(seed)
for turn in range(6):
    for size in sizes:
        name, data = f"{path}.{size}", chance.randbytes(size)
        with open(name, "wb", buffering=0) as file:
            assert file.write(data) == size
            os.fsync(file.fileno())
        with open(name, "rb", buffering=0) as file:
            read = b"".join(iter(lambda: file.read(1 << 20), b""))
        assert read == data, f"{name}: other bytes"
        print(hashlib.sha256(data).hexdigest(), "", os.path.basename(name), flush=True)
"""


class Busy:
    """Many clients of all forwarders write, read back and compare, each with connections of its own (the
    short-cut makes a client of each process)."""

    def __init__(self, up):
        self.up, self.sums = up, [up / f"{client}.sums" for client in CLIENTS]
        self.clients = [up.begin("run", "--", sys.executable, "-c", BUSY, up.mount / str(client), client, *SIZES,
                                 log=sums) for client, sums in zip(CLIENTS, self.sums)]
        until(lambda: all(sums.stat().st_size for sums in self.sums), "not all have begun")

    def end(self):
        """They saw no error, and what they wrote last is in the exported folder."""
        assert [client.wait(300) for client in self.clients] == [0] * len(CLIENTS), \
            [sums.read_text()[-500:] for sums in self.sums]
        last = [line for sums in self.sums for line in sums.read_text().splitlines()[-len(SIZES):]]
        run("sha256sum", "--quiet", "--check", self.up.file("last.sums", "\n".join(last) + "\n"), cwd=self.up.data)


def test_programs(forwarders):
    with forwarders(2) as up:
        names = [path.read_text() for path in pathlib.Path(f"/proc/{up.pid(0)}/task").glob("*/comm")]
        assert sum(name.startswith("shard.") for name in names) == 3, "a forwarder has three threads beside the first"
        for case in ("cp", "sqlite"):
            up.compare("programs", case)
        Busy(up).end()


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_a_forwarder_ends_amid_the_work_of_many(forwarders, fault):
    """It is started again, and they do not notice."""
    index, options = (1, ["--kill-at-request", "1:300"]) if fault == "kill" else (0, [])
    with forwarders(2, *options) as up:
        victim, again = up.pid(index), up.restart_when_dead(index)
        busy = Busy(up)
        if fault == "stop":
            up.end(index)
            assert "stopped in_time=true" in (up.state / "forwarder.0.log").read_text()
        busy.end()
        assert not alive(victim)
        again.join(20)
        assert up.restarted, "the forwarder was not restarted"
