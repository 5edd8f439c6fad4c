"""Ordinary users of a node with neither a secret nor a mount of root's, for whom munge vouches: what they can do,
what credentials that are not theirs, not for this forwarder or not new are good for, and what goes on where
munged does not answer. The munged are the suite's own; two with one key stand for two nodes."""
import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import struct
import time

import noise
import pytest
from conftest import LONG, TIDEGATE, Forwarder, free_port, matches, need_fuse, run, stop, tidegate, until
from worker import Worker

USER, STRANGER, GROUP, MEMBER = 12345, 12346, 12347, 12348
LABEL = b"tidegate munge 1\0"
# Numbers of refusals.
VERSION, CREDENTIAL, STALE, REPLAYED, READER, ELSEWHERE, ROOT, STRANGE = 4, 9, 10, 12, 13, 14, 15, 16
# A node whose databases know the user, and where he may mount.
NODE = 'mount --bind "$1" /etc/passwd; mount --bind "$2" /etc/group; mount --bind "$3" /dev/fuse; shift 3; exec "$@"'


class Munged:
    """The munged of a node."""

    def __init__(self, work, name, key):
        self.work, self.folder = work, work.folder(name)
        self.folder.chmod(0o755)
        self.socket, self.key = self.folder / "socket", self.folder / "key"
        self.key.write_bytes(key)
        self.key.chmod(0o600)
        self.start()

    def start(self):
        at = self.folder
        self.process = self.work.start(
            "munged", "--foreground", "--socket", self.socket, "--key-file", self.key, "--pid-file", at / "pid",
            "--log-file", at / "log", "--seed-file", at / "seed", log=self.work / f"{at.name}.log")
        until(lambda: run("munge", "-n", "-S", self.socket, code=None).returncode == 0, "munged does not answer")

    def credential(self, carried, *options, uid=USER):
        """What it makes for a user, to be read by root once."""
        with open(self.folder / "carried", "wb") as file:
            file.write(carried)
        (self.folder / "carried").chmod(0o644)
        made = run("setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "munge", "-S", self.socket, "-i",
                   self.folder / "carried", *(options or ("-u", "0")))
        return made.stdout.strip().encode()


class Cluster:
    """Two nodes with one munge key: the users', and that of a forwarder and of another one beside it."""

    def __init__(self, work):
        self.work = work
        for folder in (work.path, *work.path.parents[:1]):
            folder.chmod(0o711)
        key = os.urandom(128)
        self.users, self.forwarders = Munged(work, "users", key), Munged(work, "forwarders", key)
        self.site, self.revoked = work / "site", work / "revoked"
        tidegate("secret", "new", self.site)
        self.within = ("unshare", "--mount", "sh", "-ec", NODE, "sh", *self.databases())
        self.data, self.at, self.one = self.serve("one")
        _, self.other_at, self.other = self.serve("other")
        known = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        self.environment = known | {"XDG_RUNTIME_DIR": "/nonexistent", "TMPDIR": "/var/tmp", "HOME": "/var/tmp",
                                    "TIDEGATE_SHORTCUT": "eager"}

    def databases(self):
        users = self.work.file("passwd", open("/etc/passwd").read() + f"vouched:x:{USER}:{USER}::/:/bin/sh\n"
                               f"member:x:{MEMBER}:{MEMBER}::/:/bin/sh\n")
        groups = self.work.file("group", open("/etc/group").read() + f"vouched:x:{USER}:\nteam:x:{GROUP}:vouched\n"
                                + "".join(f"club{number}:x:{4000000000 + number}:member\n" for number in range(300)))
        fuse = self.work / "fuse"
        os.mknod(fuse, stat.S_IFCHR | 0o666, os.stat("/dev/fuse").st_rdev)
        fuse.chmod(0o666)
        return users, groups, fuse

    def serve(self, name, **keys):
        data, at = self.work.folder(f"data.{name}"), f"tcp:127.0.0.1:{free_port()}"
        data.chmod(0o1777)
        keys = {"munge": "on", "munge_socket": self.forwarders.socket, "log.level": "debug"} | keys
        return data, at, Forwarder(self.work, name, within=self.within, export=data, listen=[at],
                                   secret_file=self.site, revoked_file=self.revoked, **keys)

    def words(self, command, munged=None, at=None):
        return [TIDEGATE, command, "--munge", (munged or self.users).socket, "--forwarders", at or self.at]

    def by(self, uid, *words, code=0, groups=()):
        which = ("--groups", ",".join(map(str, groups))) if groups else ("--clear-groups",)
        user = ("setpriv", "--reuid", uid, "--regid", uid, *which)
        return run(*self.within, *user, *words, code=code, env=self.environment, cwd="/", timeout=60)

    def root(self, *words):
        """A command of root's, with the site's secret."""
        return tidegate(*words, "--forwarders", self.at, "--secret-file", self.site, timeout=30).stdout

    def sessions(self, uid=USER):
        return [it for it in json.loads(self.root("stat", "--json"))[0]["sessions"]
                if it["uid"] == uid and it["connected"]]

    def carried(self, at=None, key=None):
        """What a credential for a forwarder carries."""
        return LABEL + (key or bytes(32)) + (at or self.at).removeprefix("tcp:").encode()

    def show(self, credential, key=bytes(32), at=None):
        """The ticket that a forwarder gives for a credential, or the number of its refusal; None: it says nothing."""
        asking = noise.Asking(credential, key)
        return self.say(asking.greeting, asking, at)

    def say(self, greeting, asking, at=None):
        host, port = (at or self.at).removeprefix("tcp:").rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=60) as peer:
            peer.sendall(greeting)
            answer = b""
            while piece := peer.recv(4096):
                answer += piece
        if not answer:
            return None
        if answer[5] == noise.REFUSES:
            assert len(answer) == 9
            return answer[8]
        return asking.finish(answer)[1]


