"""What end-to-end suites in Python share: a working folder, forwarders over folders in it, their end.

`tests/run NAME` runs test_NAME.py in tests/suites by pytest and gives it TIDEGATE, MODE and WORK, as it
does for suites in bash. A suite takes forwarders from the fixture `forwarders`:

    def test_it(forwarders):
        with forwarders(2, "--device", "hdd-7200") as up:
            up.tidegate("share", "set", "job", "weight=8")

Every wait has a bound. Whatever happens, processes that a suite started end with it, and no others.
"""
import json
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
# What is said of a process that ends in one of these folders is shown when a test fails.
LOGS = ("*.log", "*.err", "*/*.log", "*/*.err", "*/run/*.log")


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


def mounted(folder):
    """Whether a FUSE file system is mounted there."""
    return f" {folder} fuse" in pathlib.Path("/proc/self/mounts").read_text()


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
    """A suite's folder, and the processes that end with the suite."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.folders = 0

    def folder(self):
        """A new folder."""
        self.folders += 1
        path = self.path / str(self.folders)
        path.mkdir()
        return path

    def remember(self, process):
        """That process is ended with the suite, also where the suite itself is killed."""
        with open(self.path / "pids", "a") as pids:
            pids.write(f"{process.pid} {process_field(process.pid, 22)}\n")
        return process

    def start(self, *words, log=os.devnull, **options):
        """Starts a program in the background; its output goes to the end of the file `log`."""
        with open(log, "ab") as output:
            options = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output} | options
            return self.remember(subprocess.Popen([str(word) for word in words], **options))

    def serve(self, config, log, **options):
        """Starts one forwarder, and waits until it serves."""
        begin = os.path.getsize(log) if os.path.exists(log) else 0
        process = self.start(TIDEGATE, "serve", "--config", config, log=log, **options)

        def serves():
            assert process.poll() is None, f"the forwarder of {config} ended:\n{tail(log)}"
            return b"serving" in pathlib.Path(log).read_bytes()[begin:]
        until(serves, f"the forwarder of {config} does not serve")
        return process

    def clean(self):
        """Ends the processes and takes the mounts away, as tests/run does for every suite."""
        subprocess.run(["bash", "-c", '. tests/lib.sh; trap - EXIT; clean_work "$WORK"'], cwd=REPO,
                       env=os.environ | {"WORK": str(self.path)}, check=False)


def stop(process, codes=(0,)):
    """Ends a process with SIGTERM; it exits with one of these codes."""
    process.terminate()
    try:
        code = process.wait(WAIT_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"no end within {WAIT_S} s of SIGTERM: {process.args}")
    assert code in codes, f"after SIGTERM: exit code {code} of {process.args}"


def kill(*processes):
    """Ends processes of which nothing is expected any more."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait(WAIT_S)


def tidegate(*words, code=0, timeout=90, **options):
    """Runs a command of `tidegate` to its end: its `stdout`, `stderr` and `returncode`. It exits with
    `code`, or with any if that is None."""
    words = [str(word) for word in words]
    done = subprocess.run([TIDEGATE, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout, check=False, **options)
    assert code in (None, done.returncode), \
        f"tidegate {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done


class Forwarders:
    """`tidegate up` over a folder of its own. REACTORS in the environment gives each forwarder that
    many threads for connections."""

    def __init__(self, work, count, *options, data=None):
        need_fuse()
        self.work, self.folder = work, work.folder()
        self.plain, self.mount, self.state = (self.folder / name for name in ("plain", "mnt", "run"))
        self.data = data or self.folder / "data"
        for path in (self.plain, self.data, self.mount, self.state):
            path.mkdir(exist_ok=True)
        self.restarted, self.leaving = [], threading.Event()
        reactors = os.environ.get("REACTORS")
        out = self.folder / "up.out"
        with open(out, "wb") as output:
            self.up = work.start(
                TIDEGATE, "up", self.data, "--forwarders", count, "--mount", self.mount,
                "--state-dir", self.state, "--foreground",
                *(["--reactors", reactors] if reactors else []), *options,
                stdout=output, log=self.folder / "up.err")

        def ready():
            assert self.up.poll() is None, f"tidegate up ended:\n{tail(self.folder / 'up.err')}"
            return "ready" in out.read_text().splitlines()
        until(ready, "tidegate up is not ready")
        assert mounted(self.mount), f"tidegate up is ready, and nothing is mounted at {self.mount}"

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        self.leaving.set()
        if failed:
            print(logs(self.folder))
            self.work.clean()
        else:
            self.down()

    def down(self):
        """Ends the forwarders, which leave nothing behind."""
        stop(self.up)
        assert not mounted(self.mount), "something is mounted after the end"
        for process in self.restarted:
            stop(process)
        shutil.rmtree(self.folder)

    @property
    def environment(self):
        return os.environ | {"TIDEGATE_STATE_DIR": str(self.state)}

    def tidegate(self, *words, **options):
        """A command for these forwarders."""
        return tidegate(*words, env=self.environment, **options)

    def start(self, *words, **options):
        """A command for these forwarders, in the background."""
        return self.work.start(TIDEGATE, *words, env=self.environment, **options)

    def states(self):
        """What `stat` says of each forwarder."""
        return json.loads(self.tidegate("stat", "--json").stdout)

    def answered(self):
        """How many requests each forwarder has answered; 0 for a dead one."""
        return [state.get("requests", {}).get("answered", 0) for state in self.states()]

    def pid(self, index):
        """The process id of a forwarder, or None."""
        try:
            return int((self.state / f"forwarder.{index}.pid").read_text())
        except (OSError, ValueError):
            return None

    def restart(self, index):
        """Starts a forwarder that has ended."""
        self.restarted.append(self.work.serve(self.state / f"forwarder.{index}.toml",
                                              self.folder / "restart.log"))

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
        """The program cases do the same on the mount, in its folder `name`, as in a plain one."""
        for folder in (self.plain, self.mount):
            (folder / name).mkdir(parents=True, exist_ok=True)
        subprocess.run([REPO / "tests/programs/compare", "--backend", self.data / name,
                        "--name", f"{name}/", self.plain / name, self.mount / name, *words], check=True)


def tail(path, lines=15):
    return "\n".join(pathlib.Path(path).read_text(errors="replace").splitlines()[-lines:])


def logs(folder):
    """The ends of all logs in a folder."""
    found = sorted({path for pattern in LOGS for path in folder.glob(pattern) if path.stat().st_size})
    return "".join(f"---- the end of {path.relative_to(folder)}\n{tail(path)}\n" for path in found)


@pytest.fixture(scope="session")
def work():
    """The suite's folder."""
    given = os.environ.get("WORK")
    path = given or tempfile.mkdtemp(prefix="tidegate.", dir=os.environ.get("TIDEGATE_TEST_DIR", "/var/tmp"))
    work = Work(path)
    yield work
    work.clean()
    if not given:
        shutil.rmtree(path)


@pytest.fixture(scope="session")
def forwarders(work):
    """Starts forwarders: `with forwarders(COUNT, OPTION...) as up`, a Forwarders."""
    assert TIDEGATE.exists(), f"{TIDEGATE} is missing: cargo build --release -p tidegate-cli"
    return lambda *words, **options: Forwarders(work, *words, **options)


def pytest_configure():
    # `timeout` and tests/run end a suite with SIGTERM: it ends as by Ctrl-C, with its fixtures.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    # Tests marked `long` are of the long form alone.
    items[:] = [item for item in items if LONG or not item.get_closest_marker("long")]


SKIPPED = []


def pytest_runtest_logreport(report):
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
