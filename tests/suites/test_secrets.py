"""What the secret of a site gives, and what secrets give that were made of it: a mount acts for its node's
users and administers nothing, an operator administers and reaches no file, a user is that user. A secret is
replaced without a restart, and what was proved by the old one ends then."""
import contextlib
import errno
import hmac
import json
import os
import stat

import pytest
from conftest import Forwarder, free_port, matches, mounted, need_fuse, run, tidegate, until
from noise import Secret, Unproved
from peer import Peer
from session import Refused

USER = 12345
# Users whom a mount with LIMITS acts for, and who are not its own.
OTHER, OUTSIDE, NOBODY = 12346, 54321, 65534
LIMITS = ("--role", "mount", "--root-squash", "--uids", "12000-12999,20000", "--gids", "12000-12999")


class Site:
    """One forwarder over TCP with secrets of all kinds."""

    def __init__(self, work):
        self.work, self.data, self.site = work, work.folder("data"), work / "site"
        tidegate("secret", "new", self.site)
        self.at = f"tcp:127.0.0.1:{free_port()}"
        self.old = work / "old"
        self.forwarder = Forwarder(work, "one", export=self.data, listen=[self.at], secret_file=self.site,
                                   old_secret_file=self.old, pid_file=work / "pid")
        self.data.chmod(0o755)

    def derive(self, name, *words, site=None):
        """A secret that was made of the site's."""
        path = self.work / name
        tidegate("secret", "derive", path, "--from", site or self.site, "--name", name, *words)
        return path

    @contextlib.contextmanager
    def reads_again(self, what):
        """The forwarder has read its secrets again at the end. Clients that it refused until then would use up
        the lines of its log about this node."""
        lines = lambda: self.forwarder.log.read_bytes().count(b"secret was read again")  # noqa: E731
        before = lines()
        yield
        until(lambda: lines() > before, f"the forwarder reads {what}")

    def client(self, secret, *words, code=0, **options):
        return tidegate(*words, "--forwarders", self.at, "--secret-file", secret, code=code, timeout=30, **options)


@pytest.fixture(scope="module")
def site(work):
    if os.geteuid():
        pytest.skip("only root's forwarders act for users")
    with work.part() as part:
        yield Site(part)


def test_what_each_may_administer(site):
    roles = {"site": site.site, "mount": site.derive("cn1", "--role", "mount"),
             "operator": site.derive("ann", "--role", "operator"),
             "user": site.derive("bob", "--role", "user", "--uid", USER, "--gid", USER)}
    for role, secret in roles.items():
        may = role in ("site", "operator")
        done = site.client(secret, "policy", "set", "fifo", code=None)
        assert (done.returncode == 0) == may, (role, done.stdout, done.stderr)
        if not may:
            assert done.stderr.count("\n") == 1 and matches("may|right|permi", done.stderr), done.stderr
        site.client(secret, "stat")
        shown = json.loads(tidegate("secret", "show", secret, "--json").stdout)
        assert shown["role"] == role and "key" not in tidegate("secret", "show", secret).stdout, shown


def test_what_each_may_do_with_files(site):
    need_fuse()
    (site.data / "private").write_text("root's alone")
    (site.data / "private").chmod(0o600)
    site.data.chmod(0o777)
    for folder in (site.work.path, *site.work.path.parents[:1]):
        folder.chmod(0o711)
    mount = site.work.folder("mnt")
    by_mount = site.derive("cn2", "--role", "mount")
    process = site.work.mount_at(mount, "--secret-file", by_mount, "--forwarders", site.at)
    as_user = ("setpriv", "--reuid", USER, "--regid", USER, "--clear-groups")
    run(*as_user, "sh", "-c", f"echo mine > {mount}/mine")
    assert (site.data / "mine").stat().st_uid == USER
    run(*as_user, "cat", mount / "private", code=1)
    assert (mount / "private").read_text() == "root's alone"
    process.terminate()
    process.wait(30)
    # A user's secret is that user, whoever mounts with it; an operator has no files.
    by_user = site.derive("cn3", "--role", "user", "--uid", USER, "--gid", USER)
    process = site.work.mount_at(mount, "--secret-file", by_user, "--forwarders", site.at)
    (mount / "ticket").write_text("made by root's process")
    assert (site.data / "ticket").stat().st_uid == USER
    run("cat", mount / "private", code=1)
    process.terminate()
    process.wait(30)
    by_operator = site.derive("cn4", "--role", "operator")
    done = site.client(by_operator, "mount", mount, "--foreground", code=None)
    assert done.returncode and done.stderr.count("\n") == 1, done.stderr
    assert not mounted(mount)


