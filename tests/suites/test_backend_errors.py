"""Errors of the back end: who is told of them, and how often, on a plain directory, on the mount and with
the short-cut. The back end is ext4 on a loop device that takes no more bytes."""
import contextlib
import errno
import fcntl
import os
import pathlib
import shutil
import struct

import pytest
from conftest import REPO, run, stop, until

PROGRAM = REPO / "tests/programs/src/py/write_errors.py"
MIB = 1 << 20
# Forwarders' own files are on it too: a table of 16 MiB for each.
DEVICE_MIB, ROOM_MIB = 300, 160
WAYS = ("plain", "mount", "shortcut")
# What descriptors are told of bytes that could not be written back.
CASES = {
    "descriptors": "ok ENOSPC ENOSPC ENOSPC ok ok ok ok",
    "fsync": "ok ENOSPC ENOSPC",
    "direct": "told ok ok",
    "closed": "ok ok ENOSPC ok",
    "duplicate": "ok ENOSPC ok",
    "stable": "ENOSPC ENOSPC ENOSPC",
    "mapped": "ENOSPC",
    "processes": "ok ok ENOSPC ENOSPC ok ok",
}


class Device:
    """ext4 without a journal, on an image in a folder. Its blocks are as large as pages: a loop device
    takes a write of which a part fits into the image for a whole one."""

    def __init__(self, folder, root, *options, sparse=True, mib=DEVICE_MIB):
        self.root, image = root, folder / "image"
        with open(image, "wb") as file:
            file.truncate(mib * MIB)
            if not sparse:
                for _ in range(mib):
                    file.write(bytes(MIB))
        run("mkfs.ext4", "-q", "-b", "4096", "-O", "^has_journal", image)
        if run("mount", "-o", ",".join(("loop", *options)), image, root, code=None).returncode != 0:
            pytest.skip("no loop device")

    def file(self, name):
        """A file that has its blocks."""
        with open(self.root / name, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, MIB)

    def shut(self):
        """From now on everything that reaches the device is EIO."""
        root = os.open(self.root, os.O_RDONLY)
        fcntl.ioctl(root, 0x8004587d, struct.pack("I", 2))  # EXT4_IOC_SHUTDOWN, without a flush
        os.close(root)


@pytest.fixture
def folders(work):
    """Makes folders on which the test mounts something, and takes away what it has mounted."""
    if os.geteuid() != 0:
        pytest.skip("loop devices need root")
    if not shutil.which("mkfs.ext4"):
        pytest.skip("mkfs.ext4 (e2fsprogs) is missing")
    made = []

    def make():
        made.append(work.folder())
        return made[-1]
    yield make
    for folder in reversed(made):
        if run("umount", folder, code=None).returncode != 0:
            run("umount", "--lazy", folder, code=None)


def fill(room):
    """Takes what is left of the room."""
    with open(room / "filler", "wb", buffering=0) as filler:
        for size in (MIB, 4096, 4096):
            # What was set aside for more than was needed is free then.
            os.sync()
            with contextlib.suppress(OSError):
                while filler.write(bytes(size)) == size:
                    pass


@pytest.fixture
def full(folders):
    """A device with an image that cannot grow any more, once its room is full: (device, room)."""
    room = folders()
    run("mount", "-t", "tmpfs", "-o", f"size={ROOM_MIB}m", "tidegate-test", room)
    return Device(room, folders()), room


def told(up, root, case):
    """What the case is told in each way."""
    plain, mount, shortcut = (folder / f"{case}-{way}" for folder, way in
                              zip((root, up.mount, up.mount), WAYS))
    words = ("python3", PROGRAM, case)
    # Else the library leaves the first calls of a file to the mount.
    eager = ("env", "TIDEGATE_SHORTCUT=eager")
    answers = run(*words, plain), run(*words, mount), up.tidegate("run", "--", *eager, *words, shortcut)
    return {way: answer.stdout.strip() for way, answer in zip(WAYS, answers)}


@pytest.mark.parametrize("options", [
    pytest.param((1,), id="one"), pytest.param((4, "--stripe", "65536"), id="striped"),
    pytest.param((2,), id="two", marks=pytest.mark.long)])
def test_bytes_that_find_no_room(full, forwarders, options):
    device, room = full
    with forwarders(*options, data=device.root) as up:
        for case in CASES:
            for way in WAYS:
                device.file(f"{case}-{way}")
        fill(room)
        found = {case: told(up, device.root, case) for case in CASES}
        wanted = {case: dict.fromkeys(WAYS, said) for case, said in CASES.items()}
        # The library has an open file for each number (docs/shortcut.md).
        wanted["duplicate"]["shortcut"] = "ok ENOSPC ENOSPC"
        assert found == wanted


