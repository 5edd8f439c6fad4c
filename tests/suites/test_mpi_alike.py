"""What MPI programs of all kinds see must be the same with the shim and without: which functions the MPI
has, what the info of a file tells, how threads and failing ranks end; with MPICH and Open MPI."""
import pathlib
import re

import pytest
from conftest import LONG, REPO, run, until
from ranks import ROMIO, Mpi

PROGRAMS = REPO / "tests/mpi"
STRICT = "-O1", "-Wall", "-Wextra", "-Werror"
MPI4PY = "mpi4py==4.1.2"
# Without a view: MPICH 4.0 has no memory for types of large counts there.
ROWS = """
import sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
file = MPI.File.Open(comm, sys.argv[1], MPI.MODE_CREATE | MPI.MODE_RDWR)
out, back, at = bytearray([65 + comm.rank]) * 4096, bytearray(4096), 4096 * comm.rank
file.Write_at_all(at, out)
file.Read_at_all(at, back)
file.Iwrite_at_all(at, out).Wait()
file.Close()
assert back == out, "other bytes than were written"
print("all right")
"""


class Site:
    """Two forwarders, and test programs of both families."""

    def __init__(self, up, work):
        self.up, self.work, self.bin = up, work, work.folder("bin")

    def built(self, mpi, name, *flags, out=None):
        """A program of tests/mpi."""
        path = self.bin / f"{out or name}.{mpi.name}"
        if not path.exists():
            run(mpi.compiler, *STRICT, *flags, "-o", path, PROGRAMS / f"{name}.c")
        return path

    def shimmed(self, mpi, ranks, *words, env=None, options=(), **more):
        """What ranks of a program say with the shim."""
        done = self.up.tidegate("run", *options, "--", mpi.launcher, "-n", ranks, *words, env=mpi.environment | (env or {}),
                                **more)
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(work, forwarders):
    with forwarders(2) as up:
        yield Site(up, work)