def test_what_is_not_a_right_secret(site):
    # A grant that its holder has widened; one that has expired; another site's; none.
    secret = site.derive("cn5", "--role", "user", "--uid", USER, "--gid", USER)
    widened = site.work.file("widened", secret.read_text().replace(f"uid={USER}", "uid=0"), 0o600)
    other = site.work / "other"
    tidegate("secret", "new", other)
    foreign = site.derive("cn6", "--role", "mount", site=other)
    for wrong in (widened, other, foreign):
        done = site.client(wrong, "stat", code=2)
        assert matches(f"wrong secret; is {wrong} its secret", done.stderr), done.stderr
    expired = secret.read_text() + "expires=1000000000\n"
    done = site.client(site.work.file("expired", expired, 0o600), "stat", code=2)
    assert matches("wrong secret", done.stderr), "a date that was added"
    done = tidegate("stat", "--forwarders", site.at, code=2, timeout=30)
    assert matches("asks for the shared secret", done.stderr), done.stderr
    # Wrong use of the command is told in one line.
    for words, say in [(("derive", "x", "--from", secret, "--role", "mount", "--name", "a"), "derived secret"),
                       (("derive", "x", "--from", site.site, "--role", "user", "--name", "a"), "--uid"),
                       (("derive", "x", "--from", site.site, "--role", "mount", "--name", "a b"), "name"),
                       (("new", site.site), "exists"), (("show", site.data / "mine"), "secret file")]:
        done = tidegate("secret", *words, code=2, cwd=site.work.path)
        assert done.stderr.count("\n") == 1 and say in done.stderr, done.stderr


def test_a_secret_is_replaced_without_a_restart(site):
    need_fuse()
    mount, kept = site.work.folder("mnt2"), site.work.file("kept", site.site.read_bytes(), 0o600)
    before = site.derive("cn7", "--role", "mount")
    site.work.mount_at(mount, "--secret-file", before, "--forwarders", site.at)
    (mount / "before").write_text("1")
    # Both are valid, then only the new one.
    with site.reads_again("the old secret"):
        os.replace(site.work.file("old.new", kept.read_bytes(), 0o600), site.old)
    new = site.work / "new"
    tidegate("secret", "new", new)
    with site.reads_again("the new secret"):
        os.replace(new, site.site)
    site.client(site.site, "stat")
    site.client(kept, "stat")
    (mount / "both").write_text("2")
    # The mount reads its file when it connects again.
    after = site.derive("cn7.new", "--role", "mount")
    os.replace(after, before)
    with site.reads_again("that the old one is gone"):
        site.old.unlink()
    site.client(kept, "stat", code=2)
    until(lambda: b"not valid any more" in site.forwarder.log.read_bytes(), "its session ends")
    (mount / "after").write_text("3")
    assert (site.data / "after").read_text() == "3"


def as_user(uid, *words, code=0):
    """Runs a program as that user, to its end."""
    return run("setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", *words, code=code)


def refused(call, *arguments, why=errno.EACCES, **how):
    """The call is answered with this errno."""
    with pytest.raises(Refused) as answer:
        call(*arguments, **how)
    assert answer.value.status == why, answer.value


@pytest.fixture
def roots(site):
    """A file of root's that nobody else may read, and one that others could if they reached it."""
    (site.data / "deep").mkdir(mode=0o700, exist_ok=True)
    for name, mode in (("roots", 0o600), ("deep/open", 0o644)):
        (site.data / name).write_text("root's alone")
        (site.data / name).chmod(mode)
    site.data.chmod(0o1777)
    yield site.data / "roots"
    (site.data / "roots").unlink()


