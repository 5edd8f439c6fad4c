"""By `..` a program of `tidegate run` finds what is above the exported directory, where its user began, and not
what is above the mount."""
import os
import pathlib

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
        assert {path.name for path in state.iterdir()} - before <= {"applications"}
    finally:
        run(TIDEGATE, "down", "--state-dir", state)
    files = {name: {str(path.relative_to(place / name)): path.is_file() and path.read_text()
                    for path in (place / name).rglob("*") if ".tidegate" not in path.parts}
             for name in ("plain", "served")}
    assert files["served"] == files["plain"]


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
