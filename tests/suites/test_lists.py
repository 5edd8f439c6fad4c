"""Clients' lists of forwarders: what does not fit the export is told in one line; one address that is alive
is enough; one that is down keeps nobody from starting. Policy and rules that were set at run time are kept
for the export: over a restart, and for a forwarder that was away. A list may be in DNS, for which
forwarders, clients and a name server have a network and an /etc/resolv.conf of their own."""
import os
import re
import shutil
import signal
import socket
import threading

import pytest
from conftest import REPO, Forwarder, free_port, matches, mounted, need_fuse, ready, run, tidegate, until


class Site:
    """Forwarders of one export, with one secret, and clients of them."""

    def __init__(self, work, **program):
        self.work, self.program = work, program
        self.secret, self.mount = work.secret(), work.folder("mnt")
        self.sent = work.file("sent", os.urandom(3000000))

    def forwarder(self, name, export, index, *addresses):
        return Forwarder(self.work, name, **self.program, export=export, forwarder=index, seats=2, listen=addresses,
                         secret_file=self.secret, lease_ms=1000, grace_ms=0)

    def client(self, *words, at, secret=None, code=0):
        """A command with this list of forwarders."""
        return tidegate(*words, "--secret-file", secret or self.secret, "--forwarders", ",".join(map(str, at)),
                        code=code, timeout=30, **self.program)

    def ask(self, addresses, pattern="", code=0, answers=2, **secret):
        """The list is taken, and so many forwarders answer, or it ends with that code; what is told of it is
        one line with the pattern."""
        done = self.client("policy", "get", at=addresses.split(), code=code, **secret)
        assert code or len(re.findall("^forwarder [0-9]*: [a-z]", done.stdout, re.MULTILINE)) == answers, done.stdout
        assert done.stderr.count("\n") == bool(pattern) and matches(pattern, done.stderr), done.stderr

    def copied(self, name, data):
        """A copy by the mount arrives, and reads back."""
        shutil.copyfile(self.sent, self.mount / name)
        for folder in (self.mount, data):
            run("cmp", self.sent, folder / name)


class Two(Site):
    """Forwarders 0 and 1 of an export, and one of another export."""

    def __init__(self, work):
        super().__init__(work)
        self.data = work.folder("data")
        self.at = {name: f"unix:{work / name}.sock" for name in ("a", "b", "foreign", "none", "twin")}
        self.at |= {name: f"tcp:127.0.0.1:{free_port()}" for name in ("ta", "tb")}
        file = work.file("list", "# both\n{b}\n\n{a} # the second\n".format(**self.at))
        self.at |= {"list": f"@{file}", "nowhere": f"@{work / 'nowhere'}"}
        self.a = self.forwarder("a", self.data, 0, self.at["a"], self.at["ta"])
        self.b = self.forwarder("b", self.data, 1, self.at["b"], self.at["tb"])
        self.foreign = self.forwarder("foreign", work.folder("other"), 1, self.at["foreign"])

    def set(self, *words, **options):
        """A command for both."""
        return self.client(*words, at=(self.at["a"], self.at["b"]), **options)

    def follow(self, pattern, count):
        """So many come to follow the policy; what `policy get` says of them."""
        def said():
            return self.set("policy", "get", code=None).stdout
        return until(lambda: (found := said()) and len(
            re.findall(f"^forwarder [01]: {pattern}( |$)", found, re.MULTILINE)) == count and found, said)

    def restart(self):
        self.b.stop()
        self.b.start()


@pytest.fixture(scope="module")
def two(work):
    need_fuse()
    with work.part() as part:
        two = Two(part)
        yield two
        for forwarder in (two.a, two.b, two.foreign):
            forwarder.stop()


LEFT_OUT = "none.sock is named and left out .*No such file.*correct the list"


@pytest.mark.parametrize("names, pattern, code", [
    *((names, "", 0) for names in ("{a} {b}", "{b} {a}", "{tb} {ta}", "{a}", "{tb}", "{list}")),
    *((names, LEFT_OUT, 0) for names in ("{a} {none}", "{none} {a}")),
    ("{a} {ta}", "{a} and {ta} are one forwarder, 0 of 2; name each", 2),
    ("{a} {a}", "{a} is named twice", 2),
    ("{a} {foreign}", "{foreign} serves another export .*; name forwarders of one", 2),
    ("{a} {b} {none}", "3 addresses are named, and the export has 2.*none.sock", 2),
    ("{none}", "none.sock: No such file", 2), ("{nowhere}", "nowhere: No such file", 2)])
def test_a_list(two, names, pattern, code):
    two.ask(names.format(**two.at), pattern.format(**two.at), code)


