"""`mount -t tidegate` and lines of an fstab, in a mount namespace whose /sbin has mount.tidegate alone: the mount is
there when mount(8) returns, a second `mount -a` leaves it, and what cannot be kept is refused by name."""
import os
import pathlib
import shutil

import pytest
from conftest import TIDEGATE, Forwarder, free_port, need_fuse, run, until


class Node:
    """A mount namespace with mount.tidegate, and a forwarder beside it."""

    def __init__(self, part):
        self.part, self.secret = part, part.secret()
        self.data, self.point = part.folder("data"), part.folder("mnt")
        self.address = f"tcp:127.0.0.1:{free_port()}"
        Forwarder(part, "forwarder", export=self.data, listen=[self.address], secret_file=self.secret)
        sbin = part.folder("sbin")
        # A copy, which ordinary users reach.
        shutil.copy(TIDEGATE, part / "tidegate")
        (sbin / "mount.tidegate").symlink_to(part / "tidegate")
        # The folder that /sbin leads to, of this namespace alone.
        there = pathlib.Path("/sbin").resolve()
        holder = part.start("unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$1" && exec sleep 9999', sbin, there)
        until(lambda: pathlib.Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n", "no namespace of mounts")
        self.within = ("nsenter", "--target", holder.pid, "--mount")
        self.holder = holder

    def mount(self, *words, **options):
        return run(*self.within, "mount", *words, **options)

    def is_mounted(self):
        return f" {self.point} fuse.tidegate " in pathlib.Path(f"/proc/{self.holder.pid}/mounts").read_text()

    def inside(self, *words, **options):
        return run(*self.within, *words, **options).stdout

    def umount(self):
        self.inside("umount", self.point)
        assert not self.is_mounted()


def is_at(process, program):
    """Whether a process of /proc runs this program."""
    try:
        return os.readlink(process / "exe") == str(program)
    except OSError:
        return False


@pytest.fixture(scope="module")
def node(work):
    need_fuse()
    if os.geteuid() != 0:
        pytest.skip("only root mounts by mount(8)")
    with work.part() as part:
        yield Node(part)


def test_the_mount_is_there_when_mount_returns(node):
    options = f"secret_file={node.secret},_netdev,nofail,x-systemd.automount,comment=a,ticket_s=9,allow_other,sandbox=on"
    node.mount("-t", "tidegate", node.address, node.point, "-o", options)
    assert node.is_mounted()
    node.inside("sh", "-c", 'echo text > "$0"/made', node.point)
    assert (node.data / "made").read_text() == "text\n"
    assert node.inside("findmnt", "--noheadings", "--output", "SOURCE", node.point).strip() == node.address
    # What finds mounts of root knows it, whatever it is called.
    own = {"TIDEGATE_MOUNT": str(node.point), "XDG_RUNTIME_DIR": str(node.part.folder())}
    assert "fifo" in node.inside(TIDEGATE, "stat", env=os.environ | own)
    again = node.mount("-t", "tidegate", node.address, node.point, "-o", options, code=None)
    assert again.returncode != 0 and "already mounted" in again.stderr, again
    node.umount()


def test_a_line_of_fstab_mounts_once(node):
    table = node.part.file("fstab", f"{node.address} {node.point} tidegate rw,secret_file={node.secret},_netdev,noatime 0 0\n")
    for words in ((node.point,), ("--all",), ("--all",)):
        node.mount("--fstab", table, *words)
        assert node.is_mounted()
    mounts = node.inside("findmnt", "--noheadings", "--list", "--output", "TARGET", "--types", "fuse.tidegate")
    assert mounts.split().count(str(node.point)) == 1, mounts
    node.umount()
    # It can wait until somebody asks for it.
    line = f"{node.address} {node.point} tidegate noauto,secret_file={node.secret} 0 0\n"
    table.write_text(line)
    node.mount("--fstab", table, "--all")
    assert not node.is_mounted()


def test_files_of_addresses_and_of_clients_name_forwarders(node):
    addresses = node.part.file("addresses", f"# One.\n{node.address}\n")
    node.mount("-t", "tidegate", f"@{addresses}", node.point, "-o", f"secret_file={node.secret}")
    assert node.is_mounted()
    node.umount()
    client = node.part.toml("client.toml", forwarders=[node.address], secret_file=node.secret)
    # Whatever the caller's shell says.
    elsewhere = os.environ | {"TIDEGATE_FORWARDERS": f"tcp:127.0.0.1:{free_port()}", "TIDEGATE_MUNGE": "nonsense"}
    node.mount("-t", "tidegate", "none", node.point, "-o", f"client={client}", env=elsewhere)
    assert node.is_mounted()
    node.umount()


def test_a_copy_of_the_program_is_the_helper_too(node):
    copy = node.part.folder("copy") / "mount.tidegate"
    shutil.copy(TIDEGATE, copy)
    node.inside(copy, node.address, node.point, "-o", f"secret_file={node.secret}")
    assert node.is_mounted()
    # What serves the mount is in the group of nobody who waited for it.
    [pid] = [path.name for path in pathlib.Path("/proc").glob("[0-9]*") if is_at(path, copy)]
    assert os.getpgid(int(pid)) == int(pid)
    node.umount()


def test_letters_of_mount(node):
    options = f"secret_file={node.secret}"
    node.mount("-t", "tidegate", "-f", node.address, node.point, "-o", options)
    assert not node.is_mounted(), "-f only looks"
    refused = node.mount("-t", "tidegate", "-f", node.address, node.point, "-o", "ticket_s=2", code=1).stderr
    assert "must be 0, or from 3" in refused, refused
    told = node.mount("-t", "tidegate", "-fv", node.address, node.point, "-o", options).stdout
    assert f"tidegate mount {node.point} --secret-file={node.secret}" in told, told
    node.mount("-t", "tidegate", "-sn", node.address, node.point, "-o", f"{options},of_another_system=1")
    assert node.is_mounted()
    node.umount()


@pytest.mark.parametrize("option, said", [
    ("ro", "mount.tidegate: ro: there are no read-only mounts"),
    ("noexec", "mount.tidegate: noexec: "),
    ("sync", "mount.tidegate: sync: "),
    ("cheks=kernel", "mount.tidegate: cheks: no option"),
    ("foreground", "mount.tidegate: foreground: "),
    ("secret_file", "mount.tidegate: secret_file: say secret_file=VALUE"),
    ("client=/none", "options name forwarders too"),
    ("sandbox=perhaps", "mount.tidegate: invalid value 'perhaps' for '--sandbox"),
])
def test_what_cannot_be_kept_is_refused(option, said, node):
    refused = node.mount("-t", "tidegate", node.address, node.point, "-o", option, code=1).stderr
    assert said in refused and refused.count("\n") == 1, refused
    assert not node.is_mounted()


def test_without_forwarders_it_ends_with_a_message(node):
    nobody = f"tcp:127.0.0.1:{free_port()}"
    refused = node.mount("-t", "tidegate", nobody, node.point, "-o", f"secret_file={node.secret}", code=None)
    assert refused.returncode not in (0, None) and nobody in refused.stderr, refused
    assert not node.is_mounted()


def test_an_ordinary_user_uses_the_same_words(node):
    """mount(8) starts the helper with his rights, for lines with the option `user`."""
    words = ("setpriv", "--reuid", 4242, "--regid", 4242, "--clear-groups")
    helper = "/sbin/mount.tidegate"
    node.part.path.chmod(0o711), node.part.path.parent.chmod(0o711)
    told = run(*node.within, *words, helper, node.address, node.point, "-f", "-v", "-o", "rw,user=joe,exec,nosuid,nodev")
    assert f"mount.tidegate: tidegate mount {node.point} --forwarders={node.address}" in told.stdout, told
