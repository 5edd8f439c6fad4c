"""The stressors of file systems that stress-ng has give on the mount, and with the short-cut, the verdicts that they
give in a plain directory: passed, failed, or skipped, with the reason."""
import functools
import os
import re
import shutil
import signal
import subprocess

import pytest
from conftest import LONG, REPO, TIDEGATE, need_fuse

# The short form's take little time, and look at what the mount itself does: names, modes, locks, attributes.
QUICK = ["access", "chmod", "fcntl", "flock", "lockofd", "rename", "touch", "xattr"]
# Of other classes, what they do with files.
MORE = ["aio", "aiol", "msync", "readahead", "revio", "seek", "sendfile"]
SECONDS = 3 if LONG else 1
# Ends what hangs. `link` and `symlink` take 8,192 names away after their time is over.
SECONDS_MAX = 300
SMALL = [f"--{option}={size}" for option, size in {
    "chdir-dirs": 64, "copy-file-bytes": "128M", "dentries": 64, "dir-dirs": 64, "fallocate-bytes": "16M", "fiemap-bytes": "16M",
    "hdd-bytes": "16M", "iomix-bytes": "16M", "msync-bytes": "16M", "readahead-bytes": "16M", "revio-bytes": "16M", "seek-size": "16M",
    "sync-file-bytes": "16M"}.items()]
# Stressors that ask for what the mount has not, or the short-cut: what they say there, and a word that docs/semantics.md
# has among its limits.
LACKING = {("fiemap", "mount"): ("skipped", "FS_IOC_FIEMAP not supported", "FIEMAP"),
           ("fiemap", "shortcut"): ("skipped", "FS_IOC_FIEMAP not supported", "FIEMAP"),
           ("dnotify", "shortcut"): ("failed", "did not get expected dnotify", "dnotify")}


def stressors():
    """All of the class, as this version of stress-ng has them, and more."""
    if not LONG or not shutil.which("stress-ng"):
        return QUICK
    told = subprocess.run(["stress-ng", "--class", "filesystem?"], check=True, capture_output=True, text=True)
    return told.stdout.partition(":")[2].split() + MORE


def verdict(name, folder, before=()):
    """What stress-ng says of a stressor in that folder, in which it leaves nothing."""
    folder.mkdir()
    process = subprocess.Popen(
        [*before, "stress-ng", f"--{name}", "1", "--timeout", f"{SECONDS}s", "--verify", "--temp-path", folder, *SMALL],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        said, _ = process.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        pytest.fail(f"{name} in {folder}: no end after {SECONDS_MAX} s")
    print(said)
    assert not os.listdir(folder), f"{name} leaves {os.listdir(folder)}"
    folder.rmdir()
    reasons = {line for line in said.splitlines() if "skipping" in line or "disabled" in line}
    failed = {line for line in said.splitlines() if line.startswith("stress-ng: fail:")}
    kind = "failed" if failed or process.returncode == 2 else "skipped" if reasons else "passed"
    # Numbers are of processes and sizes.
    return kind, process.returncode, sorted({re.sub(r"\d+", "N", line.partition("] ")[2]) for line in failed | reasons})


@pytest.fixture(scope="module")
def up(forwarders):
    need_fuse()
    if not shutil.which("stress-ng"):
        pytest.skip("stress-ng is missing: run tools/need test")
    with forwarders(4) as up:
        yield up


@pytest.fixture(scope="module")
def plain(up):
    """The verdict in the plain directory, once for all ways."""
    return functools.cache(lambda name: verdict(name, up.plain / name))


@pytest.mark.parametrize("way", ["mount", "shortcut"] if LONG else ["mount"])
@pytest.mark.parametrize("name", stressors())
def test_as_in_a_plain_directory(up, plain, name, way):
    before = ["env", "TIDEGATE_SHORTCUT=eager", TIDEGATE, "run", "--state-dir", up.state, "--"] if way == "shortcut" else []
    wanted, got = plain(name), verdict(name, up.mount / f"{name}.{way}", before)
    print(name, way, wanted, got)
    if (name, way) in LACKING and wanted[0] == "passed":
        kind, said, _ = LACKING[name, way]
        assert got[0] == kind and len(got[2]) == 1 and said in got[2][0], got
    else:
        assert got == wanted


def test_what_is_lacking_is_named():
    limits = (REPO / "docs/semantics.md").read_text().partition("\n## Limits\n")[2]
    assert all(word in limits for _, _, word in LACKING.values())
