"""What forwarders and mounts of root can no longer do once they serve: files outside the export, programs,
other processes. What they must still do, the other suites test, which all run with it."""
import os
import pathlib
import re
import select
import shutil
import signal

import pytest
from conftest import FORK, REPO, Forwarder, alive, matches, need_fuse, process_field, run, tidegate, until
from floods import OTHER, become
from session import Refused, Session

UNITS = sorted((REPO / "packaging/systemd").glob("*.service"))
# Bits of capabilities that a forwarder must not have when it serves.
# SYS_PTRACE, SYS_NICE, SYS_RESOURCE, SETPCAP, SYS_MODULE, SYS_RAWIO.
NONE_OF = sum(1 << bit for bit in (19, 23, 24, 8, 16, 17))
PTRACE = 1 << 19


def status(task):
    """The lines of a thread's /proc/.../status, by name."""
    lines = pathlib.Path(task, "status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def threads(pid):
    return [status(task) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()]


def children(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def forwarder(work):
    if os.geteuid():
        pytest.skip("only root's forwarders have rights to give up")
    with work.part() as part:
        run_folder = part.folder("run")
        run_folder.chmod(0o755)
        made = Forwarder(part, "one", export=part.folder("data"), listen=[f"unix:{run_folder}/socket"],
                         pid_file=run_folder / "pid", sandbox="on")
        made.at, made.run = f"unix:{run_folder}/socket", run_folder
        yield made


def lowest_niceness():
    """What threads that answer have: this process's niceness, or 5 less if that is 0 and the system lets a child
    of this process have it."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    tried = run("sh", "-c", f"exec nice -n -5 {shutil.which('python3')} -c 'import os; print(os.getpriority(0, 0))'").stdout
    return int(tried) if niceness == 0 else niceness


def test_every_thread_of_a_forwarder_is_confined(forwarder):
    log = forwarder.log.read_text()
    assert matches(r"sandbox files=.* programs=.none", log), log
    if "export (Landlock" not in log:
        assert matches("can reach files outside its export", log), log
    found = threads(forwarder.process.pid)
    assert len(found) > 2
    lowest = lowest_niceness()
    for thread in found:
        assert thread["Seccomp"] == "2" and thread["NoNewPrivs"] == "1", thread
        for field in ("CapEff", "CapPrm"):
            assert int(thread[field], 16) & NONE_OF == 0, thread
        assert int(thread["CapBnd"], 16) & PTRACE == 0, thread
        # Who answers goes first, where this process could let it.
        answers = re.fullmatch(r"tidegate|shard\.\d+", thread["Name"])
        niceness = lowest if answers else os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, int(thread["Pid"])) == niceness, thread
    forwarder.stop()


# The numbers of capabilities (linux/capability.h).
BITS = {"CHOWN": 0, "DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "FOWNER": 3, "FSETID": 4, "SETGID": 6, "SETUID": 7,
        "NET_BIND_SERVICE": 10, "IPC_LOCK": 14, "SYS_ADMIN": 21, "MKNOD": 27, "SETFCAP": 31}
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def sets_of(text):
    return sum(1 << BITS[name] for name in re.findall(r"`CAP_(\w+)`", text))


def table():
    """For each thread of the table in docs/security.md, by a pattern of its name, its capabilities: by default, and
    with `io = "direct"`."""
    rows = re.findall(r"^  \| (`.*?`) \| .*? \| (.*) \|$", (REPO / "docs/security.md").read_text(), re.MULTILINE)
    rows = {tuple(re.findall(r"`(.*?)`", names)): text for names, text in rows}
    storage = sets_of(rows["storage-N",])
    found = {}
    for names, text in rows.items():
        if names[0] == "tidegate":
            assert text == ("`CAP_DAC_OVERRIDE`, with `fabric:` `CAP_IPC_LOCK`; with `io = \"direct\"` those of `storage-N` "
                            "and `CAP_IPC_LOCK`"), text
            kept = sets_of("`CAP_DAC_OVERRIDE`"), storage | sets_of("`CAP_IPC_LOCK`")
        elif names[0] == "shard.N":
            assert text == "none; with `fabric:` or `io = \"direct\"` `CAP_IPC_LOCK`", text
            kept = 0, sets_of(text)
        else:
            assert text == "none" or re.fullmatch(r"(`CAP_\w+` ?)+", text), text
            kept = sets_of(text), sets_of(text)
        found |= {re.escape(name).replace("N", r"\d+"): kept for name in names}
    return found, storage


@pytest.mark.parametrize("io", ["buffered", "direct"])
def test_each_thread_has_the_capabilities_of_the_table(forwarder, io):
    kept, all_of_them = table()
    assert len(kept) == 14, kept
    if io == "direct":
        all_of_them |= sets_of("`CAP_IPC_LOCK`")
    forwarder.stop()
    trace = forwarder.run / "trace"
    secret = forwarder.run / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    secret.chmod(0o600)
    more = f'reactors = 3\nstorage.io = "{io}"\ntrace.file = "{trace}"\nsecret_file = "{secret}"\nmunge = "on"\n'
    forwarder.config.write_text(more + forwarder.config.read_text())
    forwarder.start()
    for folder in (forwarder.work.path, *forwarder.work.path.parents[:1]):
        folder.chmod(0o711)
    mount = forwarder.work.folder("mnt")
    process = forwarder.work.mount_at(mount, "--forwarders", forwarder.at)
    as_user = ("setpriv", "--reuid", 12345, "--regid", 12345, "--clear-groups")

    def look():
        seen = set()
        for thread in threads(forwarder.process.pid):
            if thread["Name"].startswith("iou-"):  # of the kernel, with the rights of the ring
                continue
            [row] = [row for row in kept if re.fullmatch(row, thread["Name"])] or [None]
            assert row, f"docs/security.md does not name the thread {thread['Name']}"
            allowed = kept[row][io == "direct"]
            found = {name: int(thread[name], 16) for name in SETS}
            # A thread that acts for a user has less at that moment.
            assert found["CapEff"] & ~allowed == 0 and thread["NoNewPrivs"] == "1", (thread["Name"], found)
            if not row.startswith("storage"):
                assert found["CapEff"] == allowed, (thread["Name"], found)
            assert (found["CapPrm"], found["CapInh"], found["CapAmb"]) == (allowed, 0, 0), (thread["Name"], found)
            assert found["CapBnd"] == all_of_them, (thread["Name"], found)
            seen.add(row)
        return seen

    first = look()
    named = {"tidegate", "signals", "tidy", "kept", "trace", r"shard\.\d+", r"storage\-\d+", r"munge\.\d+"}
    assert named <= first, first
    # With no more than that it does what it is for.
    (mount / "file").write_text("of root")
    os.chown(mount / "file", 12345, 12345)
    os.setxattr(mount / "file", "trusted.a", b"1")
    os.mknod(mount / "device", 0o600 | 0o20000, os.makedev(1, 3))
    run(*as_user, "sh", "-c", f"echo mine >> {mount}/file && cat {mount}/file")
    (mount / "long").write_bytes(bytes(3 << 20))
    assert (mount / "long").read_bytes() == bytes(3 << 20)
    with open(mount / "long", "rb"):
        (mount / "long").unlink()
    assert look() >= first
    process.terminate()
    process.wait(30)
    forwarder.stop()


def test_one_process_looks_at_peers_and_can_do_nothing_else(forwarder):
    [witness] = children(forwarder.process.pid)
    found = status(f"/proc/{witness}")
    assert int(found["CapPrm"], 16) == int(found["CapEff"], 16) == PTRACE, found
    assert found["Seccomp"] == "2" and found["NoNewPrivs"] == "1", found
    assert found["Uid"].split()[0] != "0" and found["Groups"].strip() == "", found
    opened = list(pathlib.Path(f"/proc/{witness}/fd").iterdir())
    assert len(opened) == 1, opened
    # Root is known by it, with capabilities that the forwarder has not; root without its own is not.
    tidegate("policy", "set", "window", "--forwarders", forwarder.at)
    refused = run("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin", "--reset-env",
                  shutil.which("env"), os.environ.get("TIDEGATE", "tidegate"), "policy", "set", "fifo",
                  "--forwarders", forwarder.at, code=None)
    assert refused.returncode != 0, "root of a container counts as root"
    # Signals to the group are the forwarder's; the other one ends with it, however it ends.
    os.kill(witness, signal.SIGTERM)
    tidegate("policy", "set", "fifo", "--forwarders", forwarder.at)
    assert alive(witness)
    forwarder.process.kill()
    forwarder.process.wait(30)
    until(lambda: not alive(witness), "it ends with its forwarder")


def test_others_cannot_end_the_process_that_looks_at_peers(forwarder):
    [witness] = children(forwarder.process.pid)
    for user in (65534, 12345):
        for name in ("STOP", "KILL"):
            run("setpriv", "--reuid", user, "--clear-groups", "kill", f"-{name}", witness, code=1)
    assert alive(witness) and process_field(witness, 3) != "T"
    forwarder.stop()


def hellos(at, first, count):
    """Sessions that have said hello, and have no answer."""
    made = [Session(at, first + number) for number in range(count)]
    for session in made:
        session.send_hello()
    return made


def ordinary(at, first, told):
    become(OTHER)
    for session in hellos(at, first, 20):
        session.take_hello()
        session.status()
        session.bye()
    told.send(True)


def others_are_served(work, at, first):
    here, there = FORK.Pipe(False)
    work.fork(ordinary, at, first, there)
    there.close()
    assert here.poll(60) and here.recv(), "no other user is served"


def test_nobody_but_root_waits_for_the_process_that_looks_at_peers(forwarder, work):
    os.chmod(work.path, 0o711)
    os.chmod(forwarder.run.parent, 0o711)
    [witness] = children(forwarder.process.pid)
    stopped = lambda: process_field(witness, 3) == "T"
    os.kill(witness, signal.SIGSTOP)
    until(stopped, "it goes on")
    waiting = hellos(forwarder.at, 1, 8)
    others_are_served(work, forwarder.at, 100)
    assert not select.select([it.socket for it in waiting], [], [], 0)[0], "who is root is not known yet"
    os.kill(witness, signal.SIGCONT)
    for session in waiting:
        session.take_hello()
    # More than may wait for answers, which never come.
    os.kill(witness, signal.SIGSTOP)
    until(stopped, "it goes on")
    waiting = hellos(forwarder.at, 200, 80)
    others_are_served(work, forwarder.at, 300)
    for session in waiting:
        with pytest.raises(Refused) as refused:
            session.take_hello()
        assert refused.value.status == 13
    assert matches("ERROR.*tidegate-peers.*does not answer", forwarder.log.read_text())
    # What it answers too late is about nobody.
    os.kill(witness, signal.SIGCONT)
    tidegate("policy", "set", "window", "--forwarders", forwarder.at)
    forwarder.stop()


def test_a_forwarder_ends_without_the_process_that_looks_at_peers(forwarder):
    [witness] = children(forwarder.process.pid)
    os.kill(witness, signal.SIGKILL)
    # Nobody has to ask for a root's program to be refused first.
    assert forwarder.process.wait(30) == 1
    log = forwarder.log.read_text()
    told = r"^tidegate: stopped: tidegate-peers, .* has ended by signal 9; start"
    assert matches("ERROR.*tidegate-peers", log) and matches(told, log), log
    assert not (forwarder.run / "pid").exists() and not (forwarder.run / "socket").exists()
    forwarder.start()
    tidegate("policy", "set", "window", "--forwarders", forwarder.at)
    forwarder.stop()


def test_a_set_has_another_forwarder_with_a_process_that_looks_at_peers(forwarders):
    if os.geteuid():
        pytest.skip("only root's forwarders ask another process")
    with forwarders(2, restarts=True) as up:
        first = up.pid(0)
        (up.mount / "before").write_text("bytes")
        [witness] = children(first)
        os.kill(witness, signal.SIGKILL)
        until(lambda: up.pid(0) not in (None, first) and alive(up.pid(0)), "none is started")
        until(lambda: up.tidegate("stat", "--check", code=None).returncode == 0, "it does not serve its seat")
        said = up.tidegate("stat").stdout
        assert matches("forwarder 0 died .*tidegate-peers.* was started again, once", said), said
        assert (up.mount / "before").read_text() == "bytes"
        up.tidegate("policy", "set", "window")


def test_a_socket_where_others_may_write_is_refused(forwarder):
    forwarder.stop()
    forwarder.run.chmod(0o777)
    refused = tidegate("serve", "--config", forwarder.config, code=2, timeout=30)
    assert matches("others may replace the socket.*unguarded_sockets", refused.stderr), refused.stderr
    text = forwarder.config.read_text()
    forwarder.config.write_text("unguarded_sockets = true\n" + text)
    forwarder.start()
    forwarder.stop()
    forwarder.config.write_text(text.replace('"on"', '"perhaps"'))
    refused = tidegate("serve", "--config", forwarder.config, code=2, timeout=30)
    assert matches("sandbox.*perhaps", refused.stderr), refused.stderr


def test_a_forwarder_without_a_sandbox_says_so(forwarder):
    forwarder.stop()
    forwarder.config.write_text(forwarder.config.read_text().replace('"on"', '"off"'))
    forwarder.start()
    assert matches('WARN.*sandbox = "off"', forwarder.log.read_text())
    assert threads(forwarder.process.pid)[0]["Seccomp"] == "0"
    forwarder.stop()


def test_a_mount_starts_no_program_and_takes_itself_off(forwarder):
    need_fuse()
    mount = forwarder.work.folder("mnt")
    process = forwarder.work.mount_at(mount, "--forwarders", forwarder.at)
    until(lambda: all(it["Seccomp"] == "2" for it in threads(process.pid)), "all threads are confined")
    (mount / "file").write_text("bytes")
    assert (mount / "file").read_text() == "bytes"
    process.terminate()
    assert process.wait(30) == 0
    assert not os.path.ismount(mount)
    forwarder.stop()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_are_sound(unit, work):
    text = unit.read_text()
    for needed in ("NoNewPrivileges=yes", "CapabilityBoundingSet=", "RestrictAddressFamilies=",
                   "SystemCallFilter=@system-service"):
        assert needed in text, needed
    # Those that start a process of their own, which ends with them.
    assert ("KillMode=mixed" in text) == (unit.stem != "tidegate-metrics")
    # Each line is a comment, a section, or KEY=VALUE.
    for line in text.splitlines():
        assert re.fullmatch(r"|#.*|\[[A-Z]\w+\]|[A-Z]\w+=(\S.*)?", line), line
    words = re.search(r"^ExecStart=\S+ (\w+)", text, re.MULTILINE)[1]
    tidegate(words, "--help")
    if not shutil.which("systemd-analyze"):
        return
    with work.part() as part:
        copy = part.file(unit.name, text.replace("/usr/local/bin/tidegate", str(shutil.which("true"))))
        run("systemd-analyze", "verify", "--man=no", copy)
        bound = {"tidegate-forwarder": 45, "tidegate-metrics": 20, "tidegate-mount": 57}[unit.stem]
        run("systemd-analyze", "security", "--offline=true", f"--threshold={bound}", "--no-pager", copy)


def test_units_are_all_there():
    assert [unit.stem for unit in UNITS] == ["tidegate-forwarder", "tidegate-metrics", "tidegate-mount"]
