"""The loads of examples/mpi over four forwarders: each verifies what it reads, and leaves the files that it
leaves on a plain directory; on the mount, with the short-cut and with the MPI shim."""
import shutil

import pytest
from conftest import LONG, REPO, run
from ranks import Mpi, started, ways

LOADS = ["tile --rows 300 --columns 200", "noncontig --independent", "strided --how split",
         "checkpoint --strided --collective", "planes --create --queries 4"]
if LONG:
    LOADS += ["tile --independent", "noncontig --block 40", "noncontig --file-contiguous",
              "noncontig --memory-contiguous", "strided", "strided --how pointer", "strided --how nonblocking",
              "checkpoint", "checkpoint --separate", "planes --create --queries 4 --lead 100 --aggregators {ranks}",
              "btio --points 20"]
# Loads a library after those that the environment names already, into the ranks alone.
BEHIND = """#!/bin/sh
LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}$1; shift
export LD_PRELOAD
exec "$@"
"""


@pytest.fixture(scope="module", params=["mpich", "openmpi"] if LONG else ["mpich"])
def mpi(request, work):
    """A family with its loads, which compile without a warning."""
    mpi = Mpi(request.param, work)
    mpi.loads = work / f"loads-{mpi.name}"
    mpi.make(REPO / "examples/mpi", mpi.loads)
    mpi.behind = work.file("behind", BEHIND, 0o755), mpi.loads / "interconnect.so"
    return mpi


@pytest.fixture(scope="module")
def up(mpi, forwarders):
    with forwarders(4) as up:
        yield up


def verified(mpi, up, way, folder, ranks, name, *options):
    """A load is run in the folder, and has verified what it read."""
    folder.mkdir()
    # Ranks that wait sleep: the same calls, without taking the processors from the forwarders.
    said = mpi.run(ranks, *mpi.behind, mpi.loads / name, *options, "file", before=started(up, way), cwd=folder,
                   timeout=120).stdout
    assert "verified" in said, said


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("ranks", [1, 2, 4] if LONG else [2])
def test_load(mpi, up, ranks, load):
    # Open MPI 4.1 with romio321 crashes in nonblocking calls, on any directory; btio wants a square.
    if "nonblocking" in load and mpi.name == "openmpi" or "btio" in load and ranks == 2:
        return
    words = load.format(ranks=ranks).split()
    verified(mpi, up, "plain", up.plain / "loads", ranks, *words)
    for way in ways("mount shim", "mount shortcut shim-mount shim"):
        print(way, end=" ", flush=True)
        verified(mpi, up, way, up.mount / "loads", ranks, *words)
        run("diff", "-r", up.plain / "loads", up.mount / "loads")
        shutil.rmtree(up.mount / "loads")
    shutil.rmtree(up.plain / "loads")


@pytest.mark.parametrize("load, told", [
    ("tile --wrong file", "no such option"), ("planes", "a file is missing"), ("btio --points many file", "not a number"),
    ("planes --planes 1 --rows 1 --columns 1 {wrong}", "WRONG")])
def test_mistake(mpi, work, load, told):
    name, *words = load.format(wrong=work.file("wrong", "1234567\n")).split()
    done = run(mpi.loads / name, *words, code=None)
    assert done.returncode != 0 and told in done.stdout + done.stderr
