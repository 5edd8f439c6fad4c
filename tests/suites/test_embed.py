"""The file server of examples/embed_in_c: several clients at once, another policy while they run, a client
that is killed, a full queue, wrong input, and an orderly end."""
import concurrent.futures
import contextlib
import os
import re
import shutil
import signal
import socket
import threading

import pytest
from conftest import LONG, REPO, kill, ready, run, stop, until

CLIENTS = range(4)
VALGRIND = ("valgrind", "--quiet", "--leak-check=full", "--errors-for-leak-kinds=definite,possible",
            "--error-exitcode=9", "--fair-sched=yes")


class Server:
    """The server over a folder of its own, and its clients."""

    def __init__(self, work, programs, size, *options, before=()):
        self.work, self.programs, self.socket, self.files = work, programs, work / "sock", work.folder("files")
        self.inputs = [work.file(f"in.{number}", os.urandom(size + number)) for number in CLIENTS]
        self.process = work.start(*before, programs / "server", self.socket, self.files, *options,
                                  stdout=open(work / "out", "wb"), log=work / "server.err")
        ready(self.process, work / "server.err", lambda: "ready" in (work / "out").read_text().split())

    def client(self, *words, code=0, **options):
        return run(self.programs / "client", self.socket, *words, code=code, timeout=120, text=False, **options)

    def putting(self, name, number):
        """A client that writes, in the background."""
        with open(self.inputs[number], "rb") as data:
            return self.work.start(self.programs / "client", self.socket, "put", name, stdin=data)

    def counts(self):
        found = re.findall(r"^(\w+) (\d+)$", self.client("stats").stdout.decode(), re.MULTILINE)
        return {key: int(value) for key, value in found}

    def turn(self, name):
        """Four clients write and read at once; what comes back is what was sent."""
        def one(number):
            sent = self.inputs[number].read_bytes()
            self.client("put", f"{name}.{number}", f"app{number}", stdin=None, input=sent)
            assert self.client("get", f"{name}.{number}", f"app{number}").stdout == sent, "a client reads other bytes"
            assert (self.files / f"{name}.{number}").read_bytes() == sent, "the folder has other bytes"
        with concurrent.futures.ThreadPoolExecutor(len(CLIENTS)) as pool:
            list(pool.map(one, CLIENTS))

    def begun(self, name, number, part=0):
        """A client that has written more than this part of the file, and goes on."""
        client, file = self.putting(name, number), self.files / name
        least = self.inputs[number].stat().st_size * part

        def written():
            return client.poll() is not None or file.exists() and file.stat().st_size > least
        until(written, f"{name} is not written", pause=0.001)
        return client

    def idle(self):
        """Nothing of a client that has gone stays queued."""
        until(lambda: self.counts()["queued"] == self.counts()["running"] == 0, self.counts)

    def finish(self):
        """SIGTERM ends it with 0, and no socket is left."""
        stop(self.process)
        assert not self.socket.exists()


@pytest.fixture(scope="module")
def programs(work):
    """The folder of the server and the client, which were built as users build them."""
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is missing: run tools/need test")
    with work.part() as part:
        stage, programs = part / "stage", part.folder("bin")
        run("make", "--silent", "-C", REPO, "install-libraries", f"PREFIX={stage}", timeout=500)
        os.environ |= {"PKG_CONFIG_PATH": f"{stage}/lib/pkgconfig", "LD_LIBRARY_PATH": f"{stage}/lib"}
        run("make", "--silent", "-C", REPO / "examples/embed_in_c", f"OUT={programs}")
        yield programs


@pytest.fixture(scope="module")
def server(work, programs):
    with work.part() as part:
        yield Server(part, programs, (200 if LONG else 8) * 1000000, "window", "window_ms=250")


def test_several_clients(server):
    server.turn("first")
    assert int(server.client("stat", "first.2").stdout) == server.inputs[2].stat().st_size


def test_another_policy_while_requests_are_on_their_way(server):
    done = threading.Event()

    def change():
        changes = 0
        while not done.is_set():
            for line in ("fifo", "round-robin", "window order=id", "fifo merge=true"):
                server.client("policy", line)
                changes += 1
        return changes
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        changes = pool.submit(change)
        try:
            server.turn("changing")
        finally:
            done.set()
        assert changes.result() > 0
    server.client("policy", "no-such-policy", code=1)
    assert 'there is no policy "no-such-policy"; known: aioli' in (server.work / "server.err").read_text()


def test_a_full_queue(server):
    server.client("policy", "fifo queued_max=8")
    before = server.counts()["full"]
    server.turn("full")
    assert server.counts()["full"] > before, "clients were not held back"


@pytest.mark.parametrize("policy", ["round-robin", "window window_ms=50"])
def test_a_killed_client(server, policy):
    server.client("policy", policy)
    for number in CLIENTS:
        victim = server.begun(f"killed.{number}", number, number / 5)
        another = server.putting(f"killed.{number}", number)
        kill(victim)
        # Under this policy it takes several windows to write all.
        assert victim.returncode == -signal.SIGKILL or policy == "round-robin", "it was not in the middle"
        assert another.wait(60) == 0
    server.turn("after")
    server.idle()


def test_wrong_input(server, work):
    server.client("get", "nothing", code=1)
    server.client("get", "../in.1", code=1)
    with socket.socket(socket.AF_UNIX) as noise:  # ends one connection
        noise.settimeout(10)
        noise.connect(str(server.socket))
        noise.sendall(b"x" * 100)
        with contextlib.suppress(ConnectionError):
            assert noise.recv(1) == b""
    assert int(server.client("stat", "after.1").stdout) == server.inputs[1].stat().st_size, "others go on"
    said = run(server.programs / "server", work / "sock2", server.files, "fifo", "depth=0", code=2).stderr
    assert "depth = 0 is outside" in said


def test_an_end_in_the_middle_of_writing(server):
    server.begun("last", 1)
    server.finish()


def test_under_valgrind(work, programs):
    with work.part() as part:
        server = Server(part, programs, 400000, before=VALGRIND)
        server.turn("valgrind")
        kill(server.begun("killed", 1))
        server.client("policy", "fifo merge=true")
        server.idle()
        server.finish()
