"""`tidegate run` and its program: the exit code, signals, the terminal, children, and the mount of a run's own."""
import contextlib
import os
import pathlib
import pty
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time

import pytest
from conftest import alive, mounted, run, until
from runs import numbers, told


@pytest.fixture(scope="module")
def up(forwarders):
    with forwarders(2) as up:
        yield up


def test_the_end_is_the_programs(up):
    assert told(up, "sh", "-c", "exit 7", cwd=up.data, code=7, options=()) == []
    assert told(up, "sh", "-c", "kill -9 $$", cwd=up.data, code=-signal.SIGKILL, options=()) == []
    assert told(up, "sh", "-c", "kill -ABRT $$", cwd=up.data, code=-signal.SIGABRT, options=()) == []
    assert up.tidegate("run", "--", "/nowhere/at/all", cwd=up.data, code=127).stdout == ""


def test_signals_are_the_programs(up):
    script = "import os, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); " \
             "print(os.getpid(), flush=True); time.sleep(60)"
    for end in (signal.SIGTERM, signal.SIGKILL):
        output = up / f"pid.{end}"
        with open(output, "wb") as file:
            process = up.start(up.program, "run", "--", sys.executable, "-c", script, env=up.environment, cwd=up.data,
                               stdout=file)
        pid = int(until(lambda: output.read_text().strip(), "the program does not begin"))
        process.send_signal(end)
        assert process.wait(30) == (9 if end == signal.SIGTERM else -end)
        until(lambda: not alive(pid), "the program goes on")


# Says each signal that it gets, and ends by SIGTERM.
SIGNALLED = """
import os, signal
ours, its = os.pipe()
os.set_blocking(its, False)
for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM): signal.signal(number, lambda *_: None)
# Handlers of Python's may run once for two signals.
signal.set_wakeup_fd(its)
os.write(1, b"ready ")
while (number := os.read(ours, 1)[0]) != signal.SIGTERM: os.write(1, b"%d " % number)
"""


def signalled(up, name, *sends, stdin=None):
    """What the program has got of the signals that each of `sends` sends to `run`, given its process."""
    output = up / f"signals.{name}"
    with open(output, "wb") as file:
        process = up.start(up.program, "run", "--", sys.executable, "-c", SIGNALLED, env=up.environment, cwd=up.data,
                           stdout=file, stdin=stdin, start_new_session=True)
    for count, send in enumerate(sends, 1):
        until(lambda count=count: len(output.read_text().split()) >= count, f"signal {count} does not reach it")
        send(process)
    until(lambda: len(output.read_text().split()) > len(sends), "the last signal does not reach it")
    # `run` takes its signals in the order of their numbers, and this one is the last.
    process.terminate()
    assert process.wait(30) == 0
    return [int(it) for it in output.read_text().split()[1:]]


def test_a_signal_to_the_process_group_comes_once(up):
    def to_group(process):
        os.killpg(process.pid, signal.SIGUSR1)
    for i in range(3):
        assert signalled(up, f"group{i}", to_group, to_group) == [signal.SIGUSR1] * 2


def test_a_signal_to_run_alone_reaches_the_program_also_at_a_terminal(up):
    def interrupt(process):
        process.send_signal(signal.SIGINT)
    assert signalled(up, "alone", interrupt, interrupt) == [signal.SIGINT] * 2
    control, terminal = pty.openpty()
    try:
        assert signalled(up, "terminal", interrupt, stdin=terminal) == [signal.SIGINT]
    finally:
        os.close(control)
        os.close(terminal)


@pytest.fixture(scope="module", params=["the set's mount", "a mount of its own"])
def either(request, up):
    """How a run starts that is exec'ed in its place, and how one does that stays as a parent: words, environment and
    working directory."""
    if request.param == "the set's mount":
        yield [up.program, "run", "--"], up.environment, up.data
        return
    data, state = up.folder("own"), up.folder("own.run")
    state.chmod(0o700)
    up.tidegate("up", data, "--forwarders", 1, "--no-mount", "--state-dir", state)
    try:
        yield [up.program, "run", "--state-dir", state, "--"], up.environment, data
    finally:
        up.tidegate("down", "--state-dir", state)


