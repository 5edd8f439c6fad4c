"""Programs written by others, on compute nodes: they find what they find on a local disk."""
import os
import re
import subprocess
import sys

from checks_data import same
from cluster import REPO
from nodes import Failed
from registry import DISTRIBUTED, check


def tool(name):
    """The path of a program that tools/need has built."""
    done = subprocess.run([f"{REPO}/tools/need", "--path", name], stdout=subprocess.PIPE, text=True,
                          stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Failed(f"{name} is not built: run tools/need {name}")
    return done.stdout.strip()


def each_node(c, start, seconds):
    """Starts a program on every compute node at once; all must end with 0."""
    programs = [start(node) for node in c.compute]
    for program in programs:
        if program.wait(seconds) != 0:
            raise Failed(f"{program.node.name}: {' '.join(program.words)[:200]}:\n{program.tail()}")


@check(DISTRIBUTED)
def fsx(c):
    """fsx on both compute nodes, each on a file of its own."""
    path, count = tool("fsx"), 1000 if c.quick else 5000

    def start(node):
        node.run("mkdir", "-p", f"{node.dir}/fsx")
        return node.start(path, "-q", "-N", count, "-S", c.seed % 100000, "-P", f"{node.dir}/fsx",
                          f"{c.tide}/fsx-{node.name}")
    each_node(c, start, 900)
    return f"{count} operations, seed {c.seed % 100000}"


@check(DISTRIBUTED)
def fio(c):
    """fio writes at random and verifies, on both compute nodes, 4 processes each."""
    each_node(c, lambda node: node.start(
        "fio", "--name=verify", f"--directory={c.tide}", f"--filename_format={node.name}.$jobnum",
        "--rw=randwrite", "--bsrange=512-256k", "--bs_unaligned", "--size=16m", "--numjobs=4", "--fsync=64",
        "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--randrepeat=0", f"--randseed={c.seed}",
        "--group_reporting", cwd=node.dir), 600)


# Cases for which a back end has no means: they do on Tidegate what they do on the bare back end.
UNLIKE_PLAIN = {
    "ceph": {"holes"},              # ceph-fuse finds no holes and reserves no room
    "gluster": {"removed-folder"},  # a name in it is ESTALE, and not ENOENT
}
CASES = {name[:-3] for name in os.listdir(f"{REPO}/tests/programs/cases") if name.endswith(".sh")}


@check(DISTRIBUTED)
def programs(c):
    """The list of programs in tests/programs does on both compute nodes what it does on a plain folder."""
    wanted = set(os.environ.get("CASES", "").split()) or CASES
    unlike = wanted & UNLIKE_PLAIN.get(c.kind, set())
    if unlike:
        c.mount_bare()

    def comparing(folder, cases, *flags):
        def start(node):
            first, tested = f"{folder(node)}/{node.name}", f"{c.tide}/programs-{node.name}"
            node.run("mkdir", "-p", first, tested)
            # Two nodes at once, each name a trip to the bricks: 120 s are few for 2,000 files.
            return node.start("env", "CASE_TIME_LIMIT_S=600", sys.executable, "-B",
                              f"{REPO}/tests/programs/compare", *flags, "--name", f"{node.name}/",
                              first, tested, *sorted(cases))
        if cases:
            each_node(c, start, 3600)
    comparing(lambda node: f"{node.dir}/plain", wanted - unlike)
    comparing(lambda node: c.bare, unlike, "--may-fail")
    return f"{len(wanted)} cases, {len(unlike)} of them as on the bare back end"


PJDFSTEST = """[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.1
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"""


@check(DISTRIBUTED)
def pjdfstest(c):
    """Every POSIX case that passes on the bare back end passes on Tidegate over it."""
    program, node = tool("pjdfstest"), c.compute[0]
    node.write("pjdfstest.toml", PJDFSTEST)
    c.mount_bare()

    def passing(folder):
        node.run("mkdir", "-p", folder)
        text = node.run(program, "-c", f"{node.dir}/pjdfstest.toml", "-p", folder, check=False, timeout=1800)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        return set(re.findall(r"^(\S+)\s+ok$", plain, re.M)), plain
    wanted, _ = passing(c.bare + "/pjd")
    wanted.discard("link::link_count_max")     # LINK_MAX, which the C library does not know of FUSE
    got, text = passing(c.tide + "/pjd")
    same("most cases pass on the back end", len(wanted) > 200, True)
    if missing := sorted(wanted - got):
        lines = [line for name in missing[:8] for line in text.split("\n") if line.startswith(name)]
        raise Failed(f"{len(missing)} of {len(wanted)} fail on Tidegate: {' '.join(missing)}\n" + "\n".join(lines))
    return f"{len(wanted)} cases"
