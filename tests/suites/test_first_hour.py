"""What somebody meets in the first hour: containers, left-over variables, a full disk, a set that nobody watches.

What is said must name what is wrong and what to do, and nothing may be called well that is not."""
import os
import pathlib
import signal
import tempfile

import pytest
from conftest import TIDEGATE, alive, need_fuse, run, until

ALONE = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]


@pytest.fixture
def place(work):
    """A folder with a directory to export, and what was started there ends with it."""
    with work.part() as part:
        part.folder("data")
        yield part
        tidegate(part, "down", code=None)


def tidegate(place, *words, code=0, env=None, **options):
    environment = os.environ | {"TIDEGATE_STATE_DIR": str(place / "state")} | (env or {})
    return run(TIDEGATE, *words, code=code, env=environment, **options)


def up(place, *more):
    return tidegate(place, "up", place / "data", "--forwarders", 2, "--no-mount", *more)


@pytest.fixture
def alone(place):
    """Runs a script as root of a user namespace that has no other user and lets nobody set groups."""
    probe = "test $(cat /proc/self/setgroups) = deny"
    if run(*ALONE, "sh", "-c", probe, code=None).returncode:
        pytest.skip("no right to make a user namespace")

    def script(text, code=0):
        environment = os.environ | {"TIDEGATE_STATE_DIR": str(place / "inside")}
        words = [*ALONE, "sh", "-ec", text, "sh", TIDEGATE]
        return run(*words, code=code, cwd=place / "data", env=environment)
    return script


def test_root_of_a_user_namespace_serves_itself(place, alone):
    need_fuse()
    done = alone('"$1" up . --forwarders 2 >&2; "$1" stat --check >&2; "$1" run -- sh -c "echo bytes > made; cat made; pwd"; '
                 'chmod 600 made; "$1" run -- sh -c "echo more >> made; chmod 640 made; mv made moved"; "$1" down')
    assert done.stdout == f"bytes\n{place.path}/inside/mnt\n", done
    moved = place / "data" / "moved"
    assert moved.read_text() == "bytes\nmore\n" and moved.stat().st_mode & 0o777 == 0o640
    log = (place / "inside" / "forwarder.0.log").read_text()
    assert "serves its own user only" in log and "setgroups is deny" in log, log


def test_check_tells_whom_forwarders_would_serve_there(alone):
    lines = alone('"$1" check .').stdout.splitlines()
    [told] = [line for line in lines if line.startswith("groups of callers")]
    assert "setgroups is deny" in told and "Invalid argument" not in told, told


def test_a_full_disk_refuses_changes_by_its_own_error(place):
    if os.geteuid():
        pytest.skip("only root can mount a small file system")
    run("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place / "data")
    try:
        up(place)
        with open(place / "data" / "fill", "wb", buffering=0) as fill:
            with pytest.raises(OSError):
                while fill.write(bytes(1 << 16)):
                    pass
        for words in (("policy", "set", "window"), ("share", "set", "job", "weight=2")):
            said = tidegate(place, *words, code=1).stderr
            assert "refused by forwarder 0" in said and "No space left on device" in said, said
            assert "may be" not in said and "make room" in said, said
        tidegate(place, "policy", "set", "window", "--temporary")
        (place / "data" / "fill").unlink()
        tidegate(place, "share", "set", "job", "weight=2")
        tidegate(place, "down")
    finally:
        run("umount", "-l", place / "data")


def test_a_run_by_addresses_says_where_it_works(place):
    need_fuse()
    up(place)
    addresses = ",".join(f"unix:{place.path}/state/forwarder.{index}.sock" for index in (0, 1))
    words = ("run", "--summary", "--", "sh", "-c", "echo past > made; pwd")
    for more, flags in (({}, ("--forwarders", addresses)), ({"TIDEGATE_FORWARDERS": addresses}, ())):
        done = tidegate(place, *words[:2], *flags, *words[2:], cwd=place / "data", env=more)
        first, last = done.stderr.splitlines()
        assert done.stdout == f"{place.path}/data\n"
        assert "which directory these forwarders export is not known" in first and "TIDEGATE_MOUNT" in first, done
        assert "how many past them is not known" in last and "0 past them" not in last, done
    done = tidegate(place, *words, cwd=place / "data")
    assert len(done.stderr.splitlines()) == 1 and ", 0 past them" in done.stderr, done


def test_a_set_without_its_supervisor_is_not_well(place):
    up(place)
    supervisor = int((place / "state" / "up.pid").read_text())
    assert tidegate(place, "stat", "--check").stdout == "2 forwarders, each serves its own seat\n"
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: not alive(supervisor), "it lives")
    said = tidegate(place, "stat", "--check", code=1).stdout
    assert "are not started again if they die" in said and "tidegate down" in said, said
    assert said in tidegate(place, "stat").stdout
    assert '"kind":"unattended"' in tidegate(place, "stat", "--check", "--json", code=1).stdout
    for index in (0, 1):
        forwarder = int((place / "state" / f"forwarder.{index}.pid").read_text())
        os.kill(forwarder, signal.SIGKILL)
        until(lambda pid=forwarder: not alive(pid), "it lives")
    said = tidegate(place, "stat", code=2).stderr
    assert "are gone without `tidegate down`" in said, said