def test_two_nodes(full, forwarders):
    """A descriptor of one mount is told what another mount's has met."""
    device, room = full
    with forwarders(4, "--stripe", "65536", data=device.root) as up:
        other = up / "other"
        mounting = up.mount_at(other, "--state-dir", up.state)
        device.file("file")
        fill(room)
        fds = [os.open(folder / "file", os.O_RDWR) for folder in (up.mount, other)]
        for at, fd in enumerate(fds):
            os.pwrite(fd, bytes(MIB // 2), at * MIB // 2)
        for fd in reversed(fds):
            with pytest.raises(OSError, match="No space left"):
                os.fdatasync(fd)
        for fd in fds:
            os.fdatasync(fd)
            os.close(fd)
        stop(mounting)


def test_a_device_that_fails(folders, forwarders):
    lower_image, lower_root, root = folders(), folders(), folders()
    lower = Device(lower_image, lower_root)
    # Its flushes would fail for ever.
    device = Device(lower_root, root, "nobarrier", sparse=False, mib=100)
    with forwarders(2, data=device.root) as up:
        for way in WAYS:
            device.file(f"descriptors-{way}")
        os.sync()
        lower.shut()
        # The device's own tables fail too, which further calls may tell.
        found = told(up, device.root, "descriptors")
        assert {way: words.split()[:4] for way, words in found.items()} == \
            dict.fromkeys(WAYS, ["ok", "EIO", "EIO", "EIO"])


@pytest.mark.parametrize("way, name", [("mount", "EIO"), ("mount", "ENOSPC"), ("mount", "EDQUOT"), ("shortcut", "EIO"),
                                       ("shortcut", "EDQUOT")])
def test_a_call_to_the_back_end_that_fails(forwarders, way, name):
    """Whatever the kernel says of a write is the caller's alone; of an fsync, everybody's. Not every kernel has
    quotas, so forwarders say it here."""
    number = getattr(errno, name)
    # The short-cut leaves a write that fails to the mount, which does it again.
    wrote = name if way == "mount" else "ok"
    for call, case, said in [("write", "once", f"{wrote} ok ok ok ok ok"), ("fsync", "stable", f"{name} ok ok"),
                             ("fsync", "once", f"ok ok {name} {name} ok ok")]:
        with forwarders(1, "--fail-call", f"0:{call}:1:{number}") as up:
            (up.data / "file").write_bytes(bytes(MIB))
            words = ("python3", PROGRAM, case, up.mount / "file")
            if way == "shortcut":
                words = (up.program, "run", "--", "env", "TIDEGATE_SHORTCUT=eager", *words)
            assert run(*words, env=up.environment).stdout.strip() == said, (call, case)


def test_a_file_system_without_room(folders, forwarders):
    """A write that finds no room fails itself; what was written before it is stable."""
    device = Device(folders(), folders(), mib=100)
    with forwarders(2, data=device.root) as up:
        for way in WAYS:
            device.file(f"longer-{way}")
        fill(device.root)
        assert told(up, device.root, "longer") == dict.fromkeys(WAYS, "ENOSPC ok")


def test_room_comes_back_with_the_name(folders, forwarders):
    """On a full device, what is removed can be written again soon, through whichever forwarders it went: they do not
    wait until they tidy, which takes them 8 s and more."""
    device = Device(folders(), folders(), mib=120)
    with forwarders(4, "--stripe", "65536", data=device.root) as up:
        def written(name):
            done = 0
            with open(up.mount / name, "wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    done += file.write(bytes(MIB))
            return done
        first = written("first")
        assert first > 30 * MIB
        for again in range(3):
            os.unlink(up.mount / "first" if again == 0 else up.mount / f"again{again - 1}")
            until(lambda name=f"again{again}": written(name) > first - 4 * MIB, "its room does not come back", 5)
        # A file that is open keeps its room, until it is closed.
        with open(up.mount / "again2", "rb"):
            os.unlink(up.mount / "again2")
            assert written("none") < 4 * MIB
        until(lambda: written("last") > first - 8 * MIB, "the room of a closed file does not come back")


def test_a_file_system_that_turns_read_only(folders, forwarders):
    device = Device(folders(), folders(), "errors=remount-ro", mib=100)
    number = os.stat(device.root).st_dev
    name = pathlib.Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve().name
    with forwarders(2, data=device.root) as up:
        running = {}
        for way, folder in zip(WAYS, (device.root, up.mount, up.mount)):
            device.file(f"refused-{way}")
            words = ("python3", PROGRAM, "refused", folder / f"refused-{way}")
            if way == "shortcut":
                words = (up.program, "run", "--", *words)
            running[way] = up.start(*words, env=up.environment, log=up / f"{way}.log", stdin=-1)
        for way in WAYS:
            until(lambda: (up / f"{way}.log").read_text() == "ready\n", f"{way} does not start")
        pathlib.Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("test")
        for process in running.values():
            process.communicate(b"on\n", 60)
        found = {way: (up / f"{way}.log").read_text().splitlines()[1] for way in WAYS}
        assert found == dict.fromkeys(WAYS, found["plain"])
        assert found["plain"].startswith("ok ok EROFS")
