"""Attempts from the network: without a secret, with one of another site, with a grant that was changed, has
expired or is for something else, and by somebody who hears what others send."""
import base64
import os
import socket
import struct
import subprocess
import threading

import noise
from conftest import TIDEGATE, tidegate
from peer import NO, SYMLINK, Peer, blob, short

from .scene import attempt

TCP = ("tcp",)


def network(control="site", why=None):
    return attempt("network", control, TCP, why)


def marks(s):
    """Requests that would leave a mark, and would be told a secret."""
    def mark(p):
        p.root = getattr(p, "root", None) or s.world.root.root
        p.intrudes = True
        s.quietly(p.mkdir, s.h["victim"], "planted")
        s.quietly(p.read, s.h["secret"])
        s.quietly(p.policy, b"depth = 5\n")
    return mark


def as_site(s, p):
    return p.as_whom == "site"


def patience(s, p):
    """Seconds to wait for an answer: one that must come may be late, and one that may not come is not waited for."""
    return 30 if as_site(s, p) else 0.3


def peer_with(s, secret, least=noise.OFF):
    try:
        peer = Peer(s.world.tcp, secret=secret, least=least)
    except NO:
        return None
    s.peers.append(peer)
    s.quietly(peer.greeted)
    return peer


def tries(name, secret_of, control="site"):
    """The same requests with a secret that is made from the scene."""
    def call(p, s):
        peer = p if as_site(s, p) else peer_with(s, secret_of(s))
        if peer:
            marks(s)(peer)
    call.__name__ = name
    network(control)(call)


def user(s):
    return s.world.secret(f"user{s.uid}", "--role", "user", "--uid", s.uid, "--gid", s.uid)


def grant_with(s, text, key=None):
    """A grant with the user's key, or another one."""
    return noise.Secret(text, key or user(s).key, user(s).forwarders)


def random_secret(s):
    return grant_with(s, user(s).grant, os.urandom(32))


for name, secret_of in {
        "no secret": lambda s: None,
        "a random key": random_secret,
        "a random key for the site": lambda s: grant_with(s, b"role=site\n", os.urandom(32)),
        "a key of zeros": lambda s: grant_with(s, b"role=site\n", bytes(32)),
        "the forwarders' public key as key": lambda s: grant_with(s, b"role=site\n", user(s).forwarders),
        "another site's key": lambda s: noise.Secret(b"role=site\n", os.urandom(32), noise.public_of(os.urandom(32))),
        "a forwarders' key of small order": lambda s: noise.Secret(user(s).grant, user(s).key, bytes(32)),
        "a grant with uid 0": lambda s: user(s).saying(b"uid=%d" % s.uid, b"uid=0"),
        "a grant with the victim's uid": lambda s: user(s).saying(b"uid=%d" % s.uid, b"uid=%d" % s.victim),
        "a grant with another gid": lambda s: user(s).saying(b"gid=%d" % s.uid, b"gid=0"),
        "a grant with more groups": lambda s: user(s).saying(b"groups=", b"groups=7777"),
        "a grant that became a mount's": lambda s: grant_with(s, b"role=mount\nname=a\n"),
        "a grant that became an operator's": lambda s: grant_with(s, b"role=operator\nname=a\n"),
        "a grant that became the site's": lambda s: grant_with(s, b"role=site\n"),
        "a grant with another name": lambda s: user(s).saying(b"name=", b"name=x"),
        "a grant with an expiry": lambda s: grant_with(s, user(s).grant + b"expires=9999999999\n"),
        "a grant of two roles": lambda s: grant_with(s, b"role=site\n" + user(s).grant),
        "an empty grant": lambda s: grant_with(s, b""),
        "a grant of 10,000 bytes": lambda s: grant_with(s, user(s).grant + b"x" * 10000)}.items():
    tries(name, secret_of)


def expired(s):
    """A grant that was the site's word, and has expired; made by hand, since `derive` makes none."""
    site = (s.world.work / "site").read_bytes().rstrip()
    text = b"role=mount\nname=old\nexpires=1000000000\n"
    key = noise.hmac.digest(site, b"tidegate grant 1\0" + text, "sha256")
    return noise.Secret(text, key, user(s).forwarders)


tries("an expired grant", expired)


def operator(s):
    return s.world.secret("operator", "--role", "operator")


def mount(s):
    return s.world.secret("mount", "--role", "mount")


def operates(name, act):
    def call(p, s):
        peer = p if as_site(s, p) else peer_with(s, operator(s))
        peer.intrudes = True
        act(peer, s)
    call.__name__ = "an operator " + name
    network()(call)


