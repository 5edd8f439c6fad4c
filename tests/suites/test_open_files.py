"""Many more open files than forwarders have descriptors: all of them work, on the mount and by the
short-cut, and other programs notice nothing."""
import os
import shutil
import sys
import time

import pytest
from conftest import LONG, REPO, TIDEGATE, run, tidegate, until

PROGRAM, NEIGHBOUR = (REPO / "tests/programs/src/py" / name for name in ("open_many.py", "neighbour.py"))
# The files of one program, which several processes share, and the limit of each of four forwarders.
FILES, PROCESSES, LIMIT = (100_000, 8, 4096) if LONG else (6000, 2, 1024)
FEW, FILES_OF_FEW = 64, 300
WITHIN = 3000 if LONG else 300
OTHER_USER = 54321
# Of tens of thousands. Its turn comes after a few, and on a busy machine a few hundred.
PASSED_MAX = 4000


def limited(work, limit):
    """A `tidegate` whose processes may have so many open files."""
    text = f'#!/bin/sh\nexec prlimit --nofile={limit}:{limit} "{TIDEGATE}" "$@"\n'
    return work.file(f"tidegate-{limit}", text, 0o755)


class Neighbour:
    """Another program, which runs beside what is tested: on the mount, as another user if it can be one, or by the
    short-cut."""

    def __init__(self, up, name, way, counts):
        self.up, self.name, self.leave = up, name, up / f"{name}.leave"
        # Another user may be kept from this one's folders.
        program = up.file("neighbour.py", NEIGHBOUR.read_text())
        words = [sys.executable, program, up.mount / name, self.leave, counts]
        if way == "shortcut":
            words = [TIDEGATE, "run", "--", "env", "TIDEGATE_SHORTCUT=eager", *words]
        elif os.geteuid() == 0:
            up.data.chmod(0o777)
            up.path.chmod(0o711)
            up.path.parent.chmod(0o711)
            words = ["setpriv", "--reuid", OTHER_USER, "--regid", OTHER_USER, "--clear-groups", *words]
        with open(up / f"{name}.out", "wb") as output:
            self.process = up.start(*words, log=up / f"{name}.err", env=up.environment, stdout=output)
        until(lambda: self.rounds() > 0 or self.process.poll() is not None, f"{name} makes no progress")

    def rounds(self):
        return len((self.up / f"{self.name}.err").read_text().splitlines())

    def ends(self):
        before = self.rounds()
        until(lambda: self.rounds() > before + 1 or self.process.poll() is not None, f"{self.name} hangs", 120)
        self.leave.touch()
        assert self.process.wait(120) == 0, (self.up / f"{self.name}.err").read_text()[-2000:]
        rounds, what, most, took = (self.up / f"{self.name}.out").read_text().split()
        print(f"{self.name}: {rounds} rounds, {what} passed by {most} calls in {took} s;", end=" ")
        assert int(most) <= PASSED_MAX, f"{most} calls of the other program have come before one {what}"


def memory_kib(up, count):
    """The memory of the forwarders."""
    def of(pid):
        with open(f"/proc/{pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
    return sum(of(up.pid(index)) for index in range(count))


def parked(up):
    return sum(state["system"]["files_parked"] for state in up.states())


def logs(up, count):
    return [(up.state / f"forwarder.{index}.log").read_text() for index in range(count)]


@pytest.fixture(scope="module")
def up(forwarders, work):
    with forwarders(4, program=limited(work, LIMIT)) as up:
        up.began = time.monotonic()
        yield up


@pytest.mark.parametrize("way", ["mount", "shortcut"])
def test_all_files_of_one_program_work(up, way):
    counts = up.file(f"{way}.counts", bytes(8 * PROCESSES))
    beside = [Neighbour(up, f"beside-{way}-{other}", other, counts) for other in ("mount", "shortcut")]
    before = memory_kib(up, 4)
    words = [sys.executable, PROGRAM, up.mount / way, FILES, PROCESSES, counts]
    if way == "shortcut":
        words = [TIDEGATE, "run", "--", "env", "TIDEGATE_SHORTCUT=eager", *words]
    program = up.start(*words, log=up / f"{way}.log", env=up.environment)
    most = (0, 0)
    while program.poll() is None:
        most = max(most, (parked(up), memory_kib(up, 4)))
        time.sleep(0.5)
    said = (up / f"{way}.log").read_text()
    assert program.returncode == 0, said
    assert said.count("ok:") == PROCESSES, said
    assert most[0] > FILES // 3, f"only {most[0]} files had no descriptor"
    print(f"{said}{most[0]} files without a descriptor;",
          f"{(most[1] - before) * 1024 // FILES} bytes for each open file", end=" ")
    for other in beside:
        other.ends()
    # What a program with the short-cut had not said when it ended stays until the end of its lease.
    most_left = FILES // 20 if way == "shortcut" else 0
    until(lambda: parked(up) <= most_left, lambda: f"{parked(up)} files are open after their close")
    assert (up.data / way / "5/0-5").read_bytes() == b"the bytes of 5/0-5\n"
    # What takes the suite's folder away gives up after 90 s.
    shutil.rmtree(up.data / way)


def test_the_log_says_so_once_an_hour(up):
    hours = 1 + int(time.monotonic() - up.began) // 3600
    for log in logs(up, 4):
        said = log.count("more files are open than this forwarder has descriptors for")
        assert 1 <= said <= hours, log
        assert f"open files: {LIMIT}, of which" in log


def test_nothing_is_left_in_the_hidden_folder(up):
    # Names that others kept for a forwarder that could not say what is open go with its next sweep.
    hidden = up.data / ".tidegate/orphans"
    until(lambda: not os.listdir(hidden), lambda: f"{len(os.listdir(hidden))} hidden names stay", 60)


def test_a_forwarder_with_few_descriptors(forwarders, work):
    with forwarders(1, program=limited(work, FEW)) as up:
        counts = up.file("counts", bytes(8 * 2))
        beside = Neighbour(up, "beside", "mount", counts)
        said = run(sys.executable, PROGRAM, up.mount / "many", FILES_OF_FEW, 2, counts, timeout=WITHIN).stdout
        assert said.count("ok:") == 2, said
        beside.ends()
        assert f"open files: {FEW}, of which" in logs(up, 1)[0]


def test_too_few_descriptors_are_refused_with_the_number_needed(work):
    config = work.toml("few.toml", export=work.folder("few"), listen=[f"unix:{work / 'few.socket'}"])
    done = tidegate("serve", "--config", config, program=limited(work, 40), code=None)
    assert done.returncode not in (0, -6, -11), done.stderr
    needed = "this process may have 40 open files, and a forwarder needs "
    assert needed in done.stderr, done.stderr
    least = int(done.stderr.split(needed)[1].split(":")[0])
    assert 40 < least <= FEW
