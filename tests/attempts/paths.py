"""Attempts to leave the export, or to get at the forwarder's hidden folder, by names, links and paths."""
import fcntl
import os

from peer import LOOKUP, short, user

from .scene import attempt, handle_of

NOBODY = "the protocol has no such name, for nobody"


def hard(why=NOBODY):
    return attempt("paths", None, why=why)


def reached(p, handle):
    """Whether something was found under a name that there is not; its attributes tell what."""
    return f"found {handle.hex()}" if handle and handle not in (p.root,) else None


NAMES = [b"..", b".", b"", b"/", b"../..", b"/etc", b"/etc/passwd", b"victim/dir", b"own/../victim/dir", b"\0", b"victim\0",
         b"a" * 255 + b"b", b"//", b"..\0", b".tidegate", b".tidegate/", b"./.tidegate"]


def shown(name):
    """A name in words, as the name of an attempt."""
    if len(name) > 100:
        return f"{len(name)} bytes"
    for part, word in ("/", " slash "), ("\0", " NUL "), ("..", " up "), (".", " dot "):
        name = name.replace(part, word)
    return " ".join(name.split()) or "nothing"


def name_attempts():
    def of(name):

        def look_up(p, s):
            parent = p.root if b"tidegate" in name else s.h[""]
            return reached(p, p.call(LOOKUP, parent + short(name))[0][:16])

        def make(p, s):
            parent = p.root if b"tidegate" in name else s.h[""]
            p.mkdir(parent, name)
            return "it was made"
        look_up.__name__, make.__name__ = ("look up " + shown(name.decode()), "make " + shown(name.decode()))
        hard()(look_up)
        hard()(make)
    for name in NAMES:
        of(name)


name_attempts()


def path_attempts():
    def of(path):
        def resolve(p, s):
            return reached(p, p.resolve(s.h["dir/inner"], path.replace("SCENE", s.name)))
        resolve.__name__ = "resolve " + shown(path)
        hard()(resolve)
    for path in ("..", "../..", "SCENE/../..", "/etc/passwd", "/", "SCENE//victim", "SCENE/./victim/dir/inner",
                 "SCENE/victim/dir/link", ".tidegate", ".tidegate/export", "x/" * 2000 + "x"):
        of(path)


path_attempts()


def outside(s, name="outside"):
    """A file of root's beside the export, which must stay as it is."""
    path = s.world.work / f"{s.name}-{name}"
    path.write_bytes(b"outside " + s.token("content outside of the export"))
    path.chmod(0o666)

    def was():
        found = os.stat(path)
        return path.read_bytes(), found.st_mode, found.st_mtime_ns, found.st_nlink, os.listxattr(path)
    before = was()
    s.prove("what is outside of the export is as it was", lambda: was() == before)
    return path


def links(why="links are followed by clients alone"):
    return attempt("links", None, why=why)


def own_link(p, s, target):
    return p.symlink(s.h["own"], "link", target)


@links()
def look_up_through_an_own_link_to_slash(p, s):
    link = own_link(p, s, "/")
    return reached(p, p.lookup(link, "etc"))


@links()
def list_through_an_own_link(p, s):
    link = own_link(p, s, s.path / "victim/dir")
    p.listing(link)


@links()
def create_through_an_own_link(p, s):
    link = own_link(p, s, s.path / "victim/sticky")
    p.make(link, "planted")


@links()
def read_through_an_own_link(p, s):
    link = own_link(p, s, outside(s))
    s.quietly(p.open, link)
    p.read(link)


@links()
def write_through_an_own_link(p, s):
    link = own_link(p, s, outside(s))
    s.quietly(p.open, link, write=True)
    s.quietly(p.write, link)
    p.append(link)


@links()
def truncate_through_an_own_link(p, s):
    p.setattr(own_link(p, s, outside(s)), size=0)


@links()
def change_a_mode_through_an_own_link(p, s):
    p.setattr(own_link(p, s, outside(s)), mode=0o777)


@links()
def change_a_time_through_an_own_link(p, s):
    p.setattr(own_link(p, s, outside(s)), mtime=1)


@links()
def set_an_attribute_through_an_own_link(p, s):
    p.set_xattr(own_link(p, s, outside(s)), "user.mark", b"1")


@links()
def link_through_an_own_link(p, s):
    link = own_link(p, s, outside(s))
    p.link(link, s.h["own"], "hard")
    assert os.path.islink(s.path / "own/hard")


@links()
def copy_through_an_own_link(p, s):
    link = own_link(p, s, outside(s))
    p.copy(link, s.h["own/file"])


@links()
def allocate_through_an_own_link(p, s):
    p.allocate(own_link(p, s, outside(s)))


@links()
def resolve_through_an_own_link(p, s):
    link = own_link(p, s, s.path / "victim/dir")
    return reached(p, p.resolve(link, f"{s.name}/own/link/inner"))


@links()
def create_over_an_own_link(p, s):
    own_link(p, s, outside(s))
    handle = p.make(s.h["own"], "link")
    p.write(handle)


@links()
def read_a_magic_link(p, s):
    for target in ("/proc/self/environ", "/proc/self/root/etc/shadow", "/proc/self/fd/3", "/proc/1/root"):
        link = p.symlink(s.h["own"], os.path.basename(target), target)
        s.quietly(p.open, link)
        found = s.quietly(p.read, link) or s.quietly(p.listing, link)
        if found:
            return f"{target}: {found!r}"


