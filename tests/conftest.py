"""What end-to-end suites in Python share: a working folder, forwarders over folders in it, their end.

`tests/run NAME` runs test_NAME.py in tests/suites by pytest and gives it TIDEGATE, MODE and WORK, as it
does for suites in bash. A suite takes forwarders from the fixture `forwarders`:

    def test_it(forwarders):
        with forwarders(2, "--device", "hdd-7200") as up:
            up.tidegate("share", "set", "job", "weight=8")

Every wait has a bound. Whatever happens, processes that a suite started end with it, and no others.
"""
import base64
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import pytest

REPO = pathlib.Path(__file__).resolve().parent.parent
LONG = os.environ.get("MODE", "quick") == "long"
TIDEGATE = pathlib.Path(os.environ.get("TIDEGATE") or pathlib.Path(
    os.environ.get("CARGO_TARGET_DIR") or REPO / "target", "release/tidegate"))
# As for tests/run: it ends what hangs, and must not end what is slow.
WAIT_S = 30
FORK = multiprocessing.get_context("fork")
# What is said of a process that ends in one of these folders is shown when a test fails.
LOGS = ("*.log", "*.err", "run/*.log")


def until(condition, what, seconds=WAIT_S, pause=0.05):
    """The first true value of `condition`, which is asked again and again; fails after so long."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            pytest.fail(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(pause)


def process_field(pid, number):
    """A field of /proc/PID/stat by its number there, or None. Field 3 is the state, 22 the start."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(") ")[2].split()[number - 3]


def alive(pid):
    """Whether the process is neither gone nor a zombie."""
    return process_field(pid, 3) not in (None, "Z")


def serving(state):
    """The processes of forwarders, mounts and sets whose arguments name a state directory."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"/tidegate") and any(os.fsencode(state) in word for word in words[1:]):
            found.append(int(process.name))
    return found


def mounted(folder, pid="self"):
    """Whether a FUSE file system is mounted there, as that process sees it."""
    return f" {folder} fuse" in pathlib.Path(f"/proc/{pid}/mounts").read_text()


def free_port():
    """A TCP port of 127.0.0.1 that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def need_fuse():
    """Skips the test where a mount is impossible."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no right to open /dev/fuse")
    if not shutil.which("fusermount3"):
        pytest.skip("fusermount3 is missing: run tools/need test")


def matches(pattern, text):
    """Whether a line of the text contains the pattern; `^` and `$` are a line's ends."""
    return re.search(pattern, text, re.MULTILINE)


