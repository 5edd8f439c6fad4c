"""tidegate up: of several at once one starts the set; down finds whatever is left; each job of a batch
system has its own."""
import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest
from conftest import LONG, TIDEGATE, alive, kill, mounted, need_fuse, run, serving, stop, until

AT_ONCE, ROUNDS = (100, 20) if LONG else (20, 3)


@pytest.fixture
def place(work):
    """A folder with a state directory and two directories to export."""
    need_fuse()
    with work.part() as part:
        for name in ("data", "other"):
            part.folder(name)
        part.state = part / "run"
        yield part
        run(TIDEGATE, "down", "--state-dir", part.state, code=None)


def command(place, *words):
    return [TIDEGATE, *words, "--state-dir", place.state]


def of_ours(place):
    """Processes that use a file of the place, or whose arguments name one."""
    name, found = os.fsencode(place.path) + b"/", {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            used = [os.readlink(process / "cwd"), *(os.readlink(fd) for fd in (process / "fd").iterdir())]
            if name in words or any(os.fsencode(path).startswith(name) for path in used):
                found[int(process.name)] = words
    return found


# What stays in a state directory for who wants to read it, and in the hidden folder for the next set.
KEPT = r"(up|mount|forwarder\.\d+)\.log|forwarder\.\d+\.toml|applications|lock|mnt"
HIDDEN = r"export|forwarder\.\d+|keeper|layout|moved|opens|orphans|seat\.\d+"
# What a forwarder that ends while it starts was about to write; the next one takes it away an hour later.
DRAFT = r"[a-z]+(\.\d+)?\.\d+\.\d+\.\d+"


def nothing_left(place, hidden_names=HIDDEN):
    until(lambda: not serving(place.state), lambda: f"{serving(place.state)} are left")
    until(lambda: not of_ours(place), lambda: f"{of_ours(place)} are left")
    mounts = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    assert not [line for line in mounts if f" {place.path}/" in line and " - fuse" in line]
    assert f" {place.path}/" not in pathlib.Path("/proc/net/unix").read_text()
    # An `up` that was killed early has not made it.
    left = {path.name for path in place.state.iterdir()} if place.state.exists() else set()
    assert not {name for name in left if not re.fullmatch(KEPT, name)} - {"fill"}, left
    assert "mnt" not in left or not os.listdir(place.state / "mnt")
    if "lock" in left:
        with open(place.state / "lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    shared = pathlib.Path(f"/dev/shm/tidegate-{os.geteuid()}")
    for hidden in place.path.glob("*/.tidegate"):
        names = [str(path.relative_to(hidden)) for path in hidden.rglob("*")]
        assert not [name for name in names if not re.fullmatch(hidden_names, name)], names
        inode = hidden.stat().st_ino
        assert not list(shared.glob(f"*-{inode:x}-*")), "memory of forwarders is left"


def test_of_many_at_once_one_wins(place):
    took = []
    for number in range(ROUNDS):
        exports = [place.folder(f"{number}.{index}") for index in range(2)]
        tries = []
        for index in range(AT_ONCE):
            words = command(place, "up", exports[index % 2], "--forwarders", 2)
            tries.append(place.start(*words, log=place / f"{number}.{index}.err"))
        ready = until(lambda: [at for at, one in enumerate(tries) if one.poll() == 0], "nobody is up", 60)
        began = time.monotonic()
        # They wait for one after the other, since each of them looks whether a set is up.
        until(lambda: all(one.poll() is not None for one in tries), "the others wait", 30)
        took.append(time.monotonic() - began)
        codes = [one.returncode for one in tries]
        said = [(place / f"{number}.{index}.err").read_text() for index in range(AT_ONCE)]
        assert [index for index, code in enumerate(codes) if code == 0] == ready and len(ready) == 1, (codes, set(said))
        pid = (place.state / "up.pid").read_text().strip()
        expected = f"tidegate: process {pid} is up in {place.state} already; `tidegate down --state-dir {place.state}` " \
                   "stops it\n"
        for index, (code, text) in enumerate(zip(codes, said)):
            if index not in ready:
                assert code == 2 and text == expected, text
        served, other = exports[ready[0] % 2], exports[1 - ready[0] % 2]
        (served / "seen").write_text(str(number))
        assert (place.state / "mnt/seen").read_text() == str(number), "the mount is of another directory"
        run(*command(place, "stat", "--check"))
        run(*command(place, "down"))
        nothing_left(place)
        assert (sorted(os.listdir(served)), os.listdir(other)) == ([".tidegate", "seen"], [])
    print(f"{ROUNDS} rounds of {AT_ONCE}; the others ended {max(took):.1f} s after the first at most", end=" ")


def test_of_many_downs_one_stops_it(place):
    run(*command(place, "up", place / "data", "--forwarders", 2))
    downs = [place.start(*command(place, "down"), log=place / f"down.{index}.err") for index in range(5)]
    codes = [one.wait(60) for one in downs]
    assert set(codes) <= {0, 2} and 0 in codes, codes
    nothing_left(place)
    assert "nothing is up in" in run(*command(place, "down"), code=2).stderr


def test_down_while_it_starts(place):
    for pause in (0.02, 0.03, 0.04, 0.1, 0.3, 1):
        log = place / f"up.{pause}.err"
        start = place.start(*command(place, "up", place / "data"), log=log)
        time.sleep(pause)
        code = run(*command(place, "down"), code=None).returncode
        begun = start.wait(60)
        assert begun == 0 or log.read_text() == "tidegate: told to stop before all was up\n", log.read_text()
        if code == 2:  # it came before there was anything
            assert begun == 0
            run(*command(place, "down"))
        nothing_left(place, f"{HIDDEN}|{DRAFT}")


def test_what_no_file_names_is_found(place):
    up = place.start(*command(place, "up", place / "data", "--forwarders", 3, "--foreground"), log=place / "up.err")
    until(lambda: mounted(place.state / "mnt"), "it does not mount")
    kill(up)
    for name in ("client.toml", "mount.pid", "up.pid", *(f"forwarder.{index}.pid" for index in range(3))):
        (place.state / name).unlink()
    assert len(serving(place.state)) >= 4
    said = run(*command(place, "up", place / "data"), code=2).stderr
    assert "is up in" in said and "tidegate down" in said, said
    run(*command(place, "down"))
    nothing_left(place)
    run(*command(place, "up", place / "data", "--forwarders", 3))
    run(*command(place, "down"))
    nothing_left(place)


def test_a_name_that_begins_as_a_flag_does(place):
    place.folder("--data")
    run(*command(place, "up", "--forwarders", 1), "--", "--data", cwd=place.path)
    assert len(serving(place.state)) == 4, "forwarder, its helper, mount, and who keeps them"
    (place / "--data" / "seen").write_text("bytes")
    place.folder("--mnt")
    run(*command(place, "mount"), "--", "--mnt", cwd=place.path)
    assert (place.state / "mnt/seen").read_text() == (place / "--mnt" / "seen").read_text() == "bytes"
    run(*command(place, "down"))
    assert not mounted(place / "--mnt")
    nothing_left(place)


def test_a_name_that_is_no_text_is_refused(place):
    name = os.fsencode(place.path) + b"/\xff"
    os.mkdir(name)
    for words in (("up", name), ("up", place / "data", "--trace", name), ("up", place / "data", "--mount", name)):
        done = subprocess.run([TIDEGATE, *words, "--state-dir", place.state], capture_output=True, timeout=60, check=False)
        assert done.returncode == 2 and b"this name is none (UTF-8)" in done.stderr, done
    nothing_left(place)


def test_killed_while_it_starts(place):
    for pause in (0.05, 0.2, 0.5):
        up = place.start(*command(place, "up", place / "data", "--forwarders", 8, "--foreground"))
        time.sleep(pause)
        kill(up)
        run(*command(place, "down"), code=None)
        nothing_left(place, f"{HIDDEN}|{DRAFT}")


def test_who_has_the_lock_is_told(place):
    up = place.start(*command(place, "up", place / "data", "--forwarders", 8, "--foreground"))
    until(lambda: (place.state / "lock").exists() and (place.state / "lock").read_text(), "it takes no lock")
    assert f"process {up.pid} (`tidegate up {place / 'data'}`)" in (place.state / "lock").read_text()
    up.send_signal(signal.SIGTERM)
    up.wait(60)
    assert not alive(up.pid)
    nothing_left(place, f"{HIDDEN}|{DRAFT}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes mount namespaces here")
def test_a_set_of_a_container_is_none_of_ours(place):
    place.folder("run").chmod(0o700)
    script = f'mount -t tmpfs -o mode=700 none {place.state} && exec "$@"'
    run("unshare", "-m", "sh", "-c", script, "sh", *command(place, "up", place / "data", "--forwarders", 1))
    theirs = serving(place.state)
    assert theirs
    try:
        run(*command(place, "up", place / "other", "--forwarders", 1))
        run(*command(place, "down"))
        assert serving(place.state) == theirs
    finally:
        for pid in theirs:
            os.kill(pid, signal.SIGTERM)
    nothing_left(place)


def test_a_dead_mount_is_named_and_mended(place):
    mount = place.state / "mnt"
    run(*command(place, "up", place / "data", "--forwarders", 2))
    pid = int((place.state / "mount.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), "the mount does not end")
    for words, code in (("run", 1), ("stat", 0)):
        words = [*command(place, words), *(["--", "true"] if words == "run" else [])]
        done = run(*words, code=code)
        assert f"the mount {mount} is dead" in done.stdout + done.stderr
        assert f"`tidegate mount {mount}`" in done.stdout + done.stderr
    assert "is dead" in run(*command(place, "stat", "--check"), code=1).stdout
    said = run(*command(place, "mount", mount)).stderr
    assert said == f"tidegate: the mount {mount} was dead, its process is gone: took it away\n"
    (place / "data" / "seen").write_text("bytes")
    assert (mount / "seen").read_text() == "bytes"
    run(*command(place, "stat", "--check"))
    run(*command(place, "down"))
    nothing_left(place)


def test_a_dead_set_is_named_and_replaced(place):
    up = place.start(*command(place, "up", place / "data", "--forwarders", 2, "--foreground"))
    until(lambda: mounted(place.state / "mnt"), "it does not mount")
    until(lambda: run(*command(place, "stat"), code=None).returncode == 0, "no forwarder answers")
    kill(up)
    for pid in serving(place.state):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not serving(place.state), "they do not end")
    said = run(*command(place, "stat"), code=2).stderr
    assert f"`tidegate down --state-dir {place.state}` clears what they left" in said, said
    said = run(*command(place, "up", place / "other", "--forwarders", 1)).stderr
    assert said == f"tidegate: the mount {place.state / 'mnt'} was dead, its process is gone: took it away\n"
    (place / "other" / "seen").write_text("bytes")
    assert (place.state / "mnt/seen").read_text() == "bytes"
    run(*command(place, "down"))
    nothing_left(place)


def test_nested_exports_are_refused(place):
    inner, mount = place.folder("data/inner"), place.state / "mnt"
    other = ["--no-mount", "--state-dir", place / "run2"]
    run(*command(place, "up", place / "data", "--forwarders", 1))
    said = run(TIDEGATE, "up", inner, *other, code=2).stderr
    assert f"{inner} lies in {place / 'data'}, which other forwarders serve" in said, said
    for directory in (mount, mount / "inner"):
        said = run(TIDEGATE, "up", directory, *other, code=2).stderr
        assert f"{directory} lies in a mount of forwarders, {mount}" in said, said
    said = run(TIDEGATE, "up", place.path, *other, code=2).stderr
    assert f"{place / 'data'} in {place.path} is served by other forwarders" in said, said
    run(*command(place, "down"))
    # What nobody serves any more stands in nobody's way.
    run(TIDEGATE, "up", inner, "--forwarders", 1, *other)
    run(TIDEGATE, "down", *other[1:])


def test_a_forwarder_that_dies_is_started_again(forwarders):
    with forwarders(2, restarts=True) as up:
        first = up.pid(0)
        (up.mount / "before").write_text("bytes")
        os.kill(first, signal.SIGKILL)
        until(lambda: up.pid(0) != first and alive(up.pid(0)), "it stays dead")
        until(lambda: up.tidegate("stat", "--check", code=None).returncode == 0, "it does not serve its seat")
        assert (up.mount / "before").read_text() == "bytes"
        said = up.tidegate("stat").stdout
        assert "forwarder 0 died (signal: 9 (SIGKILL)) and was started again, once, " in said, said
        assert [state.get("restarts", 0) for state in up.states()] == [1, 0]
        # Who is told to end is not started again.
        up.end(1)
        time.sleep(3)
        assert not (up.state / "forwarder.1.pid").exists()


def test_logs_for_programs_are_json(forwarders):
    with forwarders(1, "--log-format", "json") as up:
        other = up / "other"
        mounting = up.mount_at(other, "--state-dir", up.state, "--log-format", "json")
        up.end(0)
        stop(mounting)
        for log in up.state / "forwarder.0.log", up / "mount.log":
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            assert lines and all({"timestamp", "level", "message"} <= line.keys() for line in lines), lines
        [serving] = [line for line in map(json.loads, (up.state / "forwarder.0.log").read_text().splitlines())
                     if line["message"] == "serving"]
        assert serving["level"] == "INFO" and serving["forwarder"] == 0 and serving["policy"] == "fifo", serving


def test_a_program_that_was_replaced_is_started_again_as_it_is_now(forwarders, work):
    """As an upgrade does: another file is at the place of the one that runs."""
    with work.part() as part:
        program = part / "tidegate"
        shutil.copy(TIDEGATE, program)
        with forwarders(1, restarts=True, program=program) as up:
            shutil.copy(TIDEGATE, part / "new")
            (part / "new").rename(program)
            first = up.pid(0)
            os.kill(first, signal.SIGKILL)
            until(lambda: up.pid(0) != first and alive(up.pid(0)), lambda: (up / "up.err").read_text())
            until(lambda: up.tidegate("stat", "--check", code=None).returncode == 0, "it does not serve its seat")


def test_a_forwarder_that_refuses_to_start_again_is_told(forwarders):
    with forwarders(2, restarts=True) as up:
        config = up.state / "forwarder.0.toml"
        right = config.read_text()
        config.write_text("nonsense = 1\n")
        os.kill(up.pid(0), signal.SIGKILL)
        wanted = "forwarder 0 died (exit status: 2: "
        until(lambda: wanted in up.tidegate("stat").stdout, "stat does not tell it")
        said = [line for line in up.tidegate("stat").stdout.splitlines() if wanted in line][0]
        assert "nonsense" in said and said.endswith("and will be started again"), said
        assert "nonsense" in up.states()[0]["died"]
        assert "nonsense" in (up / "up.err").read_text()
        config.write_text(right)
        until(lambda: up.tidegate("stat", "--check", code=None).returncode == 0, "it is not started again", 90)
        assert "died" not in up.states()[0]
        config.write_text("nonsense = 1\n")
        os.kill(up.pid(0), signal.SIGKILL)
        until(lambda: "died" in up.states()[0] and "nonsense" in up.states()[0]["died"], "stat does not tell it")
        said = run(TIDEGATE, "down", "--state-dir", up.state).stderr
        assert "forwarder 0 did not run any more: it died (exit status: 2: " in said and "nonsense" in said, said
        up.up.wait(60)


@pytest.fixture
def small(place):
    """A small file system."""
    if os.geteuid():
        pytest.skip("only root can mount a small file system")
    run("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place / "data")
    yield place / "data"
    run("umount", "-l", place / "data")


def test_tables_take_little_room(place, small):
    run(*command(place, "up", small, "--forwarders", 4, "--no-mount"))
    used = sum(path.stat().st_blocks for path in (small / ".tidegate").iterdir()) * 512
    assert used < 6 << 20
    run(*command(place, "down"))


def test_no_room_for_the_tables_is_told(place, small):
    (small / "fill").write_bytes(b"x" * (6 << 20))
    said = run(*command(place, "up", small, "--forwarders", 4, "--no-mount"), code=1).stderr
    assert "no room for the reply table" in said and "already served" not in said, said
    nothing_left(place)


def test_stat_does_not_count_itself(place):
    run(*command(place, "up", place / "data", "--forwarders", 2, "--no-mount"))
    states = json.loads(run(*command(place, "stat", "--json")).stdout)
    assert [state["sessions"] for state in states] == [[], []]
    lines = run(*command(place, "stat")).stdout.splitlines()[1:3]
    assert [line.split()[4] for line in lines] == ["0", "0"], lines
    run(*command(place, "down"))


def test_jobs_of_a_batch_system(place):
    runtime = place.folder("runtime")
    runtime.chmod(0o700)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
    environment |= {"XDG_RUNTIME_DIR": str(runtime)}
    jobs = [{}, {"SLURM_JOB_ID": "17"}, {"SLURM_JOB_ID": "18", "SLURM_STEP_ID": "0"}, {"PBS_JOBID": "17[2].head"}]
    jobs = [environment | job for job in jobs]
    folders = []
    try:
        for number, job in enumerate(jobs):
            data = place.folder(f"data.{number}")
            said = run(TIDEGATE, "up", data, "--forwarders", 1, env=job).stdout
            folders.append(said.split("--state-dir ")[-1].split()[0])
        assert len(set(folders)) == len(jobs), folders
        assert folders[0] == f"{runtime}/tidegate" and folders[1] == f"{runtime}/tidegate-slurm-17"
        run(TIDEGATE, "run", "--app", "named", "true", env=jobs[1])
        run(TIDEGATE, "down", env=jobs[1])
        assert not os.path.exists(folders[1]), "the job has left its folder"
        assert "nothing is up in" in run(TIDEGATE, "down", env=jobs[1], code=2).stderr
        for job in (jobs[0], *jobs[2:]):
            run(TIDEGATE, "stat", "--check", env=job)
    finally:
        for job in jobs:
            run(TIDEGATE, "down", env=job, code=None)
    assert not any(serving(folder) for folder in folders)
    assert [os.path.exists(folder) for folder in folders] == [True, False, False, False]


def test_a_full_state_directory(place):
    """Nothing is left of the try."""
    if os.geteuid():
        pytest.skip("only root can mount a small file system")
    place.folder("run").chmod(0o700)
    run("mount", "-t", "tmpfs", "-o", "size=128k,mode=700", "tmpfs", place.state)
    try:
        for free in range(0, 8, 2):
            (place.state / "fill").write_bytes(bytes(4096) * (31 - free))
            up = run(*command(place, "up", place / "data", "--forwarders", 1, "--no-mount"), code=1)
            assert f"state directory {place.state}: no room: " in up.stderr, up.stderr
            assert "nothing is up in" in run(*command(place, "down"), code=2).stderr
            nothing_left(place)
        (place.state / "fill").unlink()
        run(*command(place, "up", place / "data", "--forwarders", 1, "--no-mount"))
        run(*command(place, "down"))
        nothing_left(place)
    finally:
        run("umount", "-l", place.state)
