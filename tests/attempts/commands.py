"""Attempts on who runs `tidegate`: state directories that somebody else has laid out, and root that is none."""
import os
import socket
import subprocess
import threading
import time

from conftest import TIDEGATE

from .scene import attempt

COMMANDS = {"stat": ["stat"], "policy": ["policy", "get"], "share": ["share", "list"], "run": ["run", "--", "true"]}


def tool(*words, uid, env=None, within=(), trap=None):
    """A command of a user, to its end, for 30 s, or until it is in the trap."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("TIDEGATE", "XDG"))}
    words = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", *within, TIDEGATE, *words]
    process = subprocess.Popen([str(word) for word in words], env=clean | (env or {}), stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
    end = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < end and not (trap and trap.count):
        time.sleep(0.005)
    process.kill()
    process.wait()


class Trap:
    """A socket of the intruder's, and a state directory that leads to it."""

    def __init__(self, s, name="state", owner=None, mode=0o700):
        self.count = 0
        # Sockets have short names.
        self.folder = s.world.work / f"t{s.world.scenes}"
        self.folder.mkdir()
        self.folder.chmod(0o1777)
        self.state = self.folder / name
        self.state.mkdir()
        where = self.folder / "socket"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(where))
        where.chmod(0o777)
        self.listener.listen(16)
        (self.state / "client.toml").write_text(f'forwarders = ["unix:{where}"]\n')
        (self.state / "client.toml").chmod(0o644)
        os.chown(self.state, s.uid if owner is None else owner, -1)
        self.state.chmod(mode)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        try:
            while True:
                there, _ = self.listener.accept()
                self.count += 1
                there.close()
        except OSError:
            pass

    def caught(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        return f"{self.count} connections to the intruder's socket" if self.count else None


def victims(p, s):
    """Whose directory it is: in the control the victim's own, which is used."""
    return s.victim if s.is_victim(p) else s.uid


def traps():
    def of(name, words):
        def by_option(p, s):
            trap = Trap(s, owner=victims(p, s))
            tool(*words[:1], *words[1:2] * (words[0] in ("policy", "share")), "--state-dir", trap.state,
                 *(words[1:] if words[0] == "run" else ()), uid=s.victim, trap=trap)
            return trap.caught()

        def by_environment(p, s):
            trap = Trap(s, owner=victims(p, s))
            tool(*words, uid=s.victim, env={"TIDEGATE_STATE_DIR": str(trap.state)}, trap=trap)
            return trap.caught()

        def by_a_runtime_directory(p, s):
            trap = Trap(s, "tidegate", owner=victims(p, s))
            os.chown(trap.folder, victims(p, s), -1)
            trap.folder.chmod(0o755)
            tool(*words, uid=s.victim, env={"XDG_RUNTIME_DIR": str(trap.folder), "TMPDIR": "/nowhere"}, trap=trap)
            return trap.caught()

        def by_the_temporary_directory(p, s):
            trap = Trap(s, f"tidegate-{s.victim}", owner=victims(p, s))
            tool(*words, uid=s.victim, env={"TMPDIR": str(trap.folder)}, trap=trap)
            return trap.caught()

        def by_a_mode_for_all(p, s):
            trap = Trap(s, owner=s.victim, mode=0o700 if s.is_victim(p) else 0o777)
            tool(*words, uid=s.victim, env={"TIDEGATE_STATE_DIR": str(trap.state)}, trap=trap)
            return trap.caught()

        def by_a_link(p, s):
            trap = Trap(s, owner=s.victim)
            os.symlink(trap.state, trap.folder / "link")
            at = trap.state if s.is_victim(p) else trap.folder / "link"
            tool(*words, uid=s.victim, env={"TIDEGATE_STATE_DIR": str(at)}, trap=trap)
            return trap.caught()
        for call in (by_option, by_environment, by_a_runtime_directory, by_the_temporary_directory, by_a_mode_for_all,
                     by_a_link):
            call.__name__ = f"{name} {call.__name__}"
            control = "victim" if name == "stat" else None
            attempt("state directories", control, ways=("unix",), why="shown by stat, which chooses the same way")(call)
    for name, words in COMMANDS.items():
        of(name, words)


traps()


@attempt("state directories", None, ways=("unix",), why="no process has locked such a file")
def down_ends_a_process_that_a_file_names(p, s):
    trap = Trap(s, owner=s.victim)
    sleeper = subprocess.Popen(["setpriv", "--reuid", str(s.victim), "--clear-groups", "sleep", "60"])
    for name in ("up.pid", "mount.pid", "forwarder.0.pid"):
        (trap.state / name).write_text(f"{sleeper.pid}\n")
        os.chown(trap.state / name, s.victim, -1)
    tool("down", "--state-dir", trap.state, uid=s.victim)
    ended = sleeper.poll() is not None
    sleeper.kill()
    sleeper.wait()
    trap.caught()
    return ended and "a process was ended that is no forwarder"


@attempt("state directories", None, ways=("unix",), why="logs are not written through links")
def up_writes_through_links(p, s):
    trap = Trap(s, owner=s.uid, mode=0o777)
    (trap.state / "client.toml").unlink()
    kept = s.world.work / f"kept-{s.name}"
    kept.write_text("kept")
    os.chown(kept, s.victim, -1)
    for name in ("up.log", "mount.log", "forwarder.0.log", "forwarder.0.toml", "client.toml", "up.pid", "lock"):
        os.symlink(kept, trap.state / name)
    export = s.world.work / f"export-{s.name}"
    export.mkdir()
    os.chown(export, s.victim, -1)
    tool("up", export, "--no-mount", "--state-dir", trap.state, uid=s.victim)
    trap.caught()
    return kept.read_text() != "kept" and "a file was written through a link"


# Root without root's rights.

def powerless(name, *within):
    def call(p, s):
        before = s.world.state()["options"]["depth"]
        words = ("policy", "set", "fifo", f"depth={before + 1}", "--forwarders", s.world.unix)
        tool(*words, uid=0, within=() if s.intruder_is_root(p) else within)
    call.__name__ = name
    attempt("root without rights", "root", ways=("unix",))(call)


for name, within in {
        "in a user namespace": ("unshare", "--user", "--map-root-user"),
        "in a namespace of a namespace": ("unshare", "--user", "--map-root-user", "unshare", "--user", "--map-root-user"),
        "without any capability": ("setpriv", "--bounding-set=-all", "--inh-caps=-all"),
        "without the right to administer": ("setpriv", "--bounding-set=-sys_admin"),
        "without the right to read": ("setpriv", "--bounding-set=-dac_override,-dac_read_search")}.items():
    powerless(name, *within)


@attempt("root without rights", "root", ways=("unix",))
def a_user_who_made_himself_root(p, s):
    before = s.world.state()["options"]["depth"]
    words = ("policy", "set", "fifo", f"depth={before + 1}", "--forwarders", s.world.unix)
    if s.intruder_is_root(p):
        tool(*words, uid=0)
    else:
        tool(*words, uid=s.uid, within=("unshare", "--user", "--map-root-user"))
