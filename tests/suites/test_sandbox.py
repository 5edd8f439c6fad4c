"""What forwarders and mounts of root can no longer do once they serve: files outside the export, programs,
other processes. What they must still do, the other suites test, which all run with it."""
import os
import pathlib
import re
import shutil
import signal

import pytest
from conftest import REPO, Forwarder, alive, matches, need_fuse, run, tidegate, until

UNITS = sorted((REPO / "packaging/systemd").glob("*.service"))
# Bits of capabilities that a forwarder must not have: SYS_PTRACE, SYS_RESOURCE, SETPCAP, SYS_MODULE, SYS_RAWIO.
NONE_OF = sum(1 << bit for bit in (19, 24, 8, 16, 17))
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


def test_every_thread_of_a_forwarder_is_confined(forwarder):
    log = forwarder.log.read_text()
    assert matches(r"sandbox files=.* programs=.none", log), log
    if "export (Landlock" not in log:
        assert matches("can reach files outside its export", log), log
    found = threads(forwarder.process.pid)
    assert len(found) > 2
    for thread in found:
        assert thread["Seccomp"] == "2" and thread["NoNewPrivs"] == "1", thread
        for field in ("CapEff", "CapPrm"):
            assert int(thread[field], 16) & NONE_OF == 0, thread
        assert int(thread["CapBnd"], 16) & PTRACE == 0, thread
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
                   "SystemCallFilter=@system-service", "KillMode=mixed"):
        assert needed in text, needed
    # Each line is a comment, a section, or KEY=VALUE.
    for line in text.splitlines():
        assert re.fullmatch(r"|#.*|\[[A-Z]\w+\]|[A-Z]\w+=\S.*", line), line
    words = re.search(r"^ExecStart=\S+ (\w+)", text, re.MULTILINE)[1]
    tidegate(words, "--help")
    if not shutil.which("systemd-analyze"):
        return
    with work.part() as part:
        copy = part.file(unit.name, text.replace("/usr/local/bin/tidegate", str(shutil.which("true"))))
        run("systemd-analyze", "verify", "--man=no", copy)
        bound = {"tidegate-forwarder": 45, "tidegate-mount": 57}[unit.stem]
        run("systemd-analyze", "security", "--offline=true", f"--threshold={bound}", "--no-pager", copy)


def test_units_are_all_there():
    assert [unit.stem for unit in UNITS] == ["tidegate-forwarder", "tidegate-mount"]
