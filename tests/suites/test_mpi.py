"""MPI programs: with the shim they read and write what they do without, on the mount and with the
short-cut, with MPICH and Open MPI; all ranks are one application, and a collective is one operation."""
import re
import struct

import pytest
from conftest import REPO, TIDEGATE, matches, run, until
from ranks import Mpi

PROGRAMS = REPO / "tests/mpi"
BTL = {"OMPI_MCA_btl": "self,vader"}
STRICT = "-O1", "-Wall", "-Wextra", "-Werror"
# Loads a library privately, and calls what is in it.
PRIVATE = """
import ctypes, sys
path = sys.argv[1].encode()
sys.exit(ctypes.CDLL(sys.argv[2]).run(2, (ctypes.c_char_p * 3)(b"plugin", path, None)))
"""


class Site:
    """Forwarders that record traces, and what these are to say."""

    def __init__(self, up, work):
        self.up, self.mount, self.claims, self.bin = up, up.mount, [], work.folder("bin")
        self.families = {name: Mpi(name, work, romio=False) for name in ("mpich", "openmpi")}
        run("cc", *STRICT, "-o", self.bin / "hints", PROGRAMS / "hints.c")
        for name, mpi in self.families.items():
            for program in ("collectives", "odd"):
                run(mpi.compiler, *STRICT, "-o", self.bin / f"{program}.{name}", PROGRAMS / f"{program}.c")
            mpi.fortran = run(f"mpifort.{name}", "-o", self.bin / f"columns.{name}", PROGRAMS / "columns.f90",
                              code=None).returncode == 0

    def through(self, app, *words, name="openmpi", env=None, **options):
        """A program as that application; what it says."""
        done = self.up.tidegate("run", *(["--app", app] if app else []), *words, timeout=60,
                                env=self.families[name].environment | BTL | (env or {}), **options)
        return done.stdout + done.stderr

    def right(self, *words, **options):
        """That ends well, and says so."""
        said = self.through(*words, **options)
        assert "all right" in said, said
        return said

    def claim(self, file, app, collectives=None, clients=1):
        """What the traces are to say of a file: each request of it counts for that application, and there are so
        many collective operations, at least one of them with requests of so many clients."""
        self.claims.append((self.up.data / file, app, collectives, clients))


def app_id(name):
    value, mask = 0xCBF29CE484222325, (1 << 64) - 1
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 & mask
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & mask
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & mask
    return value ^ value >> 33


def traced(folder):
    """Inode, application, operation, stamp and client of each request that forwarders have recorded."""
    for path in sorted(folder.glob("*.trace")):
        data, zero = path.read_bytes(), 0
        for at in range(0, len(data) - 95, 96):
            if data[at] == ord("T"):
                (zero,) = struct.unpack_from("<Q", data, at + 16)
            elif data[at] == 1:
                issue, app, operation, file = struct.unpack_from("<qQQQ", data, at + 16)
                yield file, app, operation, issue + zero, struct.unpack_from("<I", data, at + 88)[0]


def wrong(seen, path, app, collectives, clients):
    """What the requests of a file have that was not claimed, or an empty text."""
    mine = [rest for file, *rest in seen if file == path.stat().st_ino]
    # Numbers of collectives begin where those of single calls never come to.
    groups = {}
    for _, operation, stamp, client in mine:
        if operation >> 63:
            groups.setdefault(operation, []).append((stamp, client))
    most = max((len({client for _, client in group}) for group in groups.values()), default=0)
    if {found for found, *_ in mine} != {app_id(app)}:
        return f"{path}: of {len(mine)} requests not all count for {app}"
    if collectives not in (None, len(groups)) or most < clients:
        return f"{path}: {len(groups)} collectives with requests of at most {most} clients"
    if any(len({stamp for stamp, _ in group}) != 1 for group in groups.values()):
        return f"{path}: a collective has several stamps"
    return ""


@pytest.fixture(scope="module")
def site(work, forwarders):
    for library in ("mpi", "mpich", "ompi", "preload"):
        path = TIDEGATE.parent / f"libtidegate_{library}.so"
        assert path.exists(), f"{path} is missing: make build"
    traces = work / "traces"
    with forwarders(2, "--trace", traces) as up:
        site = Site(up, work)
        site.traces = traces
        yield site


@pytest.fixture(params=["mpich", "openmpi"])
def mpi(request, site):
    """A family, and the words that start so many ranks with it."""
    mpi = site.families[request.param]
    mpi.ranks = lambda count: (mpi.launcher, "-n", count)
    return mpi


@pytest.mark.parametrize("way, options", [("mount", ["--no-shortcut"]), ("shortcut", [])])
def test_the_channel_without_mpi(site, way, options):
    """Hints; the second one ends with a request off its grid, before it had any."""
    site.right("h", *options, "--", site.bin / "hints", site.mount / f"hints.{way}", way)
    site.claim(f"hints.{way}", "h", 2)


