"""Shares set at run time under load change what applications get within a second; the last rule that
goes brings the plain policy back; what is saved outlives a restart; views have a share; mistakes change
nothing. What an application gets is told by counts of the forwarders."""
import contextlib
import os
import re
import signal
import sys
import time

import pytest
from conftest import kill, matches, until

MB = 1000 * 1000
# How soon a rule has to hold. The forwarders are not asked when it does, so it is waited for.
WITHIN_S = 1


@pytest.fixture(scope="class")
def up(forwarders):
    with forwarders(2, "--device", "hdd-7200") as up:
        yield up


def policy(up):
    return up.json("share")["policy"]


def errors(up):
    """How many requests were answered with an errno."""
    return sum(state["requests"]["errors"] for state in up.states())


def had(up, names, key="write_bytes"):
    """What each of the applications has had so far."""
    return [sum(app[key] for state in up.states() for app in state.get("applications", [])
                if app.get("name") == name) for name in names]


def parts(up, names, amount, key="write_bytes"):
    """What each of the applications gets of the next `amount` that they have together, in percent."""
    before = had(up, names, key)

    def enough():
        now = [later - first for later, first in zip(had(up, names, key), before)]
        return sum(now) >= amount and now
    now = until(enough, f"{names} do not get {amount} {key}", 60, pause=0.2)
    found = [100 * one / sum(now) for one in now]
    print(*(f"{name} {part:.1f} %" for name, part in zip(names, found)), end=" ", flush=True)
    return found


def rate(up, name, amount):
    """How many bytes the application writes in a second, over so many of them."""
    began, (before,) = time.monotonic(), had(up, [name])
    now = until(lambda: had(up, [name])[0] >= before + amount and had(up, [name]), f"{name} does not go on", 60)
    found = (now[0] - before) / (time.monotonic() - began)
    print(f"{name} {found / MB:.1f} MB/s", end=" ", flush=True)
    return found


@contextlib.contextmanager
def writers(up, *names):
    """Four writers of each application, which are at work."""
    processes = []
    for name in names:
        (up.mount / name).mkdir(exist_ok=True)
        processes += [up.begin(
            "run", "--app", name, "--", "sh", "-c", f"while dd if=/dev/zero of={up.mount / name}/{number} bs=1M "
            "count=64 conv=notrunc status=none; do :; done", start_new_session=True) for number in range(4)]
    before = had(up, names)
    until(lambda: all(now > first for now, first in zip(had(up, names), before)), "not all write")
    yield
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def refused(up, pattern, *words):
    """The command ends with exit code 2 and one line, which has the pattern."""
    said = up.tidegate(*words, code=2).stderr
    assert said.count("\n") == 1 and matches(pattern, said), said


class TestUnderLoad:
    @pytest.fixture(scope="class", autouse=True)
    def load(self, up):
        with writers(up, "heavy", "light"):
            yield

    def test_no_rules(self, up):
        assert policy(up) == "fifo"
        assert min(parts(up, ["heavy", "light"], 64 * MB)) > 10

    def test_a_weight(self, up):
        assert matches("app *heavy.*8.*heavy", up.tidegate("share", "set", "heavy", "weight=8").stdout)
        assert policy(up) == "two-level"
        time.sleep(WITHIN_S)
        heavy, light = parts(up, ["heavy", "light"], 64 * MB)
        assert heavy > 3 * light > 0

    def test_a_maximum(self, up):
        up.tidegate("share", "set", "heavy", "weight=1", "max=8MB/s")
        time.sleep(WITHIN_S)
        before = had(up, ["light"])[0]
        assert 4 * MB <= rate(up, "heavy", 24 * MB) <= 10.4 * MB
        assert had(up, ["light"])[0] - before > 24 * MB

    @pytest.mark.parametrize("words", [
        "set a weight=0", "set a min=-5MB/s", "set a min=9MB/s max=3MB/s", "set a --group none-such",
        "set a colour=red", "set a max=99999999999TB/s", "remove none-such"])
    def test_mistakes_change_nothing(self, up, words):
        before = up.tidegate("share").stdout
        refused(up, ".", "share", *words.split())
        assert up.tidegate("share").stdout == before

    def test_messages(self, up):
        said = up.tidegate("share", "set", "greedy", "min=500GB/s").stderr
        assert matches("reservations cannot be met.*500 GB/s", said)
        up.tidegate("share", "remove", "greedy")
        refused(up, "there is none; add latency", "share", "set", "a", "percentile=99")
        refused(up, "weight is there twice", "share", "set", "a", "weight=3", "weight=4")
        refused(up, "has a control character", "share", "set", "a\nb", "weight=3")
        refused(up, 'there is no view "none-such"', "view", "remove", "none-such")
        assert matches("two-level stays effective", up.tidegate("policy", "set", "window").stderr)
        up.tidegate("policy", "set", "fifo")
        assert errors(up) == 0, "a request of the writers failed"

    def test_changes_at_once(self, up):
        changes = [up.begin("share", "set", f"many{number}", f"weight={number}", *["--temporary"][number % 2:])
                   for number in range(1, 9)]
        assert [change.wait(60) for change in changes] == [0] * 8
        said = up.tidegate("share")
        assert len(set(re.findall("app *(many[1-8]) ", said.stdout))) == 8
        assert "other rules" not in said.stderr
        assert len(list((up.data / ".tidegate").rglob("shares.toml*"))) == 1
        for number in range(1, 9):
            up.tidegate("share", "remove", f"many{number}")

    def test_views(self, up):
        before = errors(up)
        up.tidegate("view", "create", "quick", "jobs/quick", "weight=3")
        up.tidegate("run", "--view", "quick", "--", "sh", "-c",
                    'echo inside > hello; test "$PWD" = "$TIDEGATE_MOUNT"')
        assert (up.data / "jobs/quick/hello").read_text() == "inside\n"
        view = up.folder("view")
        up.tidegate("mount", view, "--view", "quick")
        assert (view / "hello").read_text() == "inside\n"
        (view / "more").write_text("more\n")
        up.tidegate("umount", view)
        assert had(up, ["quick"]) == [12]  # its users count as one application
        refused(up, "a view quick already", "view", "create", "quick", "jobs/elsewhere")
        assert "quick" not in up.tidegate("view", "remove", "quick").stdout
        up.tidegate("run", "--view", "quick", "--", "true", code=2)
        assert errors(up) == before

    def test_the_last_rule(self, up):
        before = errors(up)
        up.tidegate("share", "remove", "heavy")
        assert policy(up) == "fifo"
        assert rate(up, "heavy", 32 * MB) > 10.4 * MB
        assert errors(up) == before