def test_who_is_stopped_is_told(place):
    """Its programs wait; what they say is theirs alone, so the log of `up` tells why."""
    up(place)
    pid = int((place / "state" / "forwarder.1.pid").read_text())
    log = place / "state" / "up.log"
    os.kill(pid, signal.SIGSTOP)
    wanted = f"forwarder 1 (process {pid}) is stopped, by signal 19: programs wait for it; `kill -CONT {pid}` lets it go on"
    try:
        until(lambda: wanted in log.read_text(), log.read_text)
        assert "forwarder 1" in tidegate(place, "stat", "--check", code=1).stdout
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: f"forwarder 1 (process {pid}) goes on" in log.read_text(), log.read_text)
    tidegate(place, "stat", "--check")


@pytest.mark.parametrize("name, value", [
    ("TIDEGATE_FORWARDERS", "bogus"), ("TIDEGATE_FORWARDERS", "unix:/nowhere/at/all"), ("TIDEGATE_MUNGE", "bogus")])
def test_a_variable_left_over_is_named(place, name, value):
    up(place)
    said = tidegate(place, "run", "--", "true", code=2, env={name: value}).stderr
    assert said.endswith(f"(as the variable {name} says)\n"), said


def test_an_empty_variable_is_none(place):
    up(place)
    for name in ("TIDEGATE_FORWARDERS", "TIDEGATE_MUNGE"):
        tidegate(place, "stat", env={name: ""})


def test_a_name_that_no_rule_can_mean(place):
    need_fuse()
    up(place)
    for name in ("", "n" * 256, "a\nb"):
        said = tidegate(place, "run", "--app", name, "--", "true", code=2).stderr
        assert said.startswith("tidegate: --app: the name ") and said.count("\n") == 1, said
    said = tidegate(place, "run", "--", "true", env={"TIDEGATE_APP": "n" * 256}).stderr
    assert "warning: TIDEGATE_APP: the name must have 1 to 255 bytes" in said, said


def test_a_misspelt_switch_is_told(place):
    need_fuse()
    up(place)
    said = tidegate(place, "run", "--", "true", cwd=place / "data", env={"TIDEGATE_REDIRECT": "of"}).stderr
    assert said == 'tidegate: warning: TIDEGATE_REDIRECT is "of", neither on nor off; it is on\n', said


def test_a_run_without_room_for_its_mount_names_the_variable(place):
    up(place)
    said = tidegate(place, "run", "--", "true", code=1, env={"TMPDIR": "/nowhere"}).stderr
    assert "/nowhere/tidegate-run-" in said and "set TMPDIR" in said, said


@pytest.fixture
def user():
    """Runs commands as a user for whom nothing but TMPDIR says where a state directory is."""
    if os.geteuid():
        pytest.skip("only root can be two users")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o777)
        as_user = ["setpriv", "--reuid", 65534, "--regid", 65534, "--clear-groups", TIDEGATE]
        plain = {key: value for key, value in os.environ.items() if key not in ("TIDEGATE_STATE_DIR", "XDG_RUNTIME_DIR")}

        def call(temporary, *words, code=2, **more):
            return run(*as_user, *words, code=code, cwd=folder, env=plain | {"TMPDIR": temporary} | more)
        call.folder = pathlib.Path(folder)
        yield call


