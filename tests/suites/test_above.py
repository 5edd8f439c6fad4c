"""By `..` a program of `tidegate run` finds what is above the exported directory, where its user began, and not
what is above the mount."""
import os
import pathlib
import shutil
import sys
import tempfile

import pytest
from conftest import TIDEGATE, need_fuse, run

# Each reads, writes or looks by a name that climbs out of the mount; its output is compared.
PROGRAM = r"""
cp ../input copy && cat copy
echo result > ../result
cd sub && cat ../../input && echo second > ../.././second && cat ../data && cd ..
stat -c %n ../data ../data/sub > /dev/null && echo inner > ../data/inner
mkdir ../made && mv ../made ../moved && ls -d ../moved
python3 -c 'import os; os.chdir(".."); print(open("input").read()); open("data/by-name", "w").write("x")'
"""


@pytest.fixture
def place(work):
    need_fuse()
    with work.part() as part:
        for name in ("plain", "served"):
            (part / name / "data/sub").mkdir(parents=True)
            part.file(f"{name}/input", "input\n")
            part.file(f"{name}/data/data", "in it\n")
        yield part


# Where the two names are of two file systems: the error of the kernel, and no file of another place.
RENAMES = r"""
import errno, os, sys
outside = sys.argv[1]
for old, new in (("../input", outside + "/out"), (outside + "/temporary", "../final")):
    try:
        os.rename(old, new)
        print("renamed")
    except OSError as error:
        print(errno.errorcode[error.errno])
print(sorted(os.listdir(outside)), sorted(os.listdir("..")))
"""


@pytest.mark.parametrize("mount", ["kept", "its own"])
def test_names_that_climb_out_lead_where_the_user_began(place, mount):
    state, export = place / "run", place / "served/data"
    run(TIDEGATE, "up", export, "--forwarders", 2, "--state-dir", state, *(["--no-mount"] if mount != "kept" else []))
    try:
        before = {path.name for path in state.iterdir()}
        plain = run("sh", "-euc", PROGRAM, cwd=place / "plain/data").stdout
        done = run(TIDEGATE, "run", "--summary", "--state-dir", state, "--", "sh", "-euc", PROGRAM, cwd=export)
        assert done.stdout == plain
        # Nothing of the directory went past, and nothing came into the state directory.
        assert " 0 past them" in done.stderr, done.stderr
        came = {path.name for path in state.iterdir()} - before
        assert came <= {"applications"}
    finally:
        run(TIDEGATE, "down", "--state-dir", state)
    files = {name: {str(path.relative_to(place / name)): path.is_file() and path.read_text()
                    for path in (place / name).rglob("*") if ".tidegate" not in path.parts}
             for name in ("plain", "served")}
    assert files["served"] == files["plain"]


def test_renames_between_file_systems_touch_no_other_file(place):
    """A mount of the run's own lies beside files that have the same names."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as outside:
        for name in ("input", "temporary"):
            pathlib.Path(outside, name).write_text("of another place\n")
        state, export = place / "run", place / "served/data"
        run(TIDEGATE, "up", export, "--forwarders", 1, "--state-dir", state, "--no-mount")
        try:
            done = run(TIDEGATE, "run", "--state-dir", state, "--", sys.executable, "-c", RENAMES, outside,
                       cwd=export, env=os.environ | {"TMPDIR": outside})
        finally:
            run(TIDEGATE, "down", "--state-dir", state)
        lines = done.stdout.splitlines()
        assert lines[:2] == ["EXDEV", "EXDEV"], lines
        assert pathlib.Path(outside, "input").read_text() == "of another place\n"
        assert (place / "served/input").read_text() == "input\n" and not (place / "served/final").exists()


# Says how each start of a program ends: its exit code, or the error.
STARTS = r"""
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)

def execvp(name):
    words = (ctypes.c_char_p * 2)(name.encode(), None)
    libc.execvp(name.encode(), words)
    raise OSError(ctypes.get_errno(), "")

def spawned(spawn):
    def start(name):
        os._exit(os.waitstatus_to_exitcode(os.waitpid(spawn(name, [name], os.environ), 0)[1]))
    return start

def ended(start, name):
    child = os.fork()
    if not child:
        try:
            start(name)
        except OSError as error:
            os._exit(100 + error.errno)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

