"""tidegate down on a mount in use: says at once who uses it, waits, and says what it did."""
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest
from conftest import TIDEGATE, alive, kill, mounted, need_fuse, run, serving, stop, until


class Down:
    """`tidegate down`, in the background."""

    def __init__(self, up, copies=False):
        self.copies = copies
        self.up, self.err, self.began = up, up / "down.err", time.monotonic()
        self.process = up.begin("down", "--state-dir", up.state, stderr=open(self.err, "wb"))

    def said(self):
        """What it has said, but for lines of namespaces with a copy of the mount, which other suites may make."""
        lines = self.err.read_text().splitlines(keepends=True)
        return "".join(line for line in lines if self.copies or "is in the mount namespace of" not in line)

    def end(self, code, lines):
        """It ends with that code, after so many lines, and what it said; how long it took."""
        assert self.process.wait(60) == code
        self.up.up.wait(60)
        said = self.said()
        assert said.count("\n") == lines and not mounted(self.up.mount), said
        return said, time.monotonic() - self.began


@pytest.mark.parametrize("lets_go", [True, False])
def test_beside_a_program(forwarders, lets_go):
    with forwarders(2) as up:
        held = up.mount / "held"
        held.write_text("bytes\n")
        with open(held) as file:
            holder = up.start("sleep", 300, stdin=file)
        down = Down(up)
        said = until(down.said, "it says nothing", 10)
        assert f"the mount {up.mount} is in use by sleep (pid {holder.pid}, open file {held})" in said
        assert "waiting up to 15 s" in said and down.process.poll() is None
        if lets_go:
            kill(holder)
            said, spent = down.end(0, 2)
            assert f"{up.mount} was let go of and taken away after" in said and spent < 13
        else:
            said, spent = down.end(1, 2)
            assert f"had to be killed: the mount in use by sleep (pid {holder.pid}, " in said and 14 <= spent <= 30
            assert holder.poll() is None, "the program is not touched"
            kill(holder)


def test_beside_nobody(forwarders):
    with forwarders(2) as up:
        assert Down(up).end(0, 0)[0] == ""


def elsewhere():
    """Words that run a program in a mount namespace of its own, as the same user."""
    words = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    if run(*words, "true", code=None).returncode:
        pytest.skip("no right to make a mount namespace")
    return words


def test_beside_a_copy_in_another_mount_namespace(forwarders):
    """As a container has one: nothing is open on it, so nobody is waited for."""
    words = elsewhere()
    with forwarders(2) as up:
        copy = up.start(*words, "sleep", 300)
        until(lambda: pathlib.Path(f"/proc/{copy.pid}/comm").read_text() == "sleep\n", "it does not run")
        assert mounted(up.mount, copy.pid)
        said, spent = Down(up, copies=True).end(0, 1)
        assert f"a copy of the mount {up.mount} is in the mount namespace of sleep (pid {copy.pid})" in said
        assert spent < 13, "it waits for nobody"
        assert copy.poll() is None, "the program is not touched"
        kill(copy)


def test_beside_an_open_file_in_another_mount_namespace(forwarders):
    if os.geteuid():
        pytest.skip("only root sees what others have open")
    with forwarders(2) as up:
        held = up.mount / "held"
        writer = up.start("unshare", "-m", "sh", "-c", f"exec 3> {held}; echo bytes >&3; read x; echo more >&3",
                          stdin=subprocess.PIPE)
        until(lambda: (up.data / "held").exists() and (up.data / "held").read_text(), "it does not write")
        down = Down(up)
        until(down.said, "it says nothing", 10)
        time.sleep(2)
        assert down.process.poll() is None, "the file is open"
        writer.stdin.close()
        assert writer.wait(30) == 0
        assert "had to be killed" not in down.end(0, 2)[0]
        assert (up.data / "held").read_text() == "bytes\nmore\n"


def test_a_mount_by_hand_ends_too(forwarders):
    with forwarders(2) as up:
        other = up / "other"
        mounting = up.mount_at(other, "--state-dir", up.state)
        until(lambda: list(up.state.glob("mount.*.pid")), "it is not told")
        with open(other / "held", "w") as held:
            held.write("bytes")
            down = Down(up)
            until(lambda: "open file" in down.err.read_text(), "it says nothing", 10)
            assert f"the mount {other} is in use by" in down.err.read_text()
            assert down.process.poll() is None and mounting.poll() is None
        said = down.end(0, 2)[0]
        assert f"{other} was let go of and taken away after" in said
        assert mounting.wait(30) == 0 and not mounted(other)
        assert (up.data / "held").read_text() == "bytes"
        assert not list(up.state.glob("mount.*.toml")) and not list(up.state.glob("mount.*.pid"))


def test_a_mount_by_hand_that_was_killed_is_taken_away(forwarders):
    with forwarders(1) as up:
        other = up / "other"
        kill(up.mount_at(other, "--state-dir", up.state))
        assert mounted(other)
        Down(up).end(0, 0)
        assert not mounted(other)


def test_what_is_mounted_in_its_place_stays(forwarders):
    with forwarders(1) as theirs, forwarders(1) as up:
        mounter = int((up.state / "mount.pid").read_text())
        up.tidegate("umount", up.mount)
        until(lambda: not alive(mounter), "the mount does not end")
        mounting = theirs.mount_at(up.mount, "--client", theirs.state / "client.toml")
        (up.mount / "theirs").write_text("bytes")
        run(up.program, "down", "--state-dir", up.state)
        assert mounted(up.mount) and (up.mount / "theirs").read_text() == "bytes"
        stop(mounting)
        up.up.wait(60)


