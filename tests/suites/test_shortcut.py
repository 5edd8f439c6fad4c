"""The short-cut: what programs see is the same as on the mount, whatever they do to descriptors, while files
change on both ways, and while forwarders die; and it is used when it is worth it."""
import os
import shutil
import signal
import threading

import pytest
from conftest import LONG, REPO, TIDEGATE, alive, run, until

LIBRARY = TIDEGATE.parent / "libtidegate_preload.so"
# Programs with every file taken at once, and with files taken when they are worth it, or otherwise.
PARTS = [*(("check", name) for name in "calls errors processes handlers numbers maps threads forks last children limited".split()),
         ("on", "calls"), ("eager", "flags"), ("eager", "copies"),
         ("eager", "unseen"),  # a number that changed unseen is noticed
         ("on", "worth"),  # a program that does little does not connect
         ("on", "nobody", "--no-shortcut"), ("off", "nobody"),
         ("eager", "large")]  # calls of 40 MiB and more


@pytest.fixture(scope="module")
def up(forwarders):
    assert LIBRARY.exists(), f"{LIBRARY} is missing: cargo build --release -p tidegate-preload"
    with forwarders(2) as up:
        run("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", up / "shortcut",
            REPO / "tests/programs/src/shortcut.c")
        (up.mount / "parts").mkdir()
        yield up


def part(up, mode, name, *options, **more):
    """A part of the program; what it says."""
    return up.tidegate("run", *options, "--", up / "shortcut", up.mount / "parts", name, timeout=120,
                       env={"TIDEGATE_SHORTCUT": mode}, **more).stderr


@pytest.mark.parametrize("words", PARTS, ids=" ".join)
def test_part(up, words):
    part(up, *words)


def test_a_number_that_changed_unseen_is_a_finding(up):
    assert "became another file" in part(up, "check", "unseen", code=-signal.SIGABRT)


def test_writes_while_a_forwarder_is_killed(up):
    victim, again, file = up.pid(1), up.restart_when_dead(1), up.data / "parts/faults"

    def kill():
        until(lambda: file.exists() and file.stat().st_size > 1 << 20, "nothing is written")
        os.kill(victim, signal.SIGKILL)
    killer = threading.Thread(target=kill)
    killer.start()
    part(up, "eager", "faults")
    killer.join()
    again.join(20)
    assert not alive(victim) and up.restarted


def test_what_is_wrong_is_said(up):
    assert "neither on, off, eager nor check" in part(up, "quick", "nobody")
    alone = up.folder("alone") / "tidegate"  # without the library beside it
    shutil.copy(TIDEGATE, alone)
    up.program, program = alone, up.program
    assert "all data goes through the mount" in part(up, "on", "nobody")
    up.program = program


@pytest.mark.parametrize("count", [1, 4] if LONG else [4])
def test_unmodified_programs(forwarders, count):
    """Some of them where there is little time."""
    cases = [] if LONG else ("append copy-range dd fio-processes holes locks offsets python-io python-mmap shell sqlite-wal "
                             "unlinked").split()
    with forwarders(count) as up:
        up.compare("shortcut", "--shortcut", LIBRARY, *cases)
        if LONG:
            fsx = run(REPO / "tools/need", "--path", "fsx", code=None)
            if fsx.returncode:
                pytest.skip("fsx is not built: run tools/need fsx")
            run(fsx.stdout.strip(), "-q", "-N", 20000, "-S", 9, "-P", up.path, up.mount / "fsx", timeout=900,
                env=os.environ | {"LD_PRELOAD": str(LIBRARY), "TIDEGATE_SHORTCUT": "check"})


SHORT = """
import errno, os, signal, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
os.pwrite(file, b"x" * 4096, 0)  # the short-cut takes the file
os.kill(int(sys.argv[2]), signal.SIGKILL)
for _ in range(600):
    try:
        os.statvfs(sys.argv[1])
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            break
    time.sleep(0.05)
try:
    print(os.pwrite(file, b"y" * (48 << 20), 0))
except OSError as error:
    print(errno.errorcode[error.errno])
"""


def test_what_was_written_past_a_dead_mount_is_counted(forwarders, work):
    """More than fits is written, so the rest goes to the mount, which is gone."""
    if os.geteuid():
        pytest.skip("only root can mount a small file system")
    small = work.folder()
    run("mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", small)
    try:
        with forwarders(1, data=small) as up:
            pid = (up.state / "mount.pid").read_text().strip()
            said = up.tidegate("run", "--", "python3", "-c", SHORT, up.mount / "file", pid,
                               env={"TIDEGATE_SHORTCUT": "eager"}).stdout.strip()
            assert said.isdigit() and 0 < int(said) < 48 << 20, said
            assert (small / "file").read_bytes()[:int(said)] == b"y" * int(said)
    finally:
        run("umount", "-l", small)