@pytest.fixture(scope="module")
def cluster(work):
    if os.geteuid():
        pytest.skip("only root's forwarders act for users")
    if not shutil.which("munged"):
        pytest.skip("munged is missing: run tools/need test")
    need_fuse()
    with work.part() as part:
        yield Cluster(part)


def worker_of(cluster, file):
    """A worker as the user under `tidegate run`, who makes a mount of his own for it."""
    user = ("setpriv", "--reuid", USER, "--regid", USER, "--clear-groups")
    return Worker(cluster.work, [*cluster.within, *user, *cluster.words("run"), "--"], file, cluster.environment)


def test_a_user_works_and_looks_as_himself(cluster):
    worker = worker_of(cluster, "mine")
    worker.works()
    found = (cluster.data / "mine").stat()
    assert (found.st_uid, found.st_gid) == (USER, USER)
    # The mount's session, and that of the program itself, past the mount.
    both = until(lambda: len(found := cluster.sessions()) >= 2 and found, "no session of the program's own")
    assert any(it["opens"] for it in both), both
    state = json.loads(cluster.by(USER, *cluster.words("stat"), "--json").stdout)[0]
    assert {it["uid"] for it in state["sessions"]} == {USER}, state
    done = cluster.by(USER, *cluster.words("policy"), "set", "fifo", code=None)
    assert done.returncode and matches("may|right|permi", done.stderr), done.stderr
    assert worker.ends() == ""
    until(lambda: not cluster.sessions(), "the sessions end with the program")
    assert b'role="user" name="munge-127.0.0.1"' in cluster.one.log.read_bytes()


def test_he_has_the_groups_of_the_forwarders_database_and_no_more(cluster):
    for name, group in (("ours", GROUP), ("theirs", GROUP + 1)):
        (cluster.data / name).write_text(name)
        os.chown(cluster.data / name, 0, group)
        (cluster.data / name).chmod(0o640)
    def reads(name):
        script = 'cat "$TIDEGATE_MOUNT/$0"'
        # What his process has, of which his own kernel knows.
        return cluster.by(USER, *cluster.words("run"), "--", "sh", "-c", script, name, code=None,
                          groups=(GROUP, GROUP + 1))
    assert reads("ours").stdout == "ours"
    done = reads("theirs")
    assert done.returncode and "Permission denied" in done.stderr, done.stderr


