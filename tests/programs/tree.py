"""Describes a directory tree as text, one line an entry, so that two trees can be compared.

Left out is what may rightly differ between two file systems: device and inode numbers, allocated
blocks, the size and link count of directories, and times. A time before 2020 was set on purpose by
a case and is compared.
"""
import hashlib, os, stat

SET_ON_PURPOSE_S = 1577836800  # 2020-01-01; the cases set times before it, no clock shows one
TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link", stat.S_IFIFO: "fifo",
         stat.S_IFSOCK: "socket", stat.S_IFCHR: "char", stat.S_IFBLK: "block"}


def content(path):
    """The sha256 of a file's bytes, or the error that reading it gave."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb", buffering=0) as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        return f"unreadable:{error.strerror}"
    return digest.hexdigest()


def xattrs(path):
    """The user's extended attributes of one entry as text."""
    try:
        names = sorted(n for n in os.listxattr(path, follow_symlinks=False) if n.startswith("user."))
        return "".join(f" {n}={os.getxattr(path, n, follow_symlinks=False)!r}" for n in names)
    except OSError:
        return ""


def describe(path, shown):
    """One line about one entry."""
    status = os.lstat(path)
    kind = TYPES[stat.S_IFMT(status.st_mode)]
    line = f"{shown} {kind} {stat.S_IMODE(status.st_mode):04o} {status.st_uid}:{status.st_gid}"
    if kind == "file":
        line += f" size={status.st_size} nlink={status.st_nlink} {content(path)}"
    elif kind == "link":
        line += f" size={status.st_size} -> {os.readlink(path)}"
    elif kind in ("char", "block"):
        line += f" {os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    if status.st_mtime < SET_ON_PURPOSE_S:
        line += f" mtime={status.st_mtime_ns}"
    return line + xattrs(path)


def snapshot(root):
    """The sorted lines of a whole tree, as one text."""
    lines = []

    def failed(error):
        lines.append(f"{os.path.relpath(error.filename, root)!r} unreadable:{error.strerror}")

    for folder, folders, files in os.walk(root, onerror=failed):
        for name in folders + files:
            path = os.path.join(folder, name)
            try:
                lines.append(describe(path, ascii(os.path.relpath(path, root))))
            except OSError as error:
                lines.append(f"{os.path.relpath(path, root)!r} cannot be looked at: {error.strerror}")
    return "\n".join(sorted(lines)) + "\n"
