"""Names and attributes that a forwarder lends to mounts: two mounts that change the same things see each other's
changes at once, a stopped mount keeps others waiting for a bounded time, and changes beside the forwarder are seen
in time."""
import json
import os
import signal
import threading
import time

import pytest
from conftest import need_fuse, run, until

OUTSIDE_MS = 1000
ROUNDS_S = 300 if os.environ.get("MODE") == "long" else 10


class Pair:
    """Two mounts of one forwarder, and what it says of its loans."""

    def __init__(self, up, other):
        self.up, self.mounts, self.data = up, (up.mount, other), up.data

    def loans(self):
        return self.up.states()[0]["loans"]


@pytest.fixture
def pair(forwarders):
    need_fuse()
    with forwarders(1, "--outside-ms", OUTSIDE_MS) as up:
        other = up.folder("other")
        up.tidegate("mount", other)
        yield Pair(up, other)
        run("fusermount3" if os.geteuid() else "umount", *(["-u"] if os.geteuid() else []), other)


def answers(pair, call):
    """Requests that a call costs."""
    before = pair.up.answered()[0]
    look = pair.up.answered()[0] - before
    call()
    return pair.up.answered()[0] - before - 2 * look


def test_what_was_used_costs_no_request(pair):
    one, _ = pair.mounts
    (pair.data / "d").mkdir()
    (pair.data / "d" / "f").write_text("bytes")
    path = one / "d" / "f"

    def uses():
        os.stat(path)
        os.path.exists(one / "d" / "nothing")
        os.listxattr(path)
    # A lease may be renewed meanwhile, and a loan end: once in some tries there is neither.
    costs = []
    for _ in range(10):
        uses()
        costs.append(answers(pair, uses))
        if costs[-1] == 0:
            break
    assert costs[-1] == 0, costs
    assert pair.loans()["lent"] > 0


def test_a_change_through_one_mount_is_seen_through_the_other(pair):
    """Each change of names, attributes, sizes, targets and extended attributes, after both have looked."""
    one, other = pair.mounts
    for number in range(6):
        by, seen_by = (one, other) if number % 2 else (other, one)
        name = f"f{number}"
        assert not (seen_by / name).exists() and not (by / name).exists()
        (by / name).write_text("first")
        assert (seen_by / name).stat().st_size == 5
        for text in "second", "the third text":
            os.stat(seen_by / name)
            (by / name).write_text(text)
            assert (seen_by / name).stat().st_size == len(text)
            assert (seen_by / name).read_text() == text
        os.chmod(by / name, 0o600)
        assert (seen_by / name).stat().st_mode & 0o777 == 0o600
        os.utime(by / name, ns=(5, 7))
        assert (seen_by / name).stat().st_mtime_ns == 7
        with pytest.raises(OSError):
            os.getxattr(seen_by / name, "user.one")
        os.setxattr(by / name, "user.one", b"value")
        assert os.getxattr(seen_by / name, "user.one") == b"value"
        held = os.open(seen_by / name, os.O_RDONLY)
        os.stat(seen_by / name)
        os.link(by / name, by / f"hard{number}")
        assert os.fstat(held).st_nlink == 2
        os.rename(by / name, by / f"to{number}")
        assert not (seen_by / name).exists() and (seen_by / f"to{number}").exists()
        os.unlink(by / f"to{number}")
        assert os.fstat(held).st_nlink == 1
        os.unlink(by / f"hard{number}")
        assert os.fstat(held).st_nlink == 0
        os.close(held)
        os.symlink("target", by / name)
        assert os.readlink(seen_by / name) == "target"
        os.unlink(by / name)
        os.symlink("another", by / name)
        assert os.readlink(seen_by / name) == "another"
        os.mkdir(by / f"dir{number}")
        assert os.stat(seen_by / f"dir{number}").st_nlink == 2
        os.mkdir(by / f"dir{number}" / "in")
        assert os.stat(seen_by / f"dir{number}").st_nlink == 3
        os.truncate(by / "grown", 7) if number else (by / "grown").write_text("")
        with open(by / "grown", "ab") as grown:
            grown.write(b"more")
        assert (seen_by / "grown").stat().st_size == (11 if number else 4)