def begin(up, either, name, *words, **options):
    """Starts a run in a session of its own; its process, and the file that its program writes to."""
    start, environment, cwd = either
    output = up.file(name, "")
    with open(output, "wb") as file:
        options = {"stdout": file, "start_new_session": True} | options
        return up.start(*start, *words, env=environment, cwd=cwd, **options), output


def test_the_signal_mask_is_the_programs(up, either):
    ask = "import signal; print(sorted(map(int, signal.pthread_sigmask(0, ()))), list(signal.sigpending()))"
    masked = {signal.SIGCHLD, signal.SIGTERM, signal.SIGRTMIN + 1}
    process, output = begin(up, either, "mask", sys.executable, "-c", ask,
                            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, masked))
    assert process.wait(30) == 0
    assert output.read_text().strip() == f"{sorted(map(int, masked))} []"


def test_other_signals_are_the_programs(up, either):
    script = "import os, signal, sys; [signal.signal(it, lambda it, _: os.write(1, b' %d' % it)) for it in " \
             "map(int, sys.argv[1:])]; signal.signal(15, lambda *_: sys.exit(9)); os.write(1, b'ready')\n" \
             "while True: signal.pause()"
    numbers = [int(it) for it in (signal.SIGABRT, signal.SIGIO, signal.SIGPWR, signal.SIGRTMIN, signal.SIGRTMAX)]
    process, output = begin(up, either, "others", sys.executable, "-c", script, *map(str, numbers))
    for count, number in enumerate([*numbers, signal.SIGTERM]):
        until(lambda count=count: len(output.read_text().split()) > count, "a signal does not reach it")
        process.send_signal(number)
    assert process.wait(30) == 9
    assert output.read_text().split() == ["ready", *map(str, numbers)]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_program_in_a_group_of_its_own_gets_signals(up, either, end):
    process, output = begin(up, either, f"apart.{end}", "timeout", "100", "sh", "-c", "echo $$; exec sleep 100")
    pid = int(until(lambda: output.read_text().strip(), "the program does not begin"))
    os.killpg(process.pid, end)
    assert process.wait(30) in (124, -end)
    until(lambda: not alive(pid), "the program goes on")


def test_no_signal_is_lost_while_the_program_begins(up, either):
    """Whenever it comes, run and program end by it."""
    for i in range(20):
        process, _ = begin(up, either, "early", "sleep", "100")
        time.sleep(0.01 * i)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM


def test_an_inner_shell_stops_and_goes_on(up, either):
    """As a job of an outer one, at a terminal."""
    start, environment, cwd = either
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe("bash", ["bash", "--norc", "-i"], {**environment, "PS1": "outer> ", "HISTFILE": ""})
    seen = bytearray()

    def says(line, what):
        del seen[:]
        os.write(terminal, line.encode() + b"\n")

        def there():
            if select.select([terminal], [], [], 0)[0]:
                seen.extend(os.read(terminal, 4096))
            return what in seen
        until(there, lambda: f"{what} after {line!r}: {bytes(seen)}")
    try:
        says("echo a$((1+1))", b"a2")
        says(shlex.join(map(str, start)) + " bash --norc -i", b"outer> ")
        says("PS1='in''ner> '", b"inner> ")
        says("suspend", b"Stopped")
        says("echo b$((1+1))", b"b2")
        says("fg", b"bash")
        says("echo c$((1+1))", b"c2")
        says("exit 3", b"exit")
        says("echo d$?", b"d3")
    finally:
        os.kill(pid, signal.SIGHUP)
        os.close(terminal)
        os.waitpid(pid, 0)


def test_the_line_at_the_end_comes_whatever_has_become_of_the_terminal(up):
    """Its reader sees the end of the output with that of the program, and the end of errors after the line."""
    link = up / "line.link"
    link.symlink_to(up.data)
    process = up.start(up.program, "run", "--", "sh", "-c", f"echo a > {link}/f; echo $TIDEGATE_COUNTS; kill -TERM 0",
                       env=up.environment, cwd=up.data, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       start_new_session=True)
    out, err = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM
    assert numbers(err) == (1, 0, 1), err
    watcher = int(out.split("/")[2])
    assert watcher != process.pid
    until(lambda: not alive(watcher), "the process that says it stays")