def test_what_is_saved_outlives_a_restart(up):
    up.tidegate("share", "--save", "set", "kept", "weight=5")
    up.tidegate("share", "group", "club", "--user", "0", "weight=2", "--temporary")
    up.end(1)
    up.restart(1)
    rules = until(lambda: up.states()[1].get("shares"), "forwarder 1 has no rules")
    assert "kept" in str(rules) and "club" not in str(rules)
    assert "other rules" in up.tidegate("share").stderr
    assert "no rules" in up.tidegate("share", "reset").stdout
    assert not (up.data / ".tidegate/shares.toml").exists()


def test_rules_at_start(forwarders, work):
    """A group, and a minimum."""
    members = "".join(f'[[app]]\nname = "{name}"\ngroup = "club"\n' for name in ("heavy", "second"))
    rules = work.file("rules.toml", f'[[group]]\nname = "club"\nweight = 3\n{members}')
    names = "heavy", "second", "light"
    with forwarders(2, "--device", "hdd-7200", "--shares", rules) as up, writers(up, *names):
        assert policy(up) == "two-level"
        heavy, second, _ = parts(up, names, 128 * MB)
        assert 62 <= heavy + second <= 86, "the group has three quarters"
        assert 25 <= heavy <= 50, "its members share it"
        up.tidegate("share", "set", "light", "min=60%")
        time.sleep(WITHIN_S)
        heavy, second, light = parts(up, names, 128 * MB)
        assert 52 <= light <= 80 and min(heavy, second) > 4


# Reads a file at random places with so many threads until it is killed.
ASK = """
import os, random, sys, threading
path, threads = sys.argv[1], int(sys.argv[2])
threading.stack_size(256 * 1024)
file = os.open(path, os.O_RDONLY)
def ask():
    while True:
        os.pread(file, 16384, random.randrange(16384) * 65536)
for _ in range(threads):
    threading.Thread(target=ask).start()
"""


def test_a_greedy_application_beside_another(up):
    asking, names = [], ("greedy", "other")
    for name, threads in zip(names, (1000, 64)):
        up.tidegate("share", "set", name, "weight=1")
        with open(up.data / name, "wb") as file:
            file.truncate(1 << 30)
        # Each on a node of its own, as it were: the applications of one mount share what that may send.
        up.tidegate("mount", up.folder(f"{name}.mnt"))
        asking.append(up.start(sys.executable, "-c", ASK, up / f"{name}.mnt" / name, threads,
                               env=os.environ | {"TIDEGATE_APP": name}))
    until(lambda: min(had(up, names, "read_requests")) > 100, "not both ask")
    # Four times at most: where the clients wait for a processor, the other does not always ask for its half.
    assert any(parts(up, names, 2000, "read_requests")[1] >= 47.5 for _ in range(4))
    kill(*asking)
    for name in names:
        up.tidegate("umount", up / f"{name}.mnt")