def test_who_is_refused_is_told_why(cluster):
    def said(uid, munged=None, at=None):
        return cluster.by(uid, *cluster.words("stat", munged, at), code=None).stderr
    assert matches("no ticket by munge: .*munge vouches for ordinary users", said(0))
    assert matches("no ticket by munge: .*its node does not know this user", said(STRANGER))
    assert matches(f"no ticket by munge: .*user {MEMBER} is in 0 groups here, in too many on the forwarder's node, "
                   "and a ticket has room for 240", said(MEMBER))
    assert matches(f"no ticket by munge.*user {MEMBER} is in 301 groups", cluster.one.log.read_text())
    foreign = Munged(cluster.work, "foreign", os.urandom(128))
    assert matches("no ticket by munge: .*have both nodes the same key", said(USER, foreign))
    stop(foreign.process)
    assert matches("no ticket by munge: .*does it run on this node", said(USER, foreign))
    _, off, forwarder = cluster.serve("off", munge="off")
    assert matches("no ticket by munge: .*it takes no credentials of munge", said(USER, at=off))
    forwarder.stop()
    cluster.revoked.write_text("munge-127.0.0.1\n")
    cluster.revoked.chmod(0o600)
    until(lambda: "the secret was revoked" in said(USER), "the node's name is not taken back")
    cluster.revoked.write_text("")
    until(lambda: said(USER) == "", "the node's name is taken back for ever")


def test_credentials_that_are_none_of_ours(cluster):
    munged = cluster.users
    key = os.urandom(32)
    ours = munged.credential(cluster.carried(key=key))
    asking = noise.Asking(ours, key)
    ticket = cluster.say(asking.greeting, asking)
    assert matches(f"^uid={USER}$", ticket.decode()) and matches("^role=site$", ticket.decode())
    # Shown again, as it was heard, and by somebody who has the key.
    assert cluster.say(asking.greeting, asking) == REPLAYED
    assert cluster.show(ours, key) == REPLAYED
    # To another forwarder, whose munged has not seen it, and by one to whom it was shown.
    apart = Munged(cluster.work, "apart", munged.key.read_bytes())
    _, at, third = cluster.serve("third", munge_socket=apart.socket)
    assert cluster.show(ours, key, at=at) == ELSEWHERE
    assert cluster.show(munged.credential(cluster.carried(key=key)), key, at=cluster.other_at) == ELSEWHERE
    third.stop()
    stop(apart.process)
    # Heard, and shown first, by somebody who has not the key.
    assert cluster.show(munged.credential(cluster.carried(key=key)), os.urandom(32)) == CREDENTIAL
    # Made for other readers, for anybody, in the open, for other programs, by root, by strangers.
    carried = cluster.carried()
    assert cluster.show(munged.credential(carried, "-u", str(USER))) == READER
    assert cluster.show(munged.credential(carried, "-t", "60")) == CREDENTIAL
    assert cluster.show(munged.credential(carried, "-u", "0", "-c", "none")) == CREDENTIAL
    for other in (b"", b"slurm", carried[1:], carried + b"0", LABEL, carried[:40]):
        assert cluster.show(munged.credential(other)) in (CREDENTIAL, ELSEWHERE), other
    assert cluster.show(munged.credential(carried, uid=0)) == ROOT
    assert cluster.show(munged.credential(carried, uid=STRANGER)) == STRANGE
    short = munged.credential(carried, "-u", "0", "-t", "1")
    time.sleep(3)
    assert cluster.show(short) == STALE
    # Changed on the way, and no credential at all.
    good = munged.credential(carried)
    changed = good[:40] + (b"B" if good[40:41] != b"B" else b"C") + good[41:]
    assert cluster.show(changed) == CREDENTIAL
    for none in (b"MUNGE:", b"MUNGE:AwQF:"):
        assert cluster.show(none) == CREDENTIAL, none
    for none in (b"", b"x" * 1000, b"MUNGE: :", munged.credential(bytes(1600))):
        assert cluster.show(none) == VERSION, none
    with contextlib.suppress(ConnectionError):
        assert cluster.show(munged.credential(bytes(3000))) is None
    with contextlib.suppress(ConnectionError):
        # Somebody who goes on as if he had a session.
        asking = noise.Asking(munged.credential(carried), bytes(32))
        assert cluster.say(asking.greeting + b"TGW1" + bytes(40), asking) is None
    assert cluster.by(USER, *cluster.words("stat")).stderr == ""


