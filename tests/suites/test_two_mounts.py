"""Two mounts of one export, as on two nodes: what one changes the other sees, also what it has open."""
import concurrent.futures
import fcntl
import os

import pytest
from conftest import run, stop


@pytest.fixture(scope="module")
def two(forwarders):
    """A mount, and another one."""
    with forwarders(4, "--stripe", "65536") as up:
        other = up / "other"
        mounting = up.mount_at(other, "--state-dir", up.state)
        yield up.mount, other
        stop(mounting)


def test_a_file_that_is_open_here_is_renamed_there_while_it_is_written(two):
    here, there = two
    parts = [os.urandom(500000) for _ in range(5)]
    with open(here / "log", "wb", buffering=0) as log:
        for number, part in enumerate(parts):
            log.write(part)
            if number == 1:
                (there / "log").rename(there / "log.1")
    assert (there / "log.1").read_bytes() == b"".join(parts)
    assert not (here / "log").exists()
    # What is removed there stays readable here, where it is open.
    with open(here / "log.1", "rb") as log:
        (there / "log.1").unlink()
        assert log.read() == b"".join(parts)


def test_paths_that_are_longer_than_a_kernel_takes_them(two):
    """They are reached by descriptors of directories, and removed like any other."""
    here, there = two
    name, depth = "d" * 200, 0
    at = os.open(here, os.O_DIRECTORY)
    with pytest.raises(OSError, match="File name too long"):
        while True:
            os.mkdir(name, dir_fd=at)
            below = os.open(name, os.O_DIRECTORY, dir_fd=at)
            os.close(at)
            at, depth = below, depth + 1
            with open(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at), "wb") as file:
                file.write(b"%d" % depth * 50000)
    assert 300 < depth < 330
    os.close(at)
    at = os.open(there, os.O_DIRECTORY)
    for level in range(1, depth + 1):
        below = os.open(name, os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
        with open(os.open("file", os.O_RDONLY, dir_fd=at), "rb") as file:
            assert file.read() == b"%d" % level * 50000
    os.rename("file", "renamed", src_dir_fd=at, dst_dir_fd=at)
    os.close(at)
    run("rm", "-r", there / name)
    assert not (here / name).exists()


def test_records_appended_through_both(two):
    def append(mount):
        run("sh", "-c", 'for i in $(seq 200); do echo "$0 $i" >> "$0/journal"; done', mount)
    (two[0] / "journal").touch()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(append, two))
    for mount in two:
        lines = (mount / "journal").read_text().splitlines()
        assert sorted(lines) == sorted(f"{one} {number}" for one in two for number in range(1, 201))


def test_a_lock_held_here_is_seen_there(two):
    here, there = two
    with open(here / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run("flock", "--nonblock", there / "lock", "true", code=1)
    run("flock", "--timeout", "5", there / "lock", "true")
