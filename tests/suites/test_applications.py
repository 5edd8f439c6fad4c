"""Applications and their own tests give the results of a plain directory: on the mount, and with the
short-cut and the MPI shim. A case is a script of tests/applications; exit code 77: what it needs is missing."""
import subprocess

import pytest
from conftest import LONG, REPO, TIDEGATE, need_fuse
from ranks import ways

CASES = sorted(path.stem for path in (REPO / "tests/applications").glob("*.sh"))
QUICK = ["arrays", "lmdb", "mpi4py-openmpi", "pnetcdf", "redis"]


@pytest.fixture(scope="module")
def up(forwarders):
    need_fuse()
    with forwarders(4) as up:
        yield up


@pytest.mark.parametrize("way", ways("shim", "mount shim"))
@pytest.mark.parametrize("case", CASES if LONG else QUICK)
def test_as_on_a_plain_directory(up, case, way):
    folder = f"{case}.{way}"
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