def test_a_credential_that_is_passed_on_is_refused(cluster):
    """Somebody listens in a forwarder's place and passes everything on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = cluster.at.removeprefix("tcp:").rsplit(":", 1)
        between = cluster.work.fork(passes, listener, host, int(port))
        at = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        said = cluster.by(USER, *cluster.words("stat", at=at), code=None).stderr
        assert matches("no ticket by munge: .*for another address", said), said
        between.terminate()


def passes(listener, host, port):
    """Passes one connection on: what is asked, then what is answered."""
    client, _ = listener.accept()
    with socket.create_connection((host, port)) as forwarder:
        head = client.recv(8, socket.MSG_WAITALL)
        forwarder.sendall(head + client.recv(struct.unpack("<H", head[6:])[0], socket.MSG_WAITALL))
        while piece := forwarder.recv(4096):
            client.sendall(piece)
    client.close()


def test_a_munged_that_hangs_delays_who_needs_it_and_nobody_else(cluster):
    worker = worker_of(cluster, "before")
    worker.works()
    munged, before = cluster.forwarders.process, len(connections(cluster.at))
    munged.send_signal(signal.SIGSTOP)
    try:
        user = ("setpriv", "--reuid", USER, "--regid", USER, "--clear-groups")
        late = cluster.work.start(*cluster.within, *user, *cluster.words("stat"), env=cluster.environment)
        until(lambda: len(connections(cluster.at)) > before, "nobody asks")
        for _ in range(5):
            assert late.poll() is None or late.returncode
            worker.works()
            assert cluster.sessions(), "root looks, and the session goes on"
        assert late.wait(60) != 0, "a munged that is stopped has answered"
    finally:
        munged.send_signal(signal.SIGCONT)
    until(lambda: cluster.by(USER, *cluster.words("stat"), code=None).returncode == 0, "munged is back, and no ticket")
    # That of the user's own node.
    cluster.users.process.send_signal(signal.SIGSTOP)
    try:
        said = cluster.by(USER, *cluster.words("stat"), code=None).stderr
        assert matches("no ticket by munge: .*munged of this node does not answer", said), said
        worker.works()
    finally:
        cluster.users.process.send_signal(signal.SIGCONT)
    assert worker.ends() == ""


def connections(at):
    """The clients' ends of the connections to a port of this machine that are there, as the kernel lists them."""
    port = f":{int(at.rsplit(':', 1)[1]):04X}"
    with open("/proc/net/tcp") as lines:
        return [line for line in lines if line.split()[2].endswith(port) and line.split()[3] == "01"]


if LONG:
    # Three tickets' lives.
    def test_the_next_ticket_is_taken_while_a_job_runs(cluster):
        ended = lambda: cluster.one.log.read_bytes().count(b"its ticket has ended")  # noqa: E731
        worker, before = worker_of(cluster, "long"), ended()
        worker.works()
        [first, *_] = until(cluster.sessions, "no session")

        def goes_on():
            time.sleep(1)
            worker.works()
            return ended() >= before + 2
        until(goes_on, "no ticket ends", seconds=180)
        assert first["client"] in {it["client"] for it in until(cluster.sessions, "no session")}
        # Nobody gives tickets for longer than one is good: the mount waits for the next one, and serves the program.
        cluster.forwarders.process.send_signal(signal.SIGSTOP)
        time.sleep(60)
        cluster.forwarders.process.send_signal(signal.SIGCONT)
        worker.works()
        said = worker.ends()
        assert said.count("\n") == 1 and "the mount serves this program" in said, said