def test_the_line_at_the_end_is_in_a_file_before_the_end(up):
    link, log = up / "file.link", up / "line.log"
    link.symlink_to(up.data)
    for options, path in ((("--summary",), up.data), ((), link)) * 5:
        with open(log, "w") as file:
            process = up.start(up.program, "run", *options, "--", "sh", "-c", f"echo a > {path}/f", env=up.environment,
                               cwd=up.data, stderr=file)
        assert process.wait(30) == 0
        assert numbers(log.read_text())[0] == 1


@pytest.mark.parametrize("whom, temporary", [("run", None), ("group", None), ("run", ""), ("run", "../killed.temporary")])
def test_a_mount_of_its_own_goes_with_a_run_that_is_killed(up, whom, temporary):
    data, state = up.folder(), up.folder()
    where = up.folder("killed.temporary") if temporary else tempfile.gettempdir() if temporary is None else "/tmp"
    state.chmod(0o700)
    up.tidegate("up", data, "--forwarders", 1, "--no-mount", "--state-dir", state)
    try:
        more = {} if temporary is None else {"TMPDIR": temporary}
        either = [up.program, "run", "--state-dir", state, "--"], up.environment | more, data
        process, output = begin(up, either, "killed.out", "sh", "-c", "echo $TIDEGATE_MOUNT; exec sleep 100")
        mount = until(lambda: output.read_text().strip(), "the program does not begin")
        assert mounted(mount) and os.path.samefile(os.path.dirname(mount), where), mount
        (process.kill if whom == "run" else lambda: os.killpg(process.pid, signal.SIGKILL))()
        assert process.wait(30) == -signal.SIGKILL
        until(lambda: not mounted(mount) and not os.path.lexists(mount), "the mount stays")
    finally:
        up.tidegate("down", "--state-dir", state)


# Waits for all children.
WAITS = """
import os
open("waits", "w").close()
try:
    while True: os.wait()
except ChildProcessError: print("done")
"""