def test_a_mount_for_some_users(site, roots):
    need_fuse()
    for folder in (site.work.path, *site.work.path.parents[:1]):
        folder.chmod(0o711)
    mount = site.work.folder("mnt3")
    limited = site.derive("cn8", *LIMITS)
    shown = json.loads(tidegate("secret", "show", limited, "--json").stdout)
    assert shown["limits"] == {"root_squash": "65534:65534", "uids": "12000-12999,20000", "gids": "12000-12999"}, shown
    site.work.mount_at(mount, "--secret-file", limited, "--forwarders", site.at)
    # Root is nobody.
    with pytest.raises(PermissionError):
        (mount / "roots").read_text()
    with pytest.raises(PermissionError):
        (mount / "roots").write_text("changed")
    (mount / "by-root").write_text("anonymous")
    made = (site.data / "by-root").stat()
    assert (made.st_uid, made.st_gid) == (NOBODY, NOBODY)
    for forbidden in (lambda: os.chown(mount / "by-root", 0, 0), lambda: os.chmod(mount / "roots", 0o666),
                      lambda: os.mknod(mount / "disk", stat.S_IFBLK | 0o666, os.makedev(7, 0)),
                      lambda: os.setxattr(mount / "by-root", "trusted.a", b"1"), (mount / "roots").unlink):
        with pytest.raises(PermissionError):
            forbidden()
    assert roots.read_text() == "root's alone" and roots.stat().st_uid == 0
    # A user for whom it acts can work, in folders of his own too, and past a restart of the forwarder.
    as_user(USER, "sh", "-c", f"umask 077; mkdir {mount}/home && echo mine > {mount}/home/file")
    assert (site.data / "home/file").stat().st_uid == USER
    work = (f"exec 3<>{mount}/home/file && flock 3 && echo ready && read go && echo more >&3 && cat {mount}/home/file"
            f" && sync {mount}/home/file && mv {mount}/home/file {mount}/home/moved && chmod 640 {mount}/home/moved")
    process = site.work.start("setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", "bash", "-c", work,
                              log=site.work / "holds.log", stdin=-1, stdout=-1)
    assert process.stdout.readline() == b"ready\n"
    site.forwarder.stop()
    site.forwarder.start()
    said, _ = process.communicate(b"go\n", timeout=60)
    assert (process.returncode, said) == (0, b"more\n"), (site.work / "holds.log").read_text()
    as_user(OTHER, "cat", mount / "home/moved", code=1)
    # Other users can do nothing, and are told of in one line.
    for words in (("cat", mount / "by-root"), ("ls", mount), ("touch", mount / "theirs")):
        assert as_user(OUTSIDE, *words, code=None).returncode, words
    assert not (site.data / "theirs").exists()
    until(lambda: site.forwarder.log.read_bytes().count(b"does not act") == 1, "a line of the log")
    sessions = json.loads(site.client(site.site, "stat", "--json").stdout)[0]["sessions"]
    session = next(it for it in sessions if it.get("secret", {}).get("name") == "cn8")
    assert session["secret"]["uids"] == "12000-12999,20000" and session["refused_callers"] >= 3, session
    # Without limits a mount may do all of it.
    free = site.work.folder("mnt4")
    site.work.mount_at(free, "--secret-file", site.derive("cn9", "--role", "mount"), "--forwarders", site.at)
    assert (free / "roots").read_text() == "root's alone"
    os.chown(free / "by-root", 0, 0)
    as_user(OUTSIDE, "cat", free / "by-root")


def test_who_steals_the_secret_of_such_a_mount(site, roots):
    made = roots.stat()
    handles = Peer(site.at, secret=Secret.read(site.site)).greeted()
    secret, deep = (handles.walk(name) for name in ("roots", "deep/open"))
    thief = Peer(site.at, secret=Secret.read(site.derive("cn10", *LIMITS))).greeted()
    for caller in (None, (0, 0), (0, 0, 0), (USER, USER, 0), (USER, 0), (20000, 12000, 6)):
        for done in (thief.read, thief.write, thief.append, thief.open, thief.allocate):
            with pytest.raises(Refused):
                done(secret, caller=caller)
        # Nor does a handle that he has guessed lead past a folder.
        for done in (thief.read, thief.attr, thief.open):
            with pytest.raises(Refused):
                done(deep, caller=caller)
        with pytest.raises(Refused):
            thief.resolve(deep, b"deep/open", caller=caller)
        with pytest.raises(Refused):
            thief.setattr(secret, mode=0o666, caller=caller)
    for caller in ((1, 1), (OUTSIDE, OUTSIDE), (NOBODY, 12000), (USER, 6), (2**32 - 1, 12000)):
        for done in (thief.attr, thief.read):
            refused(done, thief.root, caller=caller)
    refused(thief.policy, b"policy = \"fifo\"\n", why=errno.EPERM)
    for caller, owner in ((None, (NOBODY, NOBODY)), ((0, 0), (NOBODY, NOBODY)), ((USER, 0, 0), (USER, NOBODY)),
                          ((USER, 12001), (USER, 12001))):
        thief.make(thief.root, b"made", caller=caller)
        found = (site.data / "made").stat()
        assert (found.st_uid, found.st_gid) == owner, caller
        (site.data / "made").unlink()
    # What he has open as one of his users he may use for another.
    mine = thief.make(thief.root, b"mine", 0o600, caller=(USER, 12001))
    thief.open(mine, True, True, caller=(USER, 12001))
    thief.write(mine, data=b"mine", caller=(USER, 12001))
    assert thief.read(mine, length=4, caller=(OTHER, 12001)) == b"mine"
    assert roots.read_text() == "root's alone" and roots.stat().st_mode == made.st_mode
    assert b"root's alone" not in thief.heard
    # The site's secret can: the attempts are right.
    assert handles.read(secret, length=6) == b"root's" == handles.read(deep, length=6, caller=(0, 0))