def test_a_state_directory_by_tmpdir(user):
    by = "(as the variable TMPDIR says)"
    said = user("/nowhere/at/all", "up", ".").stderr
    assert said.startswith(f"tidegate: state directory /nowhere/at/all/tidegate-65534 {by}: Permission denied"), said
    # Relative to where the command was called, though `down` works elsewhere.
    said = user("relative", "down").stderr
    assert f"nothing is up in {user.folder}/relative/tidegate-65534 {by}" in said and "job" not in said, said
    said = user("relative", "down", SLURM_JOB_ID="7").stderr
    assert f"relative/tidegate-65534-slurm-7 {by}, the directory of this job; that of no job is {user.folder}/" in said, said
    assert "nothing is up in /tmp/tidegate-65534" in user("", "down").stderr


def test_an_export_of_another_user_is_named():
    if os.geteuid():
        pytest.skip("only root can be two users")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o1777)
        data = pathlib.Path(folder, "data")
        data.mkdir(0o700)
        said = run("setpriv", "--reuid", 65534, "--regid", 65534, "--clear-groups", TIDEGATE, "serve", "--export", data,
                   "--listen", f"unix:{folder}/socket", code=2).stderr
        assert f"export directory {data}: Permission denied" in said and "that you may use" in said, said


def test_places_in_the_exported_directory_are_refused(place):
    data = place / "data"
    for words, said in (((data, "--state-dir", data / "st"), f"state directory {data}/st lies in the exported directory"),
                        ((data, "--state-dir", data / "st", "--mount", place / "mnt"), "choose another with --state-dir"),
                        ((data, "--mount", data / "mnt"), "choose another with --mount"),
                        (("/",), "/ holds every place where it could be mounted; name a directory")):
        done = tidegate(place, "up", *words, code=2)
        assert said in done.stderr, done
    assert not os.listdir(data)


def test_one_forwarder_is_told_as_one(place):
    said = tidegate(place, "up", place / "data", "--forwarders", 1, "--no-mount").stdout
    assert said.startswith(f"1 forwarder serves {place.path}/data\n"), said
    assert f"Run:       tidegate run --state-dir {place.path}/state -- PROGRAM\n" in said or not os.path.exists("/dev/fuse")


def test_up_over_a_served_directory_is_told_at_once(place):
    """Nothing is started for that."""
    up(place)
    said = tidegate(place, "up", place / "data", "--state-dir", place / "other", "--no-mount", code=2).stderr
    assert f"which are yours; use those, or stop them first (`tidegate down --state-dir {place.path}/state`)" in said, said
    assert not list((place / "other").glob("forwarder.*"))


def test_up_over_a_directory_of_an_unknown_forwarder_is_told(place):
    """One whose arguments do not tell what it serves."""
    log = place / "serve.log"
    place.start(TIDEGATE, "serve", "--export", place / "data", "--listen", f"unix:{place.path}/socket", log=log)
    until(lambda: "serving" in log.read_text(), log.read_text)
    said = tidegate(place, "up", place / "data", "--forwarders", 1, "--no-mount", code=2).stderr
    assert "by other forwarders: .tidegate/seat.0 in it is locked; use those" in said, said
    assert not [path for path in (place / "state").iterdir() if path.suffix in (".pid", ".sock")]


@pytest.mark.parametrize("words, advice", [
    (("calibrate", "/nowhere/at/all"), "name a directory that you may write, on the file system to measure"),
    (("trace", "summarise", "/nowhere/at/all"), "name a trace, or the folder of `tidegate up --trace`")])
def test_what_is_not_there_to_be_read(place, words, advice):
    said = tidegate(place, *words, code=2).stderr
    assert said == f"tidegate: /nowhere/at/all: No such file or directory (os error 2); {advice}\n"


def test_what_is_not_there_to_be_taken_away(place):
    said = tidegate(place, "umount", "/proc", code=2).stderr
    assert "no FUSE file system is mounted at /proc" in said, said
    file = pathlib.Path(place.file("file", ""))
    said = tidegate(place, "up", place / "data", "--mount", file, code=2).stderr
    assert "it is no directory" in said, said