by_path = {"execv": lambda name: os.execv(name, [name]), "execvp": execvp, "posix_spawn": spawned(os.posix_spawn)}
for here in (".", "sub"):
    os.chdir(here)
    up = "../" if here == "." else "../../"
    for name in ("program", "denied", "rights", "missing", "data/program", "data/denied", "data/missing"):
        print(up + name, *(f"{how} {ended(start, up + name)}" for how, start in by_path.items()))
    for folder in ("bin", ".", "data"):
        for path in (up + folder, "./" + up + folder):
            os.environ["PATH"] = path + ":/usr/bin:/bin"
            for name in ("program", "denied", "missing", "false"):
                print(path, name, ended(execvp, name), ended(spawned(os.posix_spawnp), name))
"""


def put_programs(folder, code):
    """Programs that end with that exit code, one that nobody may start, and one that gets rights by its file."""
    for inner in ("", "bin", "data"):
        (folder / inner).mkdir(exist_ok=True)
        for name, mode in (("program", 0o755), ("denied", 0o644), ("rights", 0o755)):
            (folder / inner / name).write_text(f"#!/bin/sh\nexit {code}\n")
            (folder / inner / name).chmod(mode)
    (folder / "rights").chmod(0o2755)


def test_programs_that_are_started_there_are_those_where_the_user_began(place):
    """Beside the mount lie others by the same names, all of which may be started."""
    state, export = place / "run", place / "served/data"
    for name in ("plain", "served"):
        put_programs(place / name, 5)
    run(TIDEGATE, "up", export, "--forwarders", 1, "--state-dir", state)
    try:
        put_programs(state, 6)
        for inner in ("", "bin", "data"):
            (state / inner / "denied").chmod(0o755)
            shutil.copy(state / inner / "denied", state / inner / "missing")
        plain = run(sys.executable, "-c", STARTS, cwd=place / "plain/data").stdout
        done = run(TIDEGATE, "run", "--state-dir", state, "--", sys.executable, "-c", STARTS, cwd=export)
        assert done.stdout.splitlines() == plain.splitlines()
        assert " 6" not in plain and "execv 113" in plain and "execv 102" in plain and " 5" in plain, plain
    finally:
        run(TIDEGATE, "down", "--state-dir", state)


def test_who_comes_there_later_means_the_same(place):
    """A program that goes into the directory, and a run within a run."""
    state = place / "run"
    run(TIDEGATE, "up", place / "served/data", "--forwarders", 1, "--state-dir", state)
    again = [TIDEGATE, "run", "--state-dir", state, "--"]
    try:
        done = run(*again, "sh", "-c", "cd data && cat ../input && cat ./../input", cwd=place / "served")
        assert done.stdout == "input\ninput\n"
        done = run(*again, *again, "cat", "../input", cwd=place / "served/data")
        assert done.stdout == "input\n"
    finally:
        run(TIDEGATE, "down", "--state-dir", state)


def test_who_begins_in_the_mount_means_what_is_above_it(place):
    mount = place.folder("elsewhere") / "mnt"
    place.file("elsewhere/input", "beside the mount\n")
    state = place / "run"
    run(TIDEGATE, "up", place / "served/data", "--forwarders", 1, "--state-dir", state, "--mount", mount)
    try:
        done = run(TIDEGATE, "run", "--state-dir", state, "--", "cat", "../input", cwd=mount)
        assert done.stdout == "beside the mount\n"
    finally:
        run(TIDEGATE, "down", "--state-dir", state)


def test_the_end_of_a_job_leaves_what_is_not_of_forwarders(place):
    """Its state directory goes, unless programs have written there."""
    job = {"SLURM_JOB_ID": "77", "TMPDIR": str(place.path), "XDG_RUNTIME_DIR": ""}
    environment = os.environ | job
    environment.pop("TIDEGATE_STATE_DIR", None)
    words = dict(env=environment, cwd=place / "served/data")
    run(TIDEGATE, "up", ".", "--forwarders", 1, **words)
    said = run(TIDEGATE, "run", "--no-shortcut", "--", "sh", "-c",
               "echo precious > ../client.csv; echo more > ../mount.txt; pwd", **words).stdout
    state = pathlib.Path(said.strip()).parent
    done = run(TIDEGATE, "down", **words)
    assert f"{state} stays" in done.stderr and "client.csv, mount.txt" in done.stderr, done.stderr
    assert {path.name for path in state.iterdir()} == {"client.csv", "mount.txt"}
    for path in state.iterdir():
        path.unlink()
    state.rmdir()