def test_a_wrong_secret(two):
    wrong = two.work.secret("wrong")
    two.ask("{ta} {tb}".format(**two.at), f"{two.at['ta']} refused .*is {wrong} its secret", 2, secret=wrong)


class Imposter(threading.Thread):
    """Answers each connection with these bytes; None: never."""

    def __init__(self, answer):
        super().__init__(daemon=True)
        self.answer, self.taken = answer, []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.at = f"tcp:127.0.0.1:{self.socket.getsockname()[1]}"
        self.start()

    def run(self):
        while True:
            taken, _ = self.socket.accept()
            self.taken.append(taken)
            if self.answer:
                taken.recv(2048)
                taken.sendall(self.answer)


REFUSAL = b"TGC1\1\3\1\0\1"


@pytest.mark.parametrize("answer, said", [
    (REFUSAL, "is .* its secret"), (b"TGC1\1\2\1\0\1", "it does not prove"), (b"\n" * 200, ""), (None, "no answer")])
def test_an_imposter_keeps_nobody_out(two, answer, said):
    """He answers at an address of the list; the forwarders are the others."""
    def told():
        """What is said where only one of the two is named, which has to tell where the other is."""
        return "".join(two.client("policy", "get", at=[two.at[name]], code=None).stdout for name in ("ta", "tb"))

    until(lambda: len(re.findall("^forwarder [01]: fifo", told(), re.MULTILINE)) == 4, told)
    imposter = Imposter(answer)
    two.ask(f"{two.at['ta']} {imposter.at}", f"{imposter.at} is named and left out .*{said}.*correct the list")
    two.ask(f"{imposter.at} {two.at['tb']}", f"{imposter.at} is named and left out")
    two.ask(imposter.at, f"{imposter.at}.*{said}", 2)
    two.b.stop()
    two.client("policy", "get", at=(two.at["ta"], imposter.at))
    two.b.start()


@pytest.mark.parametrize("names", ["ta tb", "ta"])
def test_a_mount_beside_one_that_is_down(two, names):
    """By both addresses, or by that of the other one."""
    two.b.stop()
    two.ask(two.at["a"], answers=1)  # the other one's place is known
    two.client("mount", two.mount, at=[two.at[name] for name in names.split()])
    assert mounted(two.mount)
    two.copied(f"down.{len(names)}", two.data)
    two.b.start()
    run("cmp", two.sent, two.mount / f"down.{len(names)}")
    two.copied(f"again.{len(names)}", two.data)
    tidegate("umount", two.mount)


def test_the_policy_is_kept_for_the_export(two):
    two.set("policy", "set", "window", "window_ms=333")
    two.follow("window", 2)
    two.restart()
    assert two.follow("window", 2).count("window_ms=333") == 2
    assert matches("policy window from .*policy.toml", two.b.log.read_text())


def test_one_that_was_away_takes_what_is_kept(two):
    two.b.stop()
    assert "takes those that are kept for the export" in two.set("policy", "set", "sjf", code=None).stderr
    two.b.start()
    two.follow("sjf", 2)
    two.b.process.send_signal(signal.SIGSTOP)
    two.set("policy", "set", "wfq", code=None)
    two.set("share", "set", "job", "weight=3", code=None)
    two.b.process.send_signal(signal.SIGCONT)
    two.set("share", "remove", "job", code=None)
    two.follow("wfq", 2)


def test_what_is_temporary_goes_and_rules_stay(two):
    two.set("policy", "set", "fifo", "--temporary")
    two.restart()
    two.follow("wfq", 1)
    said = two.client("stat", "--check", at=[two.at["a"]], code=1).stdout
    assert matches("different policies: .*forwarder 0: fifo.*forwarder 1: wfq", said), said
    two.set("policy", "reset")
    two.follow("fifo", 2)
    kept = two.data / ".tidegate/policy.toml"
    assert not kept.exists()
    two.set("share", "set", "job", "weight=3")
    two.restart()
    said = two.set("share")
    assert matches("app *job", said.stdout) and "other rules" not in said.stderr
    kept.write_text('policy = "none such"')  # told at the start
    two.b.stop()
    said = tidegate("serve", "--config", two.b.config, code=2)
    assert matches("policy.toml.*none such.*remove that file", said.stdout + said.stderr)
    kept.unlink()
    two.b.start()