@pytest.mark.parametrize("how", [
    pytest.param(("unshare", "-pf", "--mount-proc", "--kill-child"),
                 marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a process namespace")),
    (sys.executable, "-c", "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1); os.execv(sys.argv[1], sys.argv[1:])"),
], ids=["process 1", "subreaper"])
@pytest.mark.parametrize("options", [(), ("--summary",)])
def test_a_program_that_adopts_orphans_and_waits_for_all(up, how, options):
    process = up.start(*how, up.program, "run", *options, "--", sys.executable, "-c", WAITS, env=up.environment,
                       cwd=up.data, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "done\n"), err
    assert numbers(err) == (1, 1, 0) if options else err == "", err


def test_a_dead_mount_of_a_process_with_the_same_number_is_taken_away(up):
    data, state, temporary = up.folder("stale"), up.folder("stale.run"), up.folder("stale.tmp")
    state.chmod(0o700)
    up.tidegate("up", data, "--forwarders", 1, "--no-mount", "--state-dir", state)
    # The shell's number is that of the run that takes its place.
    run_it = f"exec {up.program} run --state-dir {state} -- printenv TIDEGATE_MOUNT"
    dead = f"mkdir {temporary}/tidegate-run-$$; {up.program} mount --state-dir {state} --pid-file {temporary}/pid " \
           f"{temporary}/tidegate-run-$$; kill -9 $(cat {temporary}/pid); while stat -f {temporary}/tidegate-run-$$; " \
           "do sleep 0.1; done > /dev/null 2>&1"
    mine = f"mkdir {temporary}/tidegate-run-$$; : > {temporary}/tidegate-run-$$/file"
    try:
        for script, more in ((dead, ""), (mine, "-1")):
            done = run("sh", "-c", f"echo $$; {script}; {run_it}", env=up.environment | {"TMPDIR": str(temporary)},
                       cwd=data)
            pid, mount = done.stdout.split()
            assert mount == f"{temporary}/tidegate-run-{pid}{more}" and not os.path.lexists(mount), done
            assert ("was dead" in done.stderr) == (script == dead), done
        assert (temporary / f"tidegate-run-{pid}" / "file").exists()
    finally:
        up.tidegate("down", "--state-dir", state)


@pytest.mark.parametrize("ignored", [(), ("HUP", "PIPE", "CHLD", "USR2")])
def test_ignored_signals_stay_ignored(up, either, ignored):
    """And others are not. 32 and 33 are of the C library alone."""
    ask = "sed -n 's/^SigIgn:\\t*//p' /proc/self/status"
    start, environment, cwd = either
    words = shlex.join(map(str, start))
    def told(before):
        return int(run("sh", "-c", f"trap '' {' '.join(ignored) or 'PIPE; trap - PIPE'}; {before} {ask}", env=environment,
                       cwd=cwd).stdout, 16) & ~(3 << 31)
    assert told(words) == told("")


USER = 54322


def tasks_of(user):
    """How many tasks each process of a user has; his limit counts them all."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == user:
                found[process.name] = len(os.listdir(process / "task"))
    return found


@pytest.fixture(scope="module")
def crowded(up):
    """Forwarders of a user, with a mount or without: `start(mounts, more, program...)` runs a program of his on
    them where he may have so many tasks more than these have."""
    home = up.folder("crowded")
    inside, as_user = up.as_user(USER, home)
    holder = inside[inside.index("--target") + 1]
    states = {}
    for mounts in (True, False):
        data, state, temporary = (up.folder(f"crowded/{name}.{mounts}") for name in ("data", "state", "temporary"))
        for folder in (data, state, temporary):
            os.chown(folder, USER, USER)
        state.chmod(0o700)
        words = () if mounts else ("--no-mount",)
        run(*inside, *as_user, home / "tidegate", "up", data, "--forwarders", 1, "--state-dir", state, *words)
        states[mounts] = (data, state, temporary)

    def start(mounts, more, *words, options=()):
        data, state, temporary = states[mounts]
        until(lambda: set(tasks_of(USER)) == start.processes, lambda: f"{tasks_of(USER)} and not {start.processes}")
        limit = sum(tasks_of(USER).values()) + more
        words = (*inside, "env", "--chdir", data, "prlimit", f"--nproc={limit}:{limit}", *as_user, home / "tidegate",
                 "run", "--state-dir", state, *options, "--", *words)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
        done = run(*words, code=None, env=environment | {"TMPDIR": str(temporary)})
        until(lambda: not os.listdir(temporary), lambda: f"{os.listdir(temporary)} are left of {more}")
        assert str(temporary) not in pathlib.Path(f"/proc/{holder}/mounts").read_text()
        return done
    start.processes = set(tasks_of(USER))
    yield start
    # All of them, whatever becomes of one.
    ends = [run(*inside, *as_user, home / "tidegate", "down", "--state-dir", state, code=None) for _, state, _ in
            states.values()]
    assert [end.stderr for end in ends if end.returncode != 0] == []


@pytest.mark.parametrize("mounts, options", [(True, ()), (True, ("--summary",)), (False, ())])
def test_a_user_who_may_start_no_more_processes(crowded, mounts, options):
    """The program runs and is right, or is refused with the reason. Nothing is left."""
    ends = []
    for more in range(1, 40):
        done = crowded(mounts, more, "sh", "-c", "echo bytes > f; read it < f; echo $it", options=options)
        said = done.stderr.splitlines()
        assert "panicked" not in done.stderr, done.stderr
        if done.returncode == 0:
            assert done.stdout == "bytes\n", done
        else:
            # 126 is that of a program that cannot be started.
            assert done.returncode in (1, 126) and done.stdout == "", done
            assert len(said) == 1 and said[0].startswith("tidegate: "), done.stderr
            assert "Resource temporarily unavailable" in said[0], done.stderr
        ends.append((done.returncode, *said))
        if ends[-3:] == [(0, *(said if options else ()))] * 3:
            break
    print(*dict.fromkeys(ends), sep="\n")
    assert ends[-1][0] == 0, ends[-1]