def ticket_of(giver, uid, gid, groups=""):
    """A ticket as who has the giver's key can make it, for whomever he likes."""
    own = f"role=user\nuid={uid}\ngid={gid}\ngroups={groups}\nname=cn\nexpires=9000000000\n".encode()
    return Secret(own + b"\n" + giver.grant, hmac.digest(giver.key, b"tidegate ticket 1\0" + own, "sha256"),
                  giver.forwarders)


def test_limits_cannot_be_widened(site, roots):
    limited = Secret.read(site.derive("cn11", *LIMITS))
    words = limited.grant.decode()
    assert "root_squash=65534:65534\nuids=12000-12999,20000\ngids=12000-12999\n" in words, words
    for old, new in [(b"uids=12000", b"uids=1"), (b"uids=12000-12999,20000\n", b""), (b"root_squash=65534:65534\n", b""),
                     (b"65534:65534", b"1:1"), (b"gids=12000-12999\n", b""), (b"role=mount", b"role=site")]:
        assert old in limited.grant
        with pytest.raises((Unproved, ConnectionError)):
            Peer(site.at, secret=limited.saying(old, new)).greeted()
    # Tickets are for its users alone, with all of their groups.
    for ticket in [(OUTSIDE, 12000), (0, 0), (USER, 0), (USER, 6), (USER, 12000, "0"), (USER, 12000, "12001,6"), (NOBODY, NOBODY)]:
        with pytest.raises((Unproved, ConnectionError)):
            Peer(site.at, secret=ticket_of(limited, *ticket)).greeted()
    peer = Peer(site.at, secret=ticket_of(limited, USER, 12000, "12001")).greeted()
    made = peer.make(peer.root, b"by-ticket")
    peer.open(made, True, True)
    assert (site.data / "by-ticket").stat().st_uid == USER
    refused(peer.read, peer.lookup(peer.root, "roots"))
    # Wrong words of the command, each in one line.
    for words, say in [(("--role", "mount", "--uids", "9-7"), "ascend"), (("--role", "operator", "--root-squash"), "--role mount"),
                       (("--role", "mount", "--root-squash", "--anonuid", "0"), "anonymous"),
                       (("--role", "mount", "--anonuid", "5"), "--root-squash"), (("--role", "mount", "--gids", "x"), "id")]:
        done = tidegate("secret", "derive", "x", "--from", site.site, "--name", "a", *words, code=2, cwd=site.work.path)
        assert say in done.stderr, done.stderr


def test_limits_are_changed_while_a_mount_works(site, roots):
    need_fuse()
    mount, by = site.work.folder("mnt5"), site.derive("cn12", "--role", "mount")
    site.work.mount_at(mount, "--secret-file", by, "--forwarders", site.at)
    with open(mount / "roots", "rb", buffering=0) as kept:
        assert kept.read(4) == b"root"
        os.replace(site.derive("cn12.new", *LIMITS), by)
        site.forwarder.stop()
        site.forwarder.start()
        # What was open as root is nobody's now.
        with pytest.raises(OSError):
            kept.read(4)
        with pytest.raises(PermissionError):
            (mount / "roots").read_text()
    as_user(USER, "sh", "-c", f"echo mine > {mount}/limited")
    assert (site.data / "limited").stat().st_uid == USER