def test_two_forwarders_with_one_index(two):
    twin = two.forwarder("twin", two.data, 1, two.at["twin"])
    pattern = "forwarder 1 .*another process says that it is forwarder 1 too, at .*correct"

    def told(by):
        done = two.client("stat", "--check", at=[two.at[by]], code=None)
        return done.returncode == 1 and matches(pattern, done.stdout + done.stderr)
    until(lambda: told("a"), "stat --check does not tell it, from one address")
    # Either of the two finds the other by itself.
    until(lambda: told("twin"), "one of the two does not know of the other")
    said = two.client("drain", "1", at=[two.at["twin"]], code=1)
    assert matches("is not drained: another process", said.stdout + said.stderr)
    twin.stop()


TIDE = "@_tidegate._tcp.test"
RECORDS = """
io0.test=127.0.0.1 io1.test=127.0.0.1 _tidegate._tcp.test=10,0,4600,io0.test
_tidegate._tcp.test=0,5,4601,io1.test _long._tcp.test=0,5,4600,io0.test _long._tcp.test=0,5,4601,io1.test
_none._tcp.test=0,0,0,. _bare._tcp.test=127.0.0.1
""".split()
# Copies of mounts of other suites would keep these alive after they are unmounted.
APART = """
awk "\\$3 ~ /^fuse/ { print \\$2 }" /proc/mounts | xargs -r umount --lazy
ip link set lo up && { [ ! -e /etc/resolv.conf ] || mount --bind "$0" /etc/resolv.conf; } && exec "$@"
"""


class Named(Site):
    """Forwarders that a name server names, in a network of their own with it."""

    def __init__(self, work):
        resolve = work.file("resolv.conf", "nameserver 127.0.0.1\nsearch test\noptions timeout:1 attempts:1\n")
        self.names = work.start("unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", APART, resolve,
                                REPO / "tests/name_server.py", *RECORDS, log=work / "names.log")
        ready(self.names, work / "names.log", lambda: "ready" in (work / "names.log").read_text().split())
        self.within = "nsenter", "--target", str(self.names.pid), "--net", "--mount", "--"
        self.data = work.folder("named")
        super().__init__(work, within=self.within)
        self.forwarders = [self.forwarder(f"named.{index}", self.data, index, f"tcp:127.0.0.1:460{index}")
                           for index in (0, 1)]


@pytest.fixture(scope="module")
def named(work):
    need_fuse()
    if run("unshare", "--net", "--mount", "true", code=None).returncode:
        pytest.skip("no right to make namespaces, so no list in DNS was tried")
    if not shutil.which("ip"):
        pytest.skip("ip is missing, so no list in DNS was tried: run tools/need test")
    with work.part() as part:
        named = Named(part)
        yield named
        for forwarder in named.forwarders:
            forwarder.stop()


def test_a_list_in_dns_is_named_elsewhere(named):
    """In a file, in client.toml, or in the environment."""
    named.ask(f"@{named.work.file('list', f'{TIDE} # all')}")
    client = named.work.toml("client.toml", forwarders=[TIDE], secret_file=named.secret)
    for words, environment in ((["--client", client], {}),
                               (["--secret-file", named.secret], {"TIDEGATE_FORWARDERS": TIDE})):
        said = tidegate("policy", "get", *words, env=os.environ | environment, timeout=20, within=named.within).stdout
        assert len(re.findall("^forwarder [01]: fifo", said, re.MULTILINE)) == 2, said


def test_a_mount_by_a_list_in_dns(named):
    mount = named.work.mount_at(named.mount, "--secret-file", named.secret, "--forwarders", TIDE, within=named.within)
    run(*named.within, "sh", "-c", 'cp "$0" "$1/file" && cmp "$0" "$1/file" && cmp "$0" "$2/file"',
        named.sent, named.mount, named.data)
    tidegate("umount", named.mount, within=named.within)
    assert mount.wait(30) == 0


@pytest.mark.parametrize("names, pattern, code", [
    (TIDE, "", 0),
    ("@_tidegate._tcp", "", 0),
    ("@_long._tcp.test", "", 0),  # more than fits into UDP
    ("@_other._tcp.test", "^tidegate: forwarders: @_other._tcp.test: DNS has no such name; publish", 2),
    ("@_bare._tcp.test", "@_bare._tcp.test: the name has no SRV record in DNS; publish", 2),
    ("@_none._tcp.test", r'@_none._tcp.test: .* target "\."', 2),
    (f"{TIDE} tcp:io0.test:4600", f"{TIDE} stands beside others", 2),
    ("@_silent._tcp.test", "@_silent._tcp.test: no name server gives an answer .*timed out", 2)])
def test_a_list_in_dns(named, names, pattern, code):
    named.ask(names, pattern, code)


def test_a_name_server_that_hangs(named):
    named.names.send_signal(signal.SIGSTOP)
    named.ask(TIDE, f"{TIDE}: no name server gives an answer .*timed out", 2)
    named.names.send_signal(signal.SIGCONT)
