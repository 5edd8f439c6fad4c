"""Ordinary users of a node whose secret only root can read: root's mount gives each of them tickets, by which
short-cut, MPI programs, `run` and `stat` reach forwarders over TCP. A ticket is good for its user alone and for
a short time; the next one is taken while a job runs, and where there is none the mount serves the program."""
import json
import os
import re
import sys

import pytest
from conftest import LONG, REPO, TIDEGATE, Forwarder, free_port, matches, need_fuse, run, tidegate, until
from ranks import Mpi, has_shim
from worker import Worker

USER, OTHER, GROUP = 12345, 12346, 12347
TICKET_S = 3
# The longest that a call may take while one ticket ends and the next one is shown; held in the long form alone, since
# it is a time by the clock.
PAUSE_MAX_S = 0.5
TICKET = 2 << 30 | 4096 << 16 | 0xF7 << 8 | 5
# Says the ticket that the caller gets, or why there is none.
TAKER = f"""
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
try:
    answer = bytearray(4096)
    fcntl.ioctl(fd, {TICKET}, answer)
    print(answer[24:24 + int.from_bytes(answer[16:24], "little")].decode(), end="")
except OSError as error:
    sys.exit(os.strerror(error.errno))
"""


def as_user(uid, groups=()):
    """The words before a program that make it this user's."""
    which = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
    return ["setpriv", "--reuid", uid, "--regid", uid, *which]


class Node:
    """One forwarder over TCP, and root's mount of a node that has a secret of the role `mount`."""

    def __init__(self, work):
        self.work, self.data, self.site = work, work.folder("data"), work / "site"
        self.mount, self.secret = work.folder("mnt"), work / "secret"
        for folder in (work.path, *work.path.parents[:1]):
            folder.chmod(0o711)
        self.data.chmod(0o1777)
        tidegate("secret", "new", self.site)
        tidegate("secret", "derive", self.secret, "--from", self.site, "--role", "mount", "--name", "cn1")
        self.at = f"tcp:127.0.0.1:{free_port()}"
        self.forwarder = Forwarder(work, "one", export=self.data, listen=[self.at], secret_file=self.site,
                                   revoked_file=work / "revoked", **{"log.level": "debug"})
        # Nothing that says where forwarders are, but which of this machine's mounts is meant.
        known = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        self.environment = known | {"TIDEGATE_MOUNT": str(self.mount), "XDG_RUNTIME_DIR": "/nonexistent",
                                    "TMPDIR": "/var/tmp", "TIDEGATE_SHORTCUT": "eager"}
        self.begin()

    def begin(self):
        self.process = self.work.mount_at(self.mount, "--secret-file", self.secret, "--forwarders", self.at,
                                          "--ticket-s", TICKET_S)

    def by(self, uid, *words, groups=(), code=0, env=None, **options):
        return run(*as_user(uid, groups), *words, code=code, env=self.environment | (env or {}), cwd="/", timeout=60,
                   **options)

    def sessions(self, uid):
        """The sessions of a user, as root sees them."""
        said = tidegate("stat", "--json", "--forwarders", self.at, "--secret-file", self.site, timeout=30).stdout
        return [it for it in json.loads(said)[0]["sessions"] if it["uid"] == uid and it["connected"]]

    def proved(self):
        """How many sessions were made by tickets."""
        return self.forwarder.log.read_bytes().count(b'role="user" name="cn1"')

    def ended(self):
        """How many tickets the forwarder has seen end while their sessions went on."""
        return self.forwarder.log.read_bytes().count(b"its ticket has ended")

    def ticket(self, uid, groups=(), code=0):
        return self.by(uid, sys.executable, "-c", TAKER, self.mount, groups=groups, code=code)


def worker_of(node, file, uid=USER):
    """A worker as a user under `tidegate run`."""
    return Worker(node.work, [*as_user(uid), TIDEGATE, "run", "--"], file, node.environment)


@pytest.fixture(scope="module")
def node(work):
    if os.geteuid():
        pytest.skip("only root's mounts give tickets")
    need_fuse()
    with work.part() as part:
        yield Node(part)


def test_a_user_works_and_looks_without_a_configuration(node):
    worker = worker_of(node, "mine")
    worker.works()
    assert (node.data / "mine").stat().st_uid == USER
    [session] = until(lambda: node.sessions(USER), "no session of the user's own")
    assert session["opens"] >= 1, session
    # He sees what is his.
    state = json.loads(node.by(USER, TIDEGATE, "stat", "--json").stdout)[0]
    assert {it["uid"] for it in state["sessions"]} == {USER} and state["other_sessions"] >= 1, state
    done = node.by(USER, TIDEGATE, "policy", "set", "fifo", code=None)
    assert done.returncode and matches("may|right|permi", done.stderr), done.stderr
    assert worker.ends() == ""
    until(lambda: not node.sessions(USER), "the session ends with its program")


