"""Many more open files than forwarders have descriptors: all of them work, on the mount and by the
short-cut, and other programs notice nothing."""
import os
import shutil
import sys
import time

import pytest
from conftest import FORK, LONG, REPO, TIDEGATE, run, tidegate, until

PROGRAM = REPO / "tests/programs/src/py/open_many.py"
# The files of one program, which several processes share, and the limit of each of four forwarders.
FILES, PROCESSES, LIMIT = (100_000, 8, 4096) if LONG else (6000, 2, 1024)
FEW, FILES_OF_FEW = 64, 300
WITHIN = 3000 if LONG else 300


def limited(work, limit):
    """A `tidegate` whose processes may have so many open files."""
    text = f'#!/bin/sh\nexec prlimit --nofile={limit}:{limit} "{TIDEGATE}" "$@"\n'
    return work.file(f"tidegate-{limit}", text, 0o755)


def neighbour(folder, rounds, leave):
    """Another program, which does a little of everything."""
    os.mkdir(folder)
    kept = os.open(f"{folder}/kept", os.O_RDWR | os.O_CREAT)
    while not leave.is_set():
        number = rounds.value
        with open(f"{folder}/new", "w") as file:
            file.write(str(number))
        os.rename(f"{folder}/new", f"{folder}/now")
        with open(f"{folder}/now") as file:
            assert file.read() == str(number)
        os.pwrite(kept, b"%09d" % number, 0)
        os.fsync(kept)
        assert os.pread(kept, 9, 0) == b"%09d" % number
        assert sorted(os.listdir(folder)) == ["kept", "now"]
        os.stat(f"{folder}/now")
        os.unlink(f"{folder}/now")
        rounds.value += 1
        time.sleep(0.05)


class Neighbour:
    """Runs beside what is tested."""

    def __init__(self, up, folder):
        self.rounds, self.leave = FORK.Value("i"), FORK.Event()
        self.process = up.fork(neighbour, folder, self.rounds, self.leave)
        until(lambda: self.rounds.value > 0, "the other program makes no progress")

    def ends(self):
        before = self.rounds.value
        until(lambda: self.rounds.value > before + 1 or not self.process.is_alive(), "the other program hangs", 120)
        self.leave.set()
        self.process.join(120)
        assert self.process.exitcode == 0, "the other program had an error"
        print(f"{self.rounds.value} rounds of another program", end=" ")


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
    beside = Neighbour(up, up.mount / f"beside-{way}")
    before = memory_kib(up, 4)
    words = [sys.executable, PROGRAM, up.mount / way, FILES, PROCESSES]
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
    beside.ends()
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
        beside = Neighbour(up, up.mount / "beside")
        said = run(sys.executable, PROGRAM, up.mount / "many", FILES_OF_FEW, 2, timeout=WITHIN).stdout
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
