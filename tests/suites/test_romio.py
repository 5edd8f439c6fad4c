"""The test programs of ROMIO and of MPICH's MPI-IO, which nobody here wrote, do over four forwarders what
they do on a plain directory: on the mount, with the short-cut, and with the MPI shim. FAMILIES names some
of the families of MPI."""
import functools
import os
import pathlib
import re
import shutil

import pytest
from conftest import LONG, REPO, need_fuse, run
from ranks import Mpi, started, ways

ONE_LIMIT_S = int(os.environ.get("ONE_LIMIT_S", 120))
FAMILIES = os.environ.get("FAMILIES", "mpich openmpi mpich5 openmpi5").split() if LONG else ["mpich"]
# One or two of each kind of call that MPI-IO makes of a file system (locks, aio, shared pointers, holes).
QUICK = "simple file_info async misc noncontig shared_fp types_with_zeros i_noncontig resized hindexed_io".split()
PROGRAMS = [line.split() for line in (REPO / "tests/mpi/romio-programs").read_text().splitlines() if line[0] != "#"]
PROGRAMS = [words for words in PROGRAMS if LONG or words[1].removeprefix("./") in QUICK]
WAYS = ways("shim", "mount shortcut shim-mount shim")
# noncontig_coll2 puts the distances of its allocations into ints: they have to come from one heap.
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}
# The part of a configuration that the helpers of MPICH's tests look at, for Linux with gcc.
HAVE = """DLFCN_H INTTYPES_H GETRUSAGE LONG_DOUBLE LONG_LONG MPI_IO MPI_WIN_CREATE PTHREAD_H STDARG_H STDINT_H STDLIB_H
STRDUP STRINGS_H STRING_H SYS_RESOURCE_H SYS_STAT_H SYS_TIME_H SYS_TYPES_H UNISTD_H USLEEP""".split()
CONFIGURATION = "".join(f"#define {words}\n" for words in [
    *(f"HAVE_{name} 1" for name in HAVE), "STDC_HEADERS 1", "MPIO_USES_MPI_REQUEST 1", "THREAD_PACKAGE_POSIX 2",
    "THREAD_PACKAGE_NAME THREAD_PACKAGE_POSIX"])
# Open MPI's library has the markers that MPI-3 removed, its header does not.
REMOVED = """
#include <mpi.h>
#ifdef OPEN_MPI
extern struct ompi_predefined_datatype_t ompi_mpi_lb, ompi_mpi_ub;
#undef MPI_LB
#undef MPI_UB
#define MPI_LB OMPI_PREDEFINED_GLOBAL(MPI_Datatype, ompi_mpi_lb)
#define MPI_UB OMPI_PREDEFINED_GLOBAL(MPI_Datatype, ompi_mpi_ub)
#endif
"""


class Programs:
    """The programs as built with a family, and four forwarders."""

    def __init__(self, mpi, work, up, sources):
        self.mpi, self.work, self.up, self.sources = mpi, work, up, sources
        self.missing, self.chances = [], 0
        work.file("mpitestconf.h", CONFIGURATION)
        flags = ("-w", "-O1", "-pthread", "-include", work.file("removed.h", REMOVED), f"-I{work.path}",
                 f"-I{sources}/mpi/include")
        helpers = [work / f"{name}.o" for name in ("mtest", "mtest_common", "mtest_thread")]
        for helper in helpers:
            run(mpi.compiler, *flags, "-c", sources / f"mpi/util/{helper.stem}.c", "-o", helper)
        for folder, name, *_ in PROGRAMS:
            program = self.program(folder, name)
            program.parent.mkdir(parents=True, exist_ok=True)
            source = sources / folder / f"{program.name}.c"
            if not source.exists():
                template = source.with_suffix(".c.in").read_text(errors="surrogateescape")
                source = program.with_suffix(".c")
                source.write_text(template.replace("@LL@", "lld"), errors="surrogateescape")
            # ROMIO's own programs define functions that the helpers have as well.
            with_helpers = [] if folder == "romio" else helpers
            # Some use what MPI has given up since.
            done = run(mpi.compiler, *flags, source, *with_helpers, "-o", program, "-lm",
                       code=None if mpi.name.endswith("5") else 0)
            if done.returncode:
                self.missing.append(f"{folder}/{name}")

    def program(self, folder, name):
        return self.work / "programs" / folder / name.removeprefix("./")

    def outcome(self, way, folder, name, ranks, *words):
        """How one program ends, what it says, and what files it leaves. Of one that fails its code only:
        which rank says so first, and what the launcher adds, is chance."""
        place, program = (self.up.plain if way == "plain" else self.up.mount) / "mpi", self.program(folder, name)
        place.mkdir()
        if name.startswith("./"):  # it opens itself
            shutil.copy(program, place)
            program = name
        if "HINTS" in words:
            shutil.copyfile(self.sources / "romio/test_hintfile", place / "hints")
        words = [{"FILE": "testfile", "HINTS": "./hints"}.get(word, word) for word in words]
        env = ONE_HEAP if "noncontig_coll2" in str(name) else {}
        before = ("timeout", "-k", "10", ONE_LIMIT_S, *started(self.up, way))
        done = self.mpi.run(ranks, program, *words, before=before, env=env, cwd=place, code=None,
                            timeout=ONE_LIMIT_S + 30)
        files = sorted(f"{path.relative_to(place)} {path.stat().st_size} bytes" for path in place.rglob("*")
                       if path.is_file())
        shutil.rmtree(place)
        if done.returncode:
            return [f"exit code {done.returncode}"], done.stdout
        # Speeds and addresses are not compared.
        said = sorted(re.sub("0x[0-9a-f]*", "0x", line) for line in done.stdout.splitlines()
                      if "bytes/sec" not in line and "Mbytes" not in line)
        return ["exit code 0", *said, *files], done.stdout

    @functools.cache
    def plain(self, *program):
        return self.outcome("plain", *program)[0]


@pytest.fixture(scope="module", params=FAMILIES)
def programs(request, work, forwarders):
    need_fuse()
    sources = run(REPO / "tools/need", "--path", "mpich-tests", code=None)
    if sources.returncode:
        pytest.skip("the test programs of MPICH are not there: run tools/need mpich-tests")
    mpi = Mpi(request.param, work)
    with work.part() as part, forwarders(4) as up:
        yield Programs(mpi, part, up, pathlib.Path(sources.stdout.strip()))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda words: f"{words[0]}/{words[1]}")
def test_as_on_a_plain_directory(programs, program, way):
    """Where it is not may be chance: some crash now and then. Then one of a few more runs on the plain
    directory has to end in the same way."""
    if "/".join(program[:2]) in programs.missing:
        return
    there, said = programs.outcome(way, *program)
    found = programs.plain(*program)
    for tries in range(5):
        if found == there:
            break
        found = programs.outcome("plain", *program)[0]
        programs.chances += tries == 0
    assert found == there, said


def test_few_are_left_out_or_fail(programs):
    print("not for this version:", *programs.missing, end=" ")
    assert len(programs.missing) <= 10
    failing = ["/".join(program[:2]) for program in PROGRAMS if "/".join(program[:2]) not in programs.missing
               and programs.plain(*program)[0] != "exit code 0"]
    print("fails on a plain directory too:", *failing)
    # MPICH's tests of nonblocking collective I/O crash in ROMIO as Open MPI 4.1 has it, on any directory.
    assert len(failing) <= (16 if programs.mpi.name.startswith("openmpi") else 2)
    # One program that once crashed where it mostly does not differs on all ways.
    assert programs.chances <= 5
