"""An overlay whose upper directory lies on the mount is as one on a plain directory."""
import contextlib
import os
import shutil
import stat

import pytest
from conftest import run

SCRIPT = """
set -e
echo more >> changed
echo new > new
mv moved moved.1
mv changed both
rm removed
rm -r gone
rm -r again; mkdir again; echo other > again/other
mkdir dir/made
mv dir/file dir/made/file
ln both dir/link
ln -s both symlink
chmod 600 dir/made/file
echo temporary > temporary; rm temporary
truncate -s 100000 long
"""


def lower(folder):
    for name in ("changed", "moved", "removed", "long", "gone/file", "again/file", "dir/file", "dir/left"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode() * 1000)
    return folder


@contextlib.contextmanager
def overlay(under, over, at):
    for folder in (over / "upper", over / "work", at):
        folder.mkdir(exist_ok=True)
    options = f"lowerdir={under},upperdir={over}/upper,workdir={over}/work"
    run("mount", "-t", "overlay", "tidegate-test", "-o", options, at)
    try:
        yield at
    finally:
        run("umount", at)


def tree(root):
    """All that is in a folder: kinds, modes, numbers of devices, attributes and bytes."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            state = os.lstat(path)
            seen = [stat.S_IFMT(state.st_mode), stat.S_IMODE(state.st_mode), state.st_rdev]
            if stat.S_ISREG(state.st_mode):
                with open(path, "rb") as file:
                    seen.append(file.read())
            opaque = {name for name in os.listxattr(path, follow_symlinks=False) if name.endswith("opaque")}
            found[os.path.relpath(path, root)] = (*seen, opaque)
    return found


def test_an_upper_directory_on_the_mount(work, forwarders):
    if os.geteuid() != 0:
        pytest.skip("overlays need root")
    with open("/proc/filesystems") as known:
        if "overlay" not in known.read():
            pytest.skip("this kernel has no overlays")
    under, plain = lower(work.folder()), work.folder()
    with forwarders(4) as up:
        seen, uppers = [], []
        for over in (plain, up.mount / "layers"):
            over.mkdir(exist_ok=True)
            at = work.folder()
            with overlay(under, over, at):
                run("sh", "-c", SCRIPT, cwd=at)
                seen.append(tree(at))
            with overlay(under, over, at):
                seen.append(tree(at))
            uppers.append(tree(over / "upper"))
        assert seen == [seen[0]] * 4
        assert uppers[0] == uppers[1]
        assert stat.S_IFCHR == uppers[1]["moved"][0]
        shutil.rmtree(up.mount / "layers")