@pytest.fixture
def place(work):
    need_fuse()
    with work.part() as part:
        part.folder("data")
        part.state = part / "run"
        part.words = ("up", part / "data", "--forwarders", 2, "--state-dir", part.state)
        yield part


@pytest.mark.parametrize("removed", ["the directory", "its files"])
@pytest.mark.parametrize("kept", ["in the background", "in the foreground"])
def test_where_the_state_was_removed(place, removed, kept):
    """As what cleans the temporary directory does: it enters no mount."""
    mount = place / "mnt"
    if kept == "in the background":
        run(TIDEGATE, *place.words, "--mount", mount)
    else:
        words, out = (*place.words[:4], "--mount", mount, "--foreground"), place / "up.out"
        up = place.start(TIDEGATE, *words, log=out, env=os.environ | {"TIDEGATE_STATE_DIR": str(place.state)})
        until(lambda: "ready" in out.read_text().splitlines(), out.read_text)
    assert len(serving(place.state)) >= 3, "forwarders and mount"
    if removed == "the directory":
        shutil.rmtree(place.state)
    else:
        for path in place.state.iterdir():
            path.unlink()
    run(TIDEGATE, "down", "--state-dir", place.state)
    assert not serving(place.state) and not mounted(mount)
    run(TIDEGATE, "down", "--state-dir", place.state, code=2)
    if kept == "in the foreground":
        assert up.wait(30) == 0 and "nothing of the set in" in out.read_text(), out.read_text()


def test_from_another_mount_namespace(place):
    """The same directory is known there. One that is gone may have been another one's of that name."""
    down, words, data = (TIDEGATE, "down", "--state-dir", place.state), elsewhere(), place / "data"
    run(TIDEGATE, *place.words)
    run(*words, *down)
    assert not serving(place.state) and not mounted(place.state / "mnt")
    mount = place / "mnt"
    run(TIDEGATE, *place.words, "--mount", mount)
    (mount / "seen").write_text("bytes")
    shutil.rmtree(place.state)
    before = serving(place.state)
    assert len(before) >= 3, "forwarders and mount"
    done = run(*words, *down, code=2)
    assert f"nothing is up in {place.state}" in done.stderr, done
    assert serving(place.state) == before and (mount / "seen").read_text() == "bytes"
    run(*down)
    assert not serving(place.state) and not mounted(mount)


def test_up_is_stopped_by_a_signal(place):
    """Before it is ready: then nothing is up."""
    for delay in range(6):
        log = place / f"up.{delay}.err"
        up = place.start(TIDEGATE, *place.words, log=log)
        if delay:
            until(lambda: len(serving(place.state)) > delay % 3 or up.poll() is not None, "it starts nothing")
        up.send_signal(signal.SIGINT)
        code, said = up.wait(60), log.read_text()
        if code == 0:
            run(TIDEGATE, "down", "--state-dir", place.state)
            continue
        assert (code, "nothing is up" in said) in ((130, True), (-signal.SIGINT, False)), (code, said)
        assert not serving(place.state), said
        assert not mounted(place.state / "mnt")


def test_up_goes_on_where_its_signals_are_ignored(place):
    """As under nohup, or in the background of a script."""
    log = place / "up.err"
    up = place.start("sh", "-c", "trap '' INT HUP; exec \"$0\" \"$@\"", TIDEGATE, *place.words, log=log)
    until(lambda: len(serving(place.state)) > 2 or up.poll() is not None, "it starts nothing")
    for number in (signal.SIGINT, signal.SIGHUP):
        up.send_signal(number)
    assert up.wait(60) == 0, log.read_text()
    run(TIDEGATE, "down", "--state-dir", place.state)


def test_sets_of_other_places_are_named(place):
    run(TIDEGATE, *place.words)
    other = ("--state-dir", place / "other")
    said = run(TIDEGATE, "down", *other, code=2).stderr
    assert str(place.state) in said.split("you have forwarders in ")[1].split("; ")[0].split(", "), said
    said = run(TIDEGATE, "stat", *other, code=2).stderr
    assert str(place.state) in said.split(", but in ")[1].split("; ")[0].split(", "), said
    said = run(TIDEGATE, "up", place / "data", "--forwarders", 2, *other, code=2).stderr
    assert "forwarders, which are yours; " in said and f"down --state-dir {place.state}`" in said, said
    run(TIDEGATE, "down", "--state-dir", place.state)


def test_a_set_is_as_the_one_before(place):
    """Unless somebody says otherwise, which is refused in words."""
    run(TIDEGATE, *place.words, "--stripe", "64KiB")
    other = run(TIDEGATE, "up", place / "data", "--state-dir", place / "other", "--forwarders", 3, code=2).stderr
    assert "is already served by other forwarders, which are yours; " in other, other
    run(TIDEGATE, "down", "--state-dir", place.state)
    for flag, value in (("--forwarders", 3), ("--stripe", "1MiB")):
        said = run(TIDEGATE, "up", place / "data", "--state-dir", place.state, flag, value, code=2).stderr
        assert "had --forwarders 2 --stripe 65536 before" in said, said
    said = run(TIDEGATE, "up", place / "data", "--state-dir", place.state).stdout
    assert said.startswith("2 forwarders serve"), said
    run(TIDEGATE, "down", "--state-dir", place.state)