def test_a_ticket_is_the_callers_own(node):
    text = node.ticket(USER, groups=[GROUP]).stdout
    assert matches(f"^uid={USER}$", text) and matches(f"^groups={GROUP}$", text) and matches("^name=cn1$", text), text
    assert matches(f"^uid={OTHER}$", node.ticket(OTHER).stdout)
    # Root has the secret, and gets none.
    assert run(sys.executable, "-c", TAKER, node.mount, code=1).stderr == "Inappropriate ioctl for device\n"
    # Nothing of the mount's own secret is in it.
    assert re.search("^key=(.*)$", node.secret.read_text(), re.M)[1] not in text


def test_who_is_in_too_many_groups_is_told(node):
    many = range(4_000_000_000, 4_000_000_300)
    assert "Argument list too long" in node.ticket(USER, groups=many, code=1).stderr
    said = node.by(USER, TIDEGATE, "stat", groups=many, code=None).stderr
    assert f"user {USER} is in 300 groups, and a ticket has room for 240: " in said, said
    node.ticket(USER, groups=many[:240])


def test_what_others_can_do_with_it(node):
    (node.data / "secret").write_text("the first user's")
    os.chown(node.data / "secret", USER, USER)
    (node.data / "secret").chmod(0o600)
    text = node.ticket(USER).stdout
    file = node.work.file("kept", text, 0o600)
    os.chown(file, USER, USER)
    by_other = ("stat", "--forwarders", node.at, "--secret-file")
    # Not to be read by another user; and with another user in it, it is none.
    assert matches("kept (cannot be read|belongs)", node.by(OTHER, TIDEGATE, *by_other, file, code=2).stderr)
    for old, new in [(f"uid={USER}", f"uid={OTHER}"), (f"uid={USER}", "uid=0"), ("expires=", "expires=9"),
                     ("role=user", "role=mount")]:
        changed = node.work.file("changed", text.replace(old, new, 1), 0o600)
        os.chown(changed, OTHER, OTHER)
        done = node.by(OTHER, TIDEGATE, *by_other, changed, code=2)
        assert matches("wrong secret|damaged", done.stderr), (new, done.stderr)
    # Another user's own ticket opens nothing of the first one's.
    script = "import os, sys; os.pread(os.open(sys.argv[1], os.O_RDONLY), 1, 0)"
    done = node.by(OTHER, TIDEGATE, "run", "--", sys.executable, "-c", script, node.mount / "secret", code=None)
    assert "Permission" in done.stderr, done.stderr
    # Where it was kept, it is void soon, with the groups in it.
    until(lambda: "has expired" in node.by(USER, TIDEGATE, *by_other, file, code=None).stderr, "it is good for ever")


def test_the_next_ticket_is_taken_while_a_job_runs(node):
    worker, before = worker_of(node, "long"), node.ended()
    worker.works()
    [first] = until(lambda: node.sessions(USER), "no session of the user's own")
    worker.longest_s = 0.0

    def twice():
        worker.works()
        return node.ended() >= before + 2
    until(twice, "no ticket ends", pause=0)
    # Some 25 ms on two busy cores; who has to wait for a ticket that was not taken in time waits for a second.
    assert not LONG or worker.longest_s < PAUSE_MAX_S, worker.longest_s
    [last] = until(lambda: node.sessions(USER), "the session goes on")
    assert first["client"] == last["client"] and last["opens"] >= 1, (first, last)
    assert worker.ends() == ""


def test_without_a_next_ticket_the_mount_serves_the_program(node):
    worker = worker_of(node, "falls")
    worker.works()
    until(lambda: node.sessions(USER), "no session of the user's own")
    away = node.secret.rename(node.work / "away")

    def falls():
        worker.works()
        return not node.sessions(USER)
    until(falls, "the session goes on")
    for _ in range(20):
        worker.works()
    assert (node.data / "falls").read_text() == f"line {worker.count}\n"
    said = worker.ends()
    assert said.count("\n") == 1 and "ticket" in said and "the mount serves this program" in said, said
    # Who comes now works by the mount from the start, and nothing is wrong for him.
    late = worker_of(node, "late")
    late.works()
    assert not node.sessions(USER) and late.ends() == ""
    away.rename(node.secret)
    again = worker_of(node, "again")
    again.works()
    until(lambda: node.sessions(USER), "no session of the user's own")
    assert again.ends() == ""