for name, act in {
        "reads": lambda p, s: p.read(s.h["secret"]),
        "opens": lambda p, s: p.open(s.h["dir/inner"]),
        "asks for attributes": lambda p, s: p.attr(s.h["dir/inner"]),
        "lists": lambda p, s: p.listing(s.h["dir"]),
        "resolves": lambda p, s: p.resolve(s.h["dir/inner"], f"{s.name}/victim/dir/inner"),
        "writes": lambda p, s: p.write(s.h["shared"]),
        "creates": lambda p, s: p.make(s.h["victim"], "planted"),
        "unlinks": lambda p, s: p.unlink(s.h["victim"], "shared"),
        "acts as root": lambda p, s: p.make(s.h["victim"], "planted", caller=(0, 0)),
        "acts as a user": lambda p, s: p.make(s.h["victim"], "planted", caller=(s.victim, s.victim)),
        "reads a link": lambda p, s: p.readlink(s.h["dir/link"]),
        "reads an extended attribute": lambda p, s: p.xattr(s.h["secret"], "user.token")}.items():
    operates(name, act)


def mounts(name, act):
    def call(p, s):
        peer = p if as_site(s, p) else peer_with(s, mount(s))
        act(peer, s)
    call.__name__ = "a mount " + name
    network()(call)


for name, act in {
        "sets the policy": lambda p, s: p.policy(b"depth = 6\n"),
        "saves a policy": lambda p, s: p.policy(b"depth = 7\n", keep=1),
        "sets shares": lambda p, s: p.shares(b'[[app]]\nname = "m"\nweight = 2\n'),
        "sets the policy as root": lambda p, s: p.policy(b"depth = 9\n", caller=(0, 0))}.items():
    mounts(name, act)


# Who listens on the way.

def between(s, p):
    """A session of the site's that makes a folder; all that it sent, as it went over the network."""
    peer = Peer(s.world.tcp, secret=s.world.secret("site")).greeted()
    s.peers.append(peer)
    peer.mkdir(s.h["victim"], "marked")
    sent = list(peer.socket.sent)
    os.rmdir(s.path / "victim/marked")
    s.settle()
    return peer, sent


def plain(s):
    port = int(s.world.tcp.rpartition(":")[2])
    wire = socket.create_connection(("127.0.0.1", port), 5)
    wire.settimeout(0.3)
    return wire


def pour(s, pieces):
    """Sends bytes on a new connection, and waits for what comes of it."""
    wire = plain(s)
    heard = b""
    try:
        for piece in pieces:
            wire.sendall(piece)
            heard += wire.recv(1 << 16)
    except OSError:
        pass
    wire.close()
    return heard


@network("site")
def all_that_was_sent_again(p, s):
    peer, sent = between(s, p)
    if as_site(s, p):
        peer.mkdir(s.h["victim"], "marked")
    pour(s, sent)


@network("site")
def the_greeting_again_and_plain_frames(p, s):
    peer, sent = between(s, p)
    frame = peer.frame(18, s.h["victim"] + b"\7planted" + struct.pack("<I", 0o755))
    if as_site(s, p):
        peer.socket.sendall(frame)
        peer.take()
    pour(s, [sent[0], frame])


@network("site")
def the_greeting_again_with_no_protection(p, s):
    peer, sent = between(s, p)
    at = 8 + 8
    changed = sent[0][:at] + b"\0" + sent[0][at + 1:]
    if as_site(s, p):
        peer.mkdir(s.h["victim"], "marked")
    pour(s, [changed, *sent[1:]])


@network("site")
def a_frame_behind_somebody_elses_records(p, s):
    peer, sent = between(s, p)
    frame = peer.frame(18, s.h["victim"] + b"\7planted" + struct.pack("<I", 0o755))
    peer.socket.socket.sendall(peer.socket.record(frame) if as_site(s, p) else frame)
    s.quietly(peer.take)


@network("site")
def a_record_of_the_same_session_again(p, s):
    peer, sent = between(s, p)
    if as_site(s, p):
        peer.mkdir(s.h["victim"], "marked")
    else:
        peer.socket.socket.sendall(sent[-1])
        s.quietly(peer.take)


def changes(name, change):
    def call(p, s):
        peer, _ = between(s, p)
        record = peer.socket.record(peer.frame(18, s.h["victim"] + b"\7planted" + struct.pack("<I", 0o755)))
        peer.socket.socket.sendall(record if as_site(s, p) else change(record))
        peer.socket.settimeout(patience(s, p))
        s.quietly(peer.take)
    call.__name__ = "a record " + name
    network("site")(call)


