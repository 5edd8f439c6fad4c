"""What attempts of the suite `attack` have in common: a forwarder of root, two users, and a folder of the export
with files of one of them. An attempt is a function of an intruder's session and such a scene. It is judged by
the export, by what the intruder was told and by what the forwarder serves afterwards, and never by an error
alone. The same function, run by somebody who may, must be found out: so no attempt is without effect.
"""
import contextlib
import ctypes
import hashlib
import json
import os
import stat
import struct
import time

from conftest import Forwarder, free_port, stop, tidegate
from noise import Secret
from peer import NO, Peer, user

ATTEMPTS = []
GROUP = 7777
# How long what somebody may do takes to be seen, at most, in seconds.
CONTROL_S = 20


class Attempt:
    def __init__(self, kind, call, control, ways, why):
        self.kind, self.call, self.control, self.ways, self.why = kind, call, control, ways, why
        self.name = f"{kind}: {call.__name__.replace('_', ' ')}"


def attempt(kind, control, ways=("unix", "tcp", "open"), why=None):
    """Registers an attempt. `control` is who succeeds with it: the victim, root, or None, and then `why`."""
    assert control or why, "an attempt that nobody can make says why"

    def register(call):
        ATTEMPTS.append(Attempt(kind, call, control, ways, why))
        return call
    return register


class World:
    """A forwarder of root on a Unix socket and TCP, and what is needed to reach it as anybody."""

    def __init__(self, work, insecure=False, **keys):
        self.work, self.insecure = work, insecure
        self.data = work.folder("data")
        for folder, mode in (work.path.parent, 0o711), (work.path, 0o711), (self.data, 0o755):
            os.chmod(folder, mode)
        self.unix, self.tcp = f"unix:{work / 'socket'}", f"tcp:127.0.0.1:{free_port()}"
        self.secrets, self.scenes = {}, 0
        secure = {}
        if insecure:
            secure["insecure"] = True
        else:
            tidegate("secret", "new", work / "site")
            secure["secret_file"] = work / "site"
        self.forwarder = Forwarder(work, "forwarder", export=self.data, listen=[self.unix, self.tcp], sessions_max=4096,
                                   pool_bytes=16 << 20, reactors=2, lease_ms=600_000, **{"trace.file": work / "trace"}, **secure, **keys)
        self.root = Peer(self.unix).greeted()

    def secret(self, name, *words):
        """A secret that was made of the site's."""
        if name not in self.secrets:
            path = self.work / f"{name}.secret"
            if name != "site":
                tidegate("secret", "derive", path, "--from", self.work / "site", "--name", name, *words)
            self.secrets[name] = Secret.read(self.work / "site" if name == "site" else path)
        return self.secrets[name]

    def peer(self, way, uid, groups=()):
        """A connection as that user, before its hello."""
        if way == "unix":
            with user(uid, groups):
                return Peer(self.unix)
        if way == "open":
            peer = Peer(self.tcp)
            peer.wants = (uid, uid)
            return peer
        return Peer(self.tcp, secret=self.secret(
            f"user{uid}", "--role", "user", "--uid", uid, "--gid", uid))

    def state(self):
        return json.loads(self.root.status())

    def end(self):
        """Ends the forwarder, which has served until now."""
        self.root.bye()
        stop(self.forwarder.process)

    def log(self):
        return self.forwarder.log.read_bytes()


def statx_birth(path):
    """When a file was made, in ns, as handles have it."""
    buffer = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statx(-100, os.fsencode(path), 0x100, 0x800, buffer):
        raise OSError(ctypes.get_errno(), "statx", str(path))
    seconds, nanoseconds = struct.unpack_from("<qI", buffer, 80)
    return seconds * 1_000_000_000 + nanoseconds


def handle_of(path):
    """The handle of a file, as somebody computes it who can guess inode and birth."""
    return struct.pack("<QQ", os.lstat(path).st_ino, statx_birth(path))