@links("a pipe is opened by its user's kernel")
def open_a_pipe_that_nobody_writes(p, s):
    pipe = p.mknod(s.h["own"], "pipe", 0o010644)
    s.prove("the forwarder serves others", lambda: s.world.root.alive())
    s.quietly(p.open, pipe)
    s.quietly(p.read, pipe)
    s.quietly(p.write, pipe)
    s.quietly(p.setattr, pipe, size=0)
    s.prove("the session is answered", p.alive)


@links("a socket is opened by its user's kernel")
def open_a_socket(p, s):
    node = p.mknod(s.h["own"], "socket", 0o140644)
    s.quietly(p.open, node)
    s.quietly(p.read, node)
    s.prove("the session is answered", p.alive)


@attempt("links", None, why="renames are races between two users")
def a_directory_that_becomes_a_link(p, s):
    # The name changes between the look-up and the use: the handle is that of the directory.
    folder = p.mkdir(s.h["own"], "folder")
    os.rename(s.path / "own/folder", s.path / "own/was")
    os.symlink(s.path / "victim/dir", s.path / "own/folder")
    os.lchown(s.path / "own/folder", s.uid, s.uid)
    s.quietly(p.listing, folder)
    p.make(folder, "inside")
    assert (s.path / "own/was/inside").exists()


# The hidden folder holds the seats, what was opened, and the saved rules.

def hidden():
    return attempt("hidden folder", None, why="the hidden folder is nobody's")


def hidden_handles(s):
    folder = s.world.data / ".tidegate"
    return [handle_of(path) for path in (folder, *sorted(folder.rglob("*"))) if not path.is_symlink()]


def untouched(s):
    folder = s.world.data / ".tidegate"
    look = lambda: sorted((str(path), os.lstat(path).st_ino, os.lstat(path).st_mode, os.lstat(path).st_uid)
                          for path in (folder, *folder.glob("*")) if path.is_dir())
    before = look()
    s.prove("the hidden folder is as it was", lambda: look() == before)


@hidden()
def attributes_by_handle(p, s):
    for handle in hidden_handles(s):
        if s.quietly(p.attr, handle):
            return f"attributes of {handle.hex()}"


@hidden()
def read_by_handle(p, s):
    for handle in hidden_handles(s):
        s.quietly(p.open, handle)
        if s.quietly(p.read, handle):
            return f"bytes of {handle.hex()}"


@hidden()
def list_by_handle(p, s):
    for handle in hidden_handles(s):
        if s.quietly(p.listing, handle):
            return f"names in {handle.hex()}"


@hidden()
def write_by_handle(p, s):
    untouched(s)
    for handle in hidden_handles(s):
        if s.quietly(p.write, handle) or s.quietly(p.setattr, handle, mode=0o777):
            return f"wrote to {handle.hex()}"


@hidden()
def look_up_in_it_by_handle(p, s):
    return reached(p, p.lookup(hidden_handles(s)[0], "export"))


@hidden()
def create_in_it_by_handle(p, s):
    untouched(s)
    for handle in hidden_handles(s):
        if s.quietly(p.mkdir, handle, "planted"):
            return "it was made"


@hidden()
def rename_it(p, s):
    untouched(s)
    p.rename(p.root, ".tidegate", p.root, "x")


@hidden()
def rename_something_over_it(p, s):
    untouched(s)
    p.rename(s.h["own"], "file", p.root, ".tidegate")


@hidden()
def exchange_it(p, s):
    untouched(s)
    p.rename(p.root, ".tidegate", s.h["own"], "file", 2)


@hidden()
def remove_it(p, s):
    untouched(s)
    s.quietly(p.rmdir, p.root, ".tidegate")
    p.unlink(p.root, ".tidegate")


@hidden()
def link_into_it(p, s):
    untouched(s)
    p.link(s.h["own/file"], hidden_handles(s)[0], "planted")
    return "it was linked"


@hidden()
def find_it_in_a_list(p, s):
    return b".tidegate" in p.listing(p.root, plus=0)


# The same by the file system of the node, where the export is mounted for all.

def locally():
    return attempt("hidden folder", "root", ways=("unix",))


def as_intruder(p, s, call):
    with user(0 if s.intruder_is_root(p) else s.uid):
        return call()


@locally()
def list_it_locally(p, s):
    return as_intruder(p, s, lambda: os.listdir(s.world.data / ".tidegate"))


@locally()
def read_the_seat_locally(p, s):
    folder = s.world.data / ".tidegate"
    seats = [path for path in folder.rglob("*") if path.is_file()]
    return as_intruder(p, s, lambda: [open(path, "rb").read(1) for path in seats] and "read")


@locally()
def lock_the_seat_locally(p, s):
    path = s.world.data / ".tidegate" / "probe"

    def lock():
        with open(path, "w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
        os.unlink(path)
        return "locked a file there"
    return as_intruder(p, s, lock)


@locally()
def rename_it_locally(p, s):
    def move():
        os.rename(s.world.data / ".tidegate", s.world.data / "x")
        os.rename(s.world.data / "x", s.world.data / ".tidegate")
        return "it was moved"
    return as_intruder(p, s, move)


@locally()
def replace_the_socket(p, s):
    path = s.world.work / "socket"

    def replace():
        os.rename(path, f"{path}.x")
        os.rename(f"{path}.x", path)
        return "the socket was replaced"
    return as_intruder(p, s, replace)


@locally()
def read_the_trace(p, s):
    return as_intruder(p, s, lambda: open(s.world.work / "trace", "rb").read(1))


@locally()
def write_the_trace(p, s):
    return as_intruder(p, s, lambda: open(s.world.work / "trace", "r+b").name)


@locally()
def read_the_secret(p, s):
    return as_intruder(p, s, lambda: bool(open(s.world.work / "site", "rb").read(1)))