for name, change in {
        "with one bit changed": lambda r: r[:40] + bytes([r[40] ^ 1]) + r[41:],
        "with its tag changed": lambda r: r[:-1] + bytes([r[-1] ^ 1]),
        "without its end": lambda r: r[:-3],
        "of another length": lambda r: struct.pack("<I", len(r) - 5) + r[4:],
        "of no bytes before it": lambda r: struct.pack("<I", 0) + r,
        "of 4 GiB": lambda r: b"\xff\xff\xff\xff" + r[4:],
        "with bytes before it": lambda r: b"\0" + r}.items():
    changes(name, change)


@network("site")
def records_in_another_order(p, s):
    peer, _ = between(s, p)
    # Each in a reply slot of its own, for both are under way at once.
    frame = lambda name, slot: peer.frame(18, s.h["victim"] + short(name) + struct.pack("<I", 0o755), index=slot)
    first, second = peer.socket.record(frame("first", 0)), peer.socket.record(frame("second", 1))
    peer.socket.socket.sendall(first + second if as_site(s, p) else second + first)
    peer.socket.settimeout(patience(s, p))
    s.quietly(peer.take)
    s.quietly(peer.take)


@network(None, why="what was sent is there to be heard")
def hears_what_is_sent(p, s):
    token = s.token("name that somebody sends")
    peer = Peer(s.world.tcp, secret=s.world.secret("site")).greeted()
    s.peers.append(peer)
    peer.call(SYMLINK, s.h["own"] + b"\4name" + blob(token))
    assert any(peer.socket.sent) and peer.socket.way == noise.ON
    os.unlink(s.path / "own/name")
    s.settle()
    return any(token in piece for piece in peer.socket.sent)


@network(None, why="the stronger of both ends holds")
def asks_for_no_protection(p, s):
    return None if p.socket.way == noise.ON else f"protection {p.socket.way}"


# Who answers in a forwarder's place.

def answers(name, answer_of, secret_of=mount):
    """A client greets a listener that is not the forwarder; it must say nothing more than its greeting."""
    def call(p, s):
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(5)
        port = listener.getsockname()[1]
        ours = noise.Handshake(secret_of(s), noise.ON)
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(ours.greeting)
        there, _ = listener.accept()
        there.settimeout(5)
        greeting = there.recv(1 << 16)
        answer = answer_of(s, greeting)
        for each in (client, there, listener):
            each.close()
        try:
            ours.finish(answer)
        except NO + (IndexError,):
            return None
        return None if as_site(s, p) else "the client believes it"
    call.__name__ = "answers " + name
    network(None, "no one but a forwarder can")(call)


def framed(kind, content):
    return b"TGC1\x01" + bytes([kind]) + struct.pack("<H", len(content)) + content


answers("with random bytes", lambda s, g: framed(noise.ANSWERS, os.urandom(49)))
answers("with the greeting itself", lambda s, g: g)
answers("with the client's own key", lambda s, g: framed(noise.ANSWERS, g[-48:-16] + os.urandom(17)))
answers("with a key of zeros", lambda s, g: framed(noise.ANSWERS, bytes(49)))


@network("site")
def a_real_client_at_a_false_forwarder(p, s):
    """`tidegate stat` with the site's secret, at a port where somebody passes on what a forwarder says to another
    greeting. It must end, and nothing must follow its greeting."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(30)
    heard = bytearray()
    other = noise.Handshake(s.world.secret("site"))

    def pose():
        there, _ = listener.accept()
        there.settimeout(30)
        heard.extend(there.recv(1 << 16))
        wire = plain(s)
        wire.settimeout(30)
        # The real one's answer, to this client's greeting or to another one.
        wire.sendall(bytes(heard) if as_site(s, p) else other.greeting)
        there.sendall(wire.recv(1 << 16))
        first = len(heard)
        # A client that believes this goes on; one that does not closes its connection.
        try:
            heard.extend(there.recv(1 << 16))
        except OSError:
            pass
        there.close()
        wire.close()
        said.append(len(heard) - first)
    said = []
    thread = threading.Thread(target=pose)
    thread.start()
    at = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
    subprocess.run([TIDEGATE, "stat", "--forwarders", at, "--secret-file", s.world.work / "site"],
                   capture_output=True, timeout=100, check=False)
    thread.join(150)
    listener.close()
    assert said, "the client did not come, or the forwarder did not answer"
    return bool(said[0])


@network(None, why="a key is kept where only its owner reads it")
def a_secret_that_others_may_read(p, s):
    path = s.world.work / f"exposed-{s.name}"
    path.write_text(base64.b64encode(os.urandom(32)).decode())
    path.chmod(0o644)
    done = tidegate("stat", "--forwarders", s.world.tcp, "--secret-file", path, code=None)
    return None if done.returncode else "it was used"
