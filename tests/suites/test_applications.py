"""Applications and their own tests give the results of a plain directory: on the mount, and with the
short-cut and the MPI shim; databases also while forwarders are killed. A case is a script of
tests/applications; exit code 77: what it needs is missing."""
import itertools
import os
import signal
import subprocess
import threading

import pytest
from conftest import LONG, REPO, TIDEGATE, alive, need_fuse
from ranks import ways

CASES = sorted(path.stem for path in (REPO / "tests/applications").glob("*.sh"))
QUICK = ["arrays", "lmdb", "mpi4py-openmpi", "pnetcdf", "redis"]


@pytest.fixture(scope="module")
def up(forwarders):
    need_fuse()
    with forwarders(4) as up:
        yield up


def compare(up, case, way, folder):
    """Runs a case in folders of its own, and is content with no difference alone."""
    for place in (up.plain, up.mount):
        (place / folder).mkdir()
    words = ["--run", f"{TIDEGATE} run --state-dir {up.state} --"] if way == "shim" else []
    done = subprocess.run(
        [REPO / "tests/programs/compare", "--cases", REPO / "tests/applications", "--backend", up.data / folder,
         *words, up.plain / folder, up.mount / folder, case], check=False, stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    if f"SKIP {case}" in done.stdout:
        pytest.skip(done.stdout.splitlines()[1].strip())
    assert done.returncode == 0


@pytest.mark.parametrize("way", ways("shim", "mount shim"))
@pytest.mark.parametrize("case", CASES if LONG else QUICK)
def test_as_on_a_plain_directory(up, case, way):
    compare(up, case, way, f"{case}.{way}")


@pytest.mark.long
@pytest.mark.parametrize("case, way", [("postgresql", "mount"), ("redis", "shim"), ("rocksdb", "mount"), ("duckdb", "mount")])
def test_forwarders_are_killed_meanwhile(forwarders, case, way):
    need_fuse()
    with forwarders(4, restarts=True) as up:
        over, killed = threading.Event(), []

        def kill():
            """One after the other, and none so often that it is not started again."""
            for _ in range(20):
                if over.wait(8):
                    break
                pid = up.pid(len(killed) % 4)
                if pid and alive(pid):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            # However fast it is, it meets two that are killed: by then it has begun at least once more.
            for turn in itertools.count():
                compare(up, case, way, f"{case}.{way}.{turn}")
                if len(killed) > 1 or not killer.is_alive():
                    break
        finally:
            over.set()
            killer.join()
        assert len(set(killed)) == len(killed) > 1, killed