def test_nobody_sees_anything_old(pair):
    """Two mounts change names and sizes in turns and at once, for a while; every look is compared."""
    end, wrong = time.monotonic() + ROUNDS_S, []
    lock, counts = threading.Lock(), [0, 0]

    def in_turns(file):
        """What one has changed the other sees, whoever it is."""
        number = 0
        while time.monotonic() < end and not wrong:
            by, seen_by = (pair.mounts if number % 3 else reversed(pair.mounts))
            number += 1
            os.stat(seen_by / file) if number > 1 else None
            temporary = by / f"{file}.{number}"
            temporary.write_bytes(bytes(number % 1000))
            os.rename(temporary, by / file)
            if (size := os.stat(seen_by / file).st_size) != number % 1000:
                wrong.append(f"{file}: {size} bytes, not {number % 1000}, through {seen_by}")
            if (seen_by / temporary.name).exists():
                wrong.append(f"{temporary.name} is there, through {seen_by}")
        with lock:
            counts[0] += number

    def grows(file, mount):
        """A file that one mount appends to never shrinks for the other."""
        seen, number = 0, 0
        while time.monotonic() < end and not wrong:
            with open(pair.mounts[0] / file, "ab") as grown:
                grown.write(b"12345678")
            number += 8
            seen = os.stat(mount / file).st_size
            if seen != number:
                wrong.append(f"{file}: {seen} bytes, not {number}, through {mount}")
        with lock:
            counts[1] += number // 8
    (pair.data / "grows0").touch(), (pair.data / "grows1").touch()
    threads = [threading.Thread(target=in_turns, args=(f"turn{number}",)) for number in range(2)]
    threads += [threading.Thread(target=grows, args=(f"grows{number}", mount)) for number, mount in enumerate(pair.mounts)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong, wrong[:10]
    assert min(counts) > 2, counts
    print(counts, json.dumps(pair.loans()))


def test_a_stopped_mount_keeps_others_waiting_for_a_bounded_time(pair):
    one, other = pair.mounts
    (pair.data / "f").write_text("bytes")
    processes = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and mounts(pid, other)]
    assert len(processes) == 1, processes
    os.stat(other / "f")
    os.kill(processes[0], signal.SIGSTOP)
    try:
        # Each ends, by what is lent being over, and not by a call's time limit, which is an error.
        os.rename(one / "f", one / "g")
        recalled = pair.loans()["recalled"]
        os.rename(one / "g", one / "h")
        assert pair.loans()["recalled"] == recalled, "the second change has nobody to wait for"
    finally:
        os.kill(processes[0], signal.SIGCONT)
    assert not (other / "f").exists() and (other / "h").read_text() == "bytes"


def mounts(pid, folder):
    """Whether a process is the mount of this folder."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as words:
            return str(folder).encode() in words.read().split(b"\0")
    except OSError:
        return False


def test_a_change_beside_the_forwarder_is_seen_in_time(pair):
    one, _ = pair.mounts
    (pair.data / "f").write_text("bytes")
    os.stat(one / "f"), os.path.exists(one / "nothing")
    (pair.data / "f").write_text("more bytes")
    (pair.data / "nothing").touch()
    until(lambda: (one / "f").stat().st_size == 10 and (one / "nothing").exists(), "an old size or name", seconds=30,
          pause=0.01)


def test_a_forwarder_that_starts_again_knows_nothing_and_nobody_sees_anything_old(pair):
    one, other = pair.mounts
    (pair.data / "f").write_text("0")
    for number in range(1, 4):
        assert len((other / "f").read_text()) == number and os.stat(other / "f").st_size == number
        pair.up.end(0)
        pair.up.restart(0)
        (one / "f").write_text("x" * (number + 1))
        assert os.stat(other / "f").st_size == number + 1


# Lists the directory, makes a file in it, goes back to the start and lists it again.
REWINDS = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
directory = ctypes.c_void_p(libc.opendir(os.fsencode(sys.argv[1])))
def count():
    entries = 0
    while libc.readdir(directory):
        entries += 1
    return entries
counts = [count()]
for name in "ab":
    open(os.path.join(sys.argv[1], name), "w").close()
    libc.rewinddir(directory)
    counts.append(count())
print(counts)
"""


def test_a_directory_that_is_read_again_from_the_start_shows_what_is_new(pair):
    for folder in (pair.data / "plain", pair.mounts[0] / "mounted"):
        folder.mkdir()
        assert run("/usr/bin/python3", "-I", "-c", REWINDS, folder).stdout == "[2, 3, 4]\n"


def test_who_lists_a_directory_and_looks_at_all_of_it_sees_what_others_change(pair):
    one, other = pair.mounts
    (one / "many").mkdir()
    for number in range(300):
        (one / "many" / str(number)).write_text("")
    os.setxattr(one / "many/7", "user.mark", b"old")

    def shown(folder):
        found = {}
        for entry in os.scandir(folder / "many"):
            stat, marks = os.stat(entry.path), os.listxattr(entry.path)
            found[entry.name] = (stat.st_size, stat.st_mode, stat.st_nlink, marks)
        return found
    for turn in range(3):
        assert len(shown(one)) == 300 - turn
        (other / "many" / str(10 + turn)).write_text("bytes" * (turn + 1))
        os.chmod(other / "many" / str(20 + turn), 0o700)
        os.setxattr(other / "many" / str(30 + turn), "user.other", b"new")
        os.unlink(other / "many" / str(40 + turn))
        os.rename(other / "many" / str(50 + turn), other / "many" / str(60 + turn))
        os.link(other / "many" / str(70 + turn), other / "many" / f"link{turn}")
        assert shown(one) == shown(pair.data)