class Work:
    """A folder, and the processes that end with it."""

    live = []  # all of them, for their logs

    def __init__(self, path):
        self.path, self.parts = pathlib.Path(path), 0
        self.live.append(self)

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        self.live.remove(self)
        if failed:
            print(self.logs())
        self.clean()
        run("rm", "-rf", "--one-file-system", self.path)

    def __truediv__(self, name):
        return self.path / name

    def folder(self, name=None):
        """A new folder."""
        self.parts += 1
        path = self.path / (name or str(self.parts))
        path.mkdir()
        return path

    def part(self):
        """A folder of its own, as a context."""
        return Work(self.folder())

    def file(self, name, content, mode=0o644):
        """A file in the folder."""
        path = self.path / name
        path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
        path.chmod(mode)
        return path

    def secret(self, name="secret"):
        """A file with a new secret."""
        return self.file(name, base64.b64encode(os.urandom(32)), 0o600)

    def toml(self, name, **keys):
        """A configuration."""
        lines = (f"{key} = {json.dumps(value, default=str)}\n" for key, value in keys.items())
        return self.file(name, "".join(lines))

    def remember(self, process):
        """That process is ended with the folder, also where the suite itself is killed."""
        with open(self / "pids", "a") as pids:
            pids.write(f"{process.pid} {process_field(process.pid, 22)}\n")
        return process

    def start(self, *words, log=os.devnull, **options):
        """Starts a program in the background; its output goes to the end of the file `log`."""
        with open(log, "ab") as output:
            options = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output} | options
            return self.remember(subprocess.Popen([str(word) for word in words], **options))

    def fork(self, call, *arguments):
        """Calls a function in a process of its own, which a mount that hangs may hold."""
        process = FORK.Process(target=call, args=arguments, daemon=True)
        process.start()
        return self.remember(process)

    def serve(self, config, log, program=TIDEGATE, within=(), **options):
        """Starts one forwarder, and waits until it serves."""
        begin = os.path.getsize(log) if os.path.exists(log) else 0
        process = self.start(*within, program, "serve", "--config", config, log=log, **options)
        return ready(process, log, lambda: b"serving" in pathlib.Path(log).read_bytes()[begin:])

    def mount_at(self, mount, *options, program=TIDEGATE, within=()):
        """Mounts in the foreground, and waits for the mount."""
        mount.mkdir(exist_ok=True)
        log = self / "mount.log"
        process = self.start(*within, program, "mount", mount, "--foreground", *options, log=log)
        return ready(process, log, lambda: mounted(mount, process.pid))

    def as_user(self, user, home):
        """Words before a command in a namespace where an ordinary user may mount, and words there before
        one of his: the device of FUSE may be root's alone, and fusermount3 wants to know the user's name.
        The folder `home`, which he can reach, gets the programs of tidegate. Only root can do that."""
        if os.geteuid() != 0:
            pytest.skip("only root can start the processes of another user")
        for folder in (self.path, self.path.parent):
            folder.chmod(0o711)
        for name in ("tidegate", "libtidegate_preload.so"):
            shutil.copy(TIDEGATE.parent / name, home)
        names = pathlib.Path("/etc/passwd").read_text() + f"tidegate-test:x:{user}:{user}::/:/bin/sh\n"
        (home / "passwd").write_text(names)
        mounter = "mknod $0 c 10 229 && chmod 666 $0 && mount --bind $0 /dev/fuse && " \
                  "mount --bind $1 /etc/passwd && exec sleep 9999"
        holder = self.start("unshare", "--mount", "sh", "-c", mounter, home / "fuse", home / "passwd")
        until(lambda: pathlib.Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n", "no namespace of mounts")
        inside = ("nsenter", "--target", holder.pid, "--mount")
        return inside, ("setpriv", "--reuid", user, "--regid", user, "--clear-groups")

    def logs(self):
        """The ends of all logs in the folder."""
        found = sorted({path for pattern in LOGS for path in self.path.glob(pattern) if path.stat().st_size})
        return "".join(f"---- the end of {path.relative_to(self.path)}\n{tail(path)}\n" for path in found)

    def clean(self):
        """Ends the processes and takes the mounts away, as tests/run does for every suite."""
        subprocess.run(["bash", "-c", '. tests/lib.sh; trap - EXIT; clean_work "$WORK"'], cwd=REPO,
                       env=os.environ | {"WORK": str(self.path)}, check=False)


def ready(process, log, condition):
    """Waits until a program in the background is ready."""
    def holds():
        # Its last words first: who sees one line of this sees them.
        assert process.poll() is None, f"ended: {tail(log, 1)}: {process.args}:\n{tail(log)}"
        return condition()
    until(holds, f"{process.args} is not ready")
    return process


def stop(process):
    """Ends a process with SIGTERM; it exits with 0."""
    process.terminate()
    try:
        code = process.wait(WAIT_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"no end within {WAIT_S} s of SIGTERM: {process.args}")
    assert code == 0, f"after SIGTERM: exit code {code} of {process.args}"


def kill(*processes):
    """Ends processes of which nothing is expected any more."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait(WAIT_S)


def run(*words, code=0, timeout=90, **options):
    """Runs a program to its end: its `stdout`, `stderr` and `returncode`. It exits with `code`, or with
    any if that is None."""
    words = [str(word) for word in words]
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True} | options
    done = subprocess.run(words, timeout=timeout, check=False, **options)
    assert code in (None, done.returncode), \
        f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def tidegate(*words, program=TIDEGATE, within=(), **options):
    """Runs a command of `tidegate` to its end; `within` are words before it, as those of nsenter."""
    return run(*within, program, *words, **options)


class Forwarder:
    """One `tidegate serve` with these keys as its configuration."""

    def __init__(self, work, name, program=TIDEGATE, within=(), **keys):
        self.work, self.options = work, {"program": program, "within": within}
        self.config, self.log = work.toml(f"{name}.toml", **keys), work / f"{name}.log"
        self.start()

    def start(self):
        self.log.unlink(missing_ok=True)
        self.process = self.work.serve(self.config, self.log, **self.options)

    def stop(self):
        stop(self.process)


class Forwarders(Work):
    """`tidegate up` over a folder of its own. REACTORS in the environment gives each forwarder that
    many threads for connections."""

    def __init__(self, path, count, *options, data=None, program=TIDEGATE, restarts=False):
        need_fuse()
        super().__init__(path)
        self.plain, self.mount, self.state = (self / name for name in ("plain", "mnt", "run"))
        self.data, self.program = data or self / "data", program
        self.environment = os.environ | {"TIDEGATE_STATE_DIR": str(self.state)}
        for folder in (self.plain, self.data, self.mount, self.state):
            folder.mkdir(exist_ok=True)
        self.state.chmod(0o700)
        self.restarted, self.leaving = [], threading.Event()
        reactors = os.environ.get("REACTORS")
        with open(self / "up.out", "wb") as output:
            self.up = self.start(
                program, "up", self.data, "--forwarders", count, "--mount", self.mount,
                "--state-dir", self.state, "--foreground", *([] if restarts else ["--no-restart"]),
                *(["--reactors", reactors] if reactors else []), *options, stdout=output, log=self / "up.err")
        try:
            ready(self.up, self / "up.err", lambda: "ready" in (self / "up.out").read_text().splitlines())
            assert mounted(self.mount), f"tidegate up is ready, and nothing is mounted at {self.mount}"
        except BaseException:
            self.__exit__(True)
            raise

    def __exit__(self, failed, *_):
        self.leaving.set()
        try:
            if not failed:
                self.down()
        except BaseException:
            failed = True
            raise
        finally:
            super().__exit__(failed)

    def down(self):
        """Ends the forwarders, which leave nothing behind."""
        if self.up.returncode is None:  # else a test has seen its end
            stop(self.up)
        assert not mounted(self.mount), "something is mounted after the end"
        for process in self.restarted:
            stop(process)

    def tidegate(self, *words, env=None, **options):
        """A command for these forwarders, with more in its environment."""
        return tidegate(*words, env=self.environment | (env or {}), program=self.program, **options)

    def begin(self, *words, **options):
        """A command for these forwarders, in the background."""
        return self.start(self.program, *words, env=self.environment, **options)

    def json(self, *words, **options):
        """What such a command says as JSON."""
        return json.loads(self.tidegate(*words, "--json", **options).stdout)

    def states(self):
        """What `stat` says of each forwarder."""
        return self.json("stat")

    def answered(self):
        """How many requests each forwarder has answered; 0 for a dead one."""
        return [state.get("requests", {}).get("answered", 0) for state in self.states()]

    def pid(self, index):
        """The process id of a forwarder, or None."""
        try:
            return int((self.state / f"forwarder.{index}.pid").read_text())
        except (OSError, ValueError):
            return None

    def end(self, index):
        """Ends a forwarder with SIGTERM."""
        pid = self.pid(index)
        os.kill(pid, signal.SIGTERM)
        until(lambda: not alive(pid), f"forwarder {index} does not end by SIGTERM")

    def restart(self, index):
        """Starts a forwarder that has ended."""
        self.restarted.append(self.serve(self.state / f"forwarder.{index}.toml", self / "restart.log",
                                         program=self.program))

    def restart_when_dead(self, index):
        """Waits in the background for a forwarder to die, and serves again 2 s later. The thread that
        is returned ends then."""
        first = self.pid(index)

        def serve_again():
            while alive(first):
                if self.leaving.wait(0.02):
                    return
            if not self.leaving.wait(2):
                self.restart(index)
        thread = threading.Thread(target=serve_again)
        thread.start()
        return thread

    def compare(self, name, *words):
        """The program cases do the same on the mount as in a plain folder."""
        compare(self.plain, self.mount, self.data, name, *words)


def compare(plain, mount, data, name, *words):
    """The program cases do the same in the folder `name` of a mount as in that of a plain folder."""
    for folder in (plain, mount):
        (folder / name).mkdir(parents=True, exist_ok=True)
    subprocess.run([REPO / "tests/programs/compare", "--backend", data / name, "--name", f"{name}/",
                    plain / name, mount / name, *words], check=True)


def tail(path, lines=15):
    return "\n".join(pathlib.Path(path).read_text(errors="replace").splitlines()[-lines:])


@pytest.fixture(scope="session")
def work():
    """The suite's folder."""
    folder = os.environ.get("TIDEGATE_TEST_DIR", "/var/tmp")
    with Work(os.environ.get("WORK") or tempfile.mkdtemp(prefix="tidegate.", dir=folder)) as work:
        yield work


@pytest.fixture(scope="session")
def forwarders(work):
    """Starts forwarders: `with forwarders(COUNT, OPTION...) as up`, a Forwarders."""
    assert TIDEGATE.exists(), f"{TIDEGATE} is missing: cargo build --release -p tidegate-cli"
    return lambda *words, **options: Forwarders(work.folder(), *words, **options)


def pytest_configure():
    # `timeout` and tests/run end a suite with SIGTERM: it ends as by Ctrl-C, with its fixtures.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    # Tests marked `long` are of the long form alone.
    items[:] = [item for item in items if LONG or not item.get_closest_marker("long")]


SKIPPED = []


def pytest_runtest_logreport(report):
    if report.failed:
        # The test's own are told and gone by now; these are of fixtures for several tests.
        print(*(work.logs() for work in Work.live))
    if report.skipped:
        SKIPPED.append(report.longrepr[2].removeprefix("Skipped: "))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    # A suite that left something out says so to tests/run, which makes a failure of it under CI=true.
    if exitstatus == 0 and SKIPPED:
        session.exitstatus = 77


def pytest_unconfigure():
    if SKIPPED:
        print(f"SKIP: {SKIPPED[-1]}")
