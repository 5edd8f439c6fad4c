"""What the secret of a site gives, and what secrets give that were made of it: a mount acts for its node's
users and administers nothing, an operator administers and reaches no file, a user is that user. A secret is
replaced without a restart, and what was proved by the old one ends then."""
import contextlib
import json
import os

import pytest
from conftest import Forwarder, free_port, matches, mounted, need_fuse, run, tidegate, until

USER = 12345


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