# Calls that move the bytes of a file, or map it.
MOVES = ("read,write,pread64,pwrite64,readv,writev,preadv,pwritev,preadv2,pwritev2,sendfile,splice,copy_file_range,"
         "mmap,io_uring_enter,io_submit")


def traced(node, file, *words, **options):
    """Runs a program under strace as the user. Returns what it said; which calls moved bytes of that file past the
    short-cut or the shim, and so through the mount; and whether it connected to the forwarder."""
    log = node.work.file("strace", "", 0o666)
    done = node.by(USER, "strace", "-f", "-qq", "-y", "-e", f"trace=connect,{MOVES}", "-o", log, *words, **options)
    calls = log.read_text(errors="replace").splitlines()
    port = f"htons({node.at.rpartition(':')[2]})"
    return (done, [it for it in calls if f"<{file}>" in it],
            any("connect(" in it and port in it for it in calls))


@pytest.mark.parametrize("shortcut", [True, False])
def test_bytes_go_from_the_program_to_the_forwarder(node, shortcut):
    file = node.mount / f"traced-{shortcut}"
    program = f"import os; fd = os.open({str(file)!r}, os.O_RDWR | os.O_CREAT); os.write(fd, b'x' * 70000); " \
              "print(len(os.pread(fd, 80000, 0)))"
    option = [] if shortcut else ["--no-shortcut"]
    done, past, connected = traced(node, file, TIDEGATE, "run", *option, "--", sys.executable, "-c", program)
    assert done.stdout == "70000\n", done
    assert (not past, connected) == (shortcut, shortcut), past


# With MPICH one rank moves the data of a node.
@pytest.mark.parametrize("name, movers", [("mpich", 1), ("openmpi", 2)])
def test_ranks_reach_the_forwarders_by_themselves(node, name, movers):
    if not has_shim():
        pytest.skip("this build has no MPI shim")
    mpi = Mpi(name, node.work, romio=False)
    program = node.work / f"collectives.{name}"
    run(mpi.compiler, "-O1", "-o", program, REPO / "tests/mpi/collectives.c")
    program.chmod(0o755)
    (node.data / name).mkdir()
    os.chown(node.data / name, USER, USER)
    before = node.proved()
    file = node.mount / name / "file"
    done, past, connected = traced(node, file, TIDEGATE, "run", "--verbose", "--", mpi.launcher, "-n", 2, program, file,
                                   env=mpi.environment | {"OMPI_MCA_btl": "self,vader", "HOME": "/var/tmp"})
    said = done.stdout + done.stderr
    assert "all right" in said and "2 ranks are application" in said, said
    assert not past and connected, past
    assert node.proved() >= before + movers, "no session for each rank"
    assert (node.data / name / "file").stat().st_uid == USER


def test_a_mount_that_gives_none(node):
    node.process.terminate()
    node.process.wait(30)
    node.process = node.work.mount_at(node.mount, "--secret-file", node.secret, "--forwarders", node.at,
                                      "--ticket-s", 0)
    assert node.ticket(USER, code=1).stderr == "Inappropriate ioctl for device\n"
    worker = worker_of(node, "plain")
    worker.works()
    assert not node.sessions(USER) and worker.ends() == ""
    done = tidegate("mount", node.mount, "--ticket-s", 2, code=2)
    assert "must be 0, or from 3 to 3600" in done.stderr, done.stderr


def test_a_node_that_is_lost_loses_its_tickets(node):
    stolen = tidegate("secret", "derive", node.work / "cn2", "--from", node.site, "--role", "mount", "--name", "cn2")
    assert stolen.stdout == ""
    spare = node.work.folder("spare")
    node.work.mount_at(spare, "--secret-file", node.work / "cn2", "--forwarders", node.at, "--ticket-s", 600)
    text = node.by(USER, sys.executable, "-c", TAKER, spare).stdout
    file = node.work.file("of-cn2", text, 0o600)
    os.chown(file, USER, USER)
    look = (TIDEGATE, "stat", "--forwarders", node.at, "--secret-file")
    node.by(USER, *look, file)
    node.work.file("revoked", "cn2  # lost\n", 0o600)
    until(lambda: "was revoked" in node.by(USER, *look, file, code=None).stderr, "the ticket is good")
    assert "was revoked" in run(*look, node.work / "cn2", code=2).stderr
    until(lambda: b"its secret was revoked" in node.forwarder.log.read_bytes(), "the mount's session goes on")
    run("umount", "-l", spare)