class Scene:
    """A folder with files of a victim and a folder of the intruder's."""

    def __init__(self, world, way, uid, victim):
        self.world, self.way, self.uid, self.victim = world, way, uid, victim
        world.scenes += 1
        self.name = f"scene-{world.scenes}"
        self.path = world.data / self.name
        self.tokens, self.h, self.peers = {}, {}, []
        self.victims, self.proves = None, {}
        self.fill()
        for path in ("", "own", "own/file", "victim", "victim/shared", "victim/secret", "victim/empty", "victim/dir",
                     "victim/dir/inner", "victim/dir/link", "victim/sticky", "victim/sticky/kept", "victim/suid",
                     "victim/open", "victim/group", "victim/against"):
            self.learn(path)
        self.settle()

    def token(self, what):
        """Bytes that the intruder must not see."""
        self.tokens[what] = os.urandom(8).hex().encode()
        return self.tokens[what]

    def fill(self):
        make = self.make
        make("", 0, 0o755)
        make("own", self.uid, 0o755)
        make("own/file", self.uid, 0o644, b"of the intruder")
        make("victim", self.victim, 0o755)
        make("victim/shared", self.victim, 0o644, b"to be read by all")
        make("victim/secret", self.victim, 0o600, b"secret " + self.token("content of a 0600 file"))
        make("victim/empty", self.victim, 0o755)
        make("victim/dir", self.victim, 0o700)
        make("victim/dir/inner", self.victim, 0o644, b"inner " + self.token("content below a private directory"))
        self.hidden = self.token("name in a private directory").decode()
        make("victim/dir/" + self.hidden, self.victim, 0o644, b"")
        os.symlink(self.token("target of a private link"), self.path / "victim/dir/link")
        make("victim/sticky", self.victim, 0o1777)
        make("victim/sticky/kept", self.victim, 0o644, b"kept")
        make("victim/suid", self.victim, 0o6777, b"a program of the victim's")
        make("victim/open", self.victim, 0o666, b"anybody may write here")
        make("victim/group", self.victim, 0o640, b"group " + self.token("content for a group"), GROUP)
        make("victim/against", self.victim, 0o604, b"against " + self.token("content against a group"), GROUP)
        for name in "shared", "dir/inner", "secret":
            with contextlib.suppress(OSError):
                value = b"public" if name == "shared" else self.token(f"attribute of {name}")
                os.setxattr(self.path / "victim" / name, "user.token", value)
        # Its time tells whose attributes somebody was told.
        time = 10**18 + int.from_bytes(os.urandom(7), "little")
        self.tokens["attributes below a private directory"] = struct.pack("<q", time)
        os.utime(self.path / "victim/dir/inner", ns=(time, time))

    def make(self, name, uid, mode, content=None, gid=None):
        path = self.path / name
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)
        os.chown(path, uid, uid if gid is None else gid)
        path.chmod(mode)

    def learn(self, path):
        """A handle that the forwarder knows, since somebody has looked there; anybody could have guessed it."""
        folder, _, name = path.rpartition("/")
        root = self.world.root
        parent = self.h[folder.removeprefix("victim/")] if path else root.root
        handle = root.lookup(parent, name or self.name)
        assert handle == handle_of(self.path / path)
        self.h[path.removeprefix("victim/")] = handle

    def settle(self):
        """What the victim has now must stay so."""
        self.before = self.look()
        self.inodes = {fields[0] for fields in self.before.values()}
        state = self.world.state()
        self.served = self.service(state)

    def look(self):
        """Everything of the scene but the intruder's own folder."""
        seen = {}
        for path in [self.path, *self.path.rglob("*")]:
            name = str(path.relative_to(self.path))
            if name == "own" or name.startswith("own/"):
                continue
            found = os.lstat(path)
            content = xattrs = None
            if stat.S_ISREG(found.st_mode):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                xattrs = {key: os.getxattr(path, key) for key in os.listxattr(path)}
            elif stat.S_ISLNK(found.st_mode):
                content = os.readlink(path)
            seen[name] = (found.st_ino, found.st_mode, found.st_uid, found.st_gid, found.st_nlink, found.st_rdev,
                          0 if name == "." else found.st_mtime_ns, 0 if name == "." else found.st_ctime_ns, content, xattrs)
        return seen

    @staticmethod
    def service(state):
        return {key: state[key] for key in ("policy", "options", "shares", "draining", "asked_policy")}

    def planted(self):
        """What an intruder has in the own folder and could not have made there."""
        for path in (self.path / "own").rglob("*"):
            found = os.lstat(path)
            special = stat.S_ISBLK(found.st_mode) or stat.S_ISCHR(found.st_mode)
            foreign = found.st_uid != self.uid or found.st_gid != self.uid
            if special or foreign or found.st_ino in self.inodes:
                yield f"own/{path.name} is {stat.filemode(found.st_mode)} of {found.st_uid}:{found.st_gid}"
            if stat.S_ISREG(found.st_mode):
                content = path.read_bytes()
                yield from (f"own/{path.name} has {what}" for what, token in self.tokens.items() if token in content)
                yield from (f"own/{path.name} has {key}" for key in os.listxattr(path) if not key.startswith("user."))

    def peer(self, uid=None, groups=(), way=None, greet=True):
        """One more connection, the intruder's if nobody else's."""
        peer = self.world.peer(way or self.way, self.uid if uid is None else uid, groups)
        self.peers.append(peer)
        return peer.greeted() if greet else peer

    def victims_peer(self):
        """A session of the victim's, which must go on."""
        self.victims = self.peer(self.victim, way="unix")
        return self.victims

    @staticmethod
    def intruder_is_root(peer):
        """Whether this run of the attempt is that of root, who may."""
        return peer.as_whom == "root"

    @staticmethod
    def is_victim(peer):
        """Whether this run of the attempt is that of the victim, who may."""
        return peer.as_whom == "victim"

    @staticmethod
    def quietly(call, *words, **options):
        """Makes a call that may be refused, as one step of several; its result, or None."""
        try:
            return call(*words, **options)
        except NO:
            return None

    def as_victim(self, peer, victim):
        """Whose session does it: the victim's own where the victim shows that it can be done."""
        return victim if self.is_victim(peer) else peer

    def again(self, peer, other):
        """A connection of who attempts, before its hello, with the id of somebody else's session."""
        uid = {"root": 0, "victim": self.victim}.get(peer.as_whom, self.uid)
        again = self.peer(uid, way="unix" if peer.as_whom else self.way, greet=False)
        again.client = other.client
        return again

    def watcher(self, name):
        """A session of root's that asks for locks of a file."""
        root = self.peer(0, way="unix")
        root.open(self.h[name], write=True)
        return root

    def prove(self, what, call):
        """Registers what must be so afterwards."""
        self.proves[what] = call

    def harm(self, heard):
        """What is wrong now: what the intruder was told, has changed, or has."""
        found = [f"it was told the {what}" for what, token in self.tokens.items() if token in heard]
        after = self.look()
        for name in sorted(self.before.keys() | after.keys()):
            if self.before.get(name) != after.get(name):
                found.append(f"{name} changed: {self.before.get(name)} -> {after.get(name)}")
        found += self.planted()
        served = self.service(self.world.state())
        found += [f"{key}: {served[key]}" for key in served if served[key] != self.served[key]]
        if self.victims and not self.victims.alive():
            found.append("the victim's session has ended")
        for what, call in self.proves.items():
            if not self.quietly(call):
                found.append(f"not so any more: {what}")
        return found

    def end(self):
        for peer in self.peers:
            with contextlib.suppress(*NO):
                peer.bye()
            peer.end()


def harm_of(it, world, way, uid, victim, as_whom=None):
    """Runs an attempt in a scene of its own; what harm was found."""
    scene = Scene(world, way, uid, victim)
    heard = bytearray()
    try:
        if as_whom == "root":
            peer = scene.peer(0, way="unix")
        elif as_whom == "victim":
            peer = scene.peer(victim, way="unix")
        elif as_whom == "site":
            peer = Peer(world.tcp, secret=world.secret("site")).greeted()
            scene.peers.append(peer)
        else:
            peer = scene.peer(way=way)
        peer.as_whom = as_whom
        told = None
        try:
            told = it.call(peer, scene)
        except NO as error:
            scene.error = error
        for each in scene.peers:
            if each is peer or getattr(each, "intrudes", False):
                heard += each.heard
        harm = scene.harm(heard)
        # Who may do it is seen to: a forwarder that was asked does it a little later, also where the connection
        # has ended meanwhile.
        until = time.monotonic() + CONTROL_S
        while as_whom and not harm and not told and time.monotonic() < until:
            time.sleep(0.05)
            harm = scene.harm(heard)
        return harm + [str(told)] if told else harm
    finally:
        scene.end()