@pytest.fixture(scope="module", params=["mpich", "openmpi", *(["mpich5", "openmpi5"] if LONG else [])])
def mpi(request, work):
    mpi = Mpi(request.param, work, romio=False)
    mpi.environment |= {"OMPI_MCA_btl": "self,vader", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    return mpi


def names(said):
    return sorted(line for line in said.splitlines() if line.endswith("there"))


# Bound at the start or at the first call; where the linker decides about addresses; in a library.
@pytest.mark.parametrize("how", ["", "-Wl,-z,now", "-fno-pie -no-pie -Wl,-z,now", "library"])
def test_weak_names(site, mpi, how):
    """A program that asks by weak names what its MPI has gets the same answer."""
    if how == "library":
        library = site.bin / f"libweak.{mpi.name}.so"
        run(mpi.compiler, *STRICT, "-shared", "-fPIC", "-Dmain=run", "-o", library, PROGRAMS / "weak.c")
        main = site.work.file("main.c", "int run(int, char **); int main(int c, char **a) { return run(c, a); }")
        program = site.bin / f"main.{mpi.name}"
        run("cc", "-o", program, main, library, f"-Wl,-rpath,{site.bin}")
    else:
        program = site.built(mpi, "weak", *how.split(), out=f"weak{how.replace(' ', '')}")
    plain = mpi.run(2, program, site.up.plain / "weak").stdout
    said = site.shimmed(mpi, 2, program, site.up.mount / "weak")
    assert names(said) == names(plain) and len(names(plain)) == 76
    assert "all right" in plain and "all right" in said
    # Where the MPI has them, they carry hints.
    said = site.shimmed(mpi, 2, program, site.up.mount / "weak", options=["--verbose"])
    assert re.search("2 collectives, .* [1-9][0-9]* requests with hints", said), said


def test_weak_names_without_mpi(site):
    """A program that is not linked with MPI has none of it."""
    lines = "extern void MPI_Init(void) __attribute__((weak)); int main(void) { return MPI_Init != 0; }"
    program = site.bin / "none"
    run("cc", *STRICT, "-fPIC", "-o", program, site.work.file("none.c", lines))
    run(program)
    site.up.tidegate("run", "--", program)


@pytest.mark.parametrize("hints", ["", "cb_nodes 1", "striping_unit 65536", "later striping_unit 131072"])
def test_info_of_a_file(site, mpi, hints):
    """Libraries lay files out by it. It has the hints of the program and no others."""
    program, romio = site.built(mpi, "info"), ROMIO.get(mpi.name)
    told = [site.shimmed(mpi, 2, program, site.up.mount / "info", *hints.split(), options=options, env=romio)
            for options in (["--no-mpi"], [])]
    assert sorted(told[0].splitlines()) == sorted(told[1].splitlines())


def test_layout_of_a_file(site, mpi):
    """PnetCDF writes the same bytes."""
    if mpi.name != "openmpi":
        return  # Debian's PnetCDF is for Debian's Open MPI
    if not pathlib.Path("/usr/include/pnetcdf.h").exists():
        pytest.skip("PnetCDF is missing: run tools/need mpi")
    program = site.bin / "layout"
    run(mpi.compiler, *STRICT, "-o", program, PROGRAMS / "layout.c", "-lpnetcdf")
    mpi.run(2, program, site.up.plain / "layout.nc")
    said = site.shimmed(mpi, 2, program, site.up.mount / "layout.nc", options=["--verbose"])
    assert re.search(" [1-9][0-9]* requests with hints", said), said
    run("cmp", site.up.plain / "layout.nc", site.up.mount / "layout.nc")


def test_threads(site, mpi):
    """Threads that do collective I/O, each with a communicator of its own, come to an end."""
    if mpi.name.startswith("mpich"):
        return  # its ROMIO hangs there on any directory: MPICH 4.0 calls it under one lock
    program = site.built(mpi, "threads", "-pthread")
    assert "all right" in mpi.run(2, program, site.up.plain / "threads").stdout
    said = site.shimmed(mpi, 2, program, site.up.mount / "threads", options=["--verbose"])
    assert "all right" in said and " 16 collectives" in said, said
    for thread in range(3):
        run("cmp", site.up.plain / f"threads.{thread}", site.up.mount / f"threads.{thread}")


@pytest.mark.parametrize("how", ["missing", "full"])
def test_opens_that_fail_on_one_rank(site, mpi, how):
    """No rank keeps descriptors of them."""
    said = site.shimmed(mpi, 2, site.built(mpi, "failing"), site.up.mount / "failing", how)
    assert "all right" in said, said


def test_jobs_that_abort(site, mpi):
    """Neither the mount nor forwarders keep descriptors of ranks that ended in the middle of a call."""
    def held():
        pids = [site.up.pid(0), site.up.pid(1), int((site.up.state / "mount.pid").read_text())]
        return [len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir())) for pid in pids]

    def abort():
        words = site.built(mpi, "odd"), site.up.mount / "abort", "abort"
        site.shimmed(mpi, 3, *words, code=9)
    abort()
    before = held()
    for _ in range(8 if LONG else 4):
        abort()
    until(lambda: all(now <= then + 2 for now, then in zip(held(), before)), lambda: f"{before}, then {held()}")


def test_python_of_the_registry(site, mpi):
    """mpi4py's wheels are for all versions of an MPI, and refer to its names weakly."""
    venv = site.work / "venv"
    if not venv.exists() and (run("python3", "-m", "venv", venv, code=None).returncode or run(
            venv / "bin/pip", "install", "-q", "--only-binary", ":all:", MPI4PY, code=None, timeout=300).returncode):
        pytest.skip(f"no {MPI4PY} from PyPI: is the package index reachable?")
    if mpi.name.endswith("5"):
        return
    library = run("sh", "-c", "ldd $0 | sed -n 's/.*libmpi[a-z]*[.]so.* => \\([^ ]*\\) .*/\\1/p'",
                  site.built(mpi, "weak")).stdout.split()[0]
    # All of MPICH's ABI have this name too; Debian's has its own alone.
    abi = site.work.folder()
    (abi / "libmpi.so.12").symlink_to(library)
    env = {"MPI4PY_MPIABI": mpi.name, "MPI4PY_LIBMPI": library} | ({"LD_LIBRARY_PATH": str(abi)} if mpi.name == "mpich" else {})
    said = site.shimmed(mpi, 2, venv / "bin/python", "-c", ROWS, site.up.mount / "py", env=env,
                        options=["--verbose"])
    assert said.count("all right") == 2 and re.search(" [23] collectives, .* [1-9][0-9]* requests with hints", said), said