@pytest.mark.parametrize("way", ["--no-shortcut", "--no-mpi", ""])
def test_every_collective_call(site, mpi, way):
    name = f"calls{way}.{mpi.name}"
    said = site.right(name, *way.split(), "--verbose", "--", *mpi.ranks(3), site.bin / f"collectives.{mpi.name}",
                      site.mount / name)
    if way != "--no-mpi":
        # Two more are nonblocking, which have none; those of large counts are not in Open MPI 4.
        site.claim(name, name, 8 if mpi.name == "mpich" else 6)
        assert not matches("[1-9][0-9]* off the grid", said)
        assert matches(" [1-9][0-9]* predicted, [1-9][0-9]* requests with hints", said)


def test_files_are_opened_without_a_look_at_all_descriptors(site, mpi):
    name, log = f"found.{mpi.name}", site.bin / f"found.{mpi.name}.strace"
    said = site.right(name, "--verbose", "--", *mpi.ranks(1), "strace", "-f", "-qq", "-e", "trace=openat", "-o", log,
                      site.bin / f"collectives.{mpi.name}", site.mount / name)
    assert matches(" [1-9][0-9]* requests with hints", said)
    assert log.read_text().count('"/proc/self/fd"') == 0


def test_two_aggregators(site, mpi):
    name = f"two.{mpi.name}"
    site.right(name, "--", *mpi.ranks(2), site.bin / f"collectives.{mpi.name}", site.mount / name, 2,
               env={"TIDEGATE_MPI_ALIGN": "off"})
    site.claim(name, name, clients=2)


def test_fortran(site, mpi):
    if mpi.fortran:
        name = f"f.{mpi.name}"
        site.right(name, "--", *mpi.ranks(2), site.bin / f"columns.{mpi.name}", site.mount / name)
        site.claim(name, name, 2)


@pytest.mark.parametrize("part", ["plain", "forks", "missing", "files"])
def test_odd(site, mpi, part):
    site.right(part, "--", *mpi.ranks(2), site.bin / f"odd.{mpi.name}", site.mount / f"{part}.{mpi.name}", part)


def test_abort_in_the_middle(site, mpi):
    """As without the shim."""
    site.through("a", "--", *mpi.ranks(2), site.bin / f"odd.{mpi.name}", site.mount / f"abort.{mpi.name}", "abort", code=9)


def test_two_jobs_of_a_script(site, mpi):
    """One application for a script, unless MPI jobs of it are to be told apart: each then."""
    files = [f"{name}.{mpi.name}" for name in ("one", "another")]
    script = "; ".join(f"{mpi.launcher} -n 2 {site.bin}/columns.{mpi.name} {site.mount}/{file}" for file in files)
    way = [] if mpi.name == "mpich" else ["--no-shortcut"]
    said = site.through("", *way, "--verbose", "--", "sh", "-c", script, code=None)
    apps = re.findall(" ranks are application (.*)", said)
    assert apps[0] != apps[1]
    for file, app in zip(files, apps):
        site.claim(file, app, 2)
    assert apps[0] in site.up.tidegate("stat", "--json").stdout


def test_nonblocking_that_may_exchange(site):
    # 2 of the 10 are nonblocking; rank 0 alone has aggregators' requests of these.
    site.right("nb", "--", "mpirun.mpich", "-n", "2", site.bin / "collectives.mpich", site.mount / "nb",
               env={"IN_ORDER": "1", "TIDEGATE_MPI_NONBLOCKING": "exchange"})
    site.claim("nb", "nb")


def test_a_library_that_was_loaded_privately(site):
    plugin = site.bin / "plugin.so"
    run("mpicc.mpich", "-O1", "-shared", "-fPIC", "-Dmain=run", "-o", plugin, PROGRAMS / "collectives.c")
    site.right("private", "--", "mpirun.mpich", "-n", "2", "python3", "-c", PRIVATE, site.mount / "private", plugin)
    site.claim("private", "private", 8)


def test_python(site):
    if run("/usr/bin/python3", "-c", "import mpi4py", code=None).returncode:
        pytest.skip("mpi4py is missing: run tools/need test")
    site.right("py", "--", "mpirun.openmpi", "-n", "2", "/usr/bin/python3", PROGRAMS / "columns.py", site.mount / "py")
    site.claim("py", "py", 2)


def test_mpi_init_that_fails(site):
    """It fails alike."""
    words = ("env", "PMI_FD=99", "PMI_RANK=0", "PMI_SIZE=2", "timeout", "30", site.bin / "odd.mpich", site.mount / "x", "plain")
    plain = run(*words, code=None).returncode
    assert plain != 0
    site.up.tidegate("run", "--", *words, code=plain)


def test_what_forwarders_were_told(site):
    """Applications, operations and stamps; another application would be noticed."""
    def told():
        seen = list(traced(site.traces))
        return [what for claim in site.claims if (what := wrong(seen, *claim))]
    until(lambda: not told(), told)
    assert wrong(list(traced(site.traces)), site.up.data / "hints.mount", "other", None, 1)
