"""Checks of bytes, sizes and names from two compute nodes, without a fault."""
import random

from nodes import Failed, until
from registry import DISTRIBUTED, check

ALL = ("plain", *DISTRIBUTED)
UNCACHED = ("ceph-uncached", "gluster-uncached")


def pattern(seed, length):
    return random.Random(seed).randbytes(length)


def same(what, got, wanted):
    """Fails and says where two texts begin to differ."""
    if got == wanted:
        return
    if isinstance(got, bytes) and isinstance(wanted, bytes):
        at = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), min(len(got), len(wanted)))
        more = got[at:]
        kind = "zeros" if more and not any(more) else f"such as {more[:16].hex()}"
        raise Failed(f"{what}: {len(got)} bytes and not {len(wanted)}, different from byte {at} on ({kind})")
    raise Failed(f"{what}: {got!r} and not {wanted!r}")


@check(ALL, quick=("ceph",))
def append(c):
    """Records appended from two nodes at once: each is there, whole, once."""
    path, count = c.tide + "/log", 300
    c.compute[0].run("sh", "-c", f": > {path}")
    writers = [node.start("python3", "-B", c.program("append.py"), "write", path, node.name, str(count))
               for node in c.compute]
    for writer in writers:
        if writer.wait(120) != 0:
            raise Failed(f"{writer.node.name}: {writer.tail()}")
    for node in c.compute:
        node.run("python3", "-B", c.program("append.py"), "check", path,
                 *(f"{other.name}:{count}" for other in c.compute))


@check((*ALL, "gluster-uncached"), quick=("ceph",))
def model(c):
    """Two clients write, truncate, measure and read one file at random, against a model."""
    seed = c.seed
    chance, agents = random.Random(seed), [c.agent(0), c.agent(1)]
    path, content, steps = c.tide + "/model", b"", 400 if c.quick else 1200
    agents[0].write_file(path, b"")
    files = [agent.open(path, 2) for agent in agents]
    for step in range(steps):
        who = chance.randrange(2)
        agent, file = agents[who], files[who]
        where = f"seed {seed}, step {step}, node cn{who}"
        action = chance.choice(("write", "truncate", "size", "read", "read"))
        if action == "write":
            at = chance.randrange(0, 3 << 20)
            data = chance.randbytes(chance.choice((1, 100, 4096, 70000, 1 << 20)))
            agent.write_all(file, data, at)
            content = content[:at].ljust(at, b"\0") + data + content[at + len(data):]
        elif action == "truncate":
            to = chance.randrange(0, 4 << 20)
            agent.ftruncate(file, to)
            content = content[:to].ljust(to, b"\0")
        elif action == "size":
            same(f"{where}: fstat", agent.size(file), len(content))
        else:
            at, length = chance.randrange(0, 4 << 20), chance.choice((1, 4096, 300000, 2 << 20))
            same(f"{where}: pread at {at}", agent.pread(file, length, at), content[at:at + length])
    return f"seed {seed}, {steps} steps"


@check((*DISTRIBUTED, "gluster-default"), serve=False)
def copy_and_append(c):
    """`cp s t; ls -l t; cat s >> t`, again and again: never short, never overwritten."""
    c.serve_or_refused()
    if c.refused:
        return c.refused
    data = pattern(1, 4_000_000)
    for turn in range(6):
        first, second = (c.agent((turn + side) % 2) for side in (0, 1))
        source, target = f"{c.tide}/s{turn}", f"{c.tide}/t{turn}"
        first.write_file(source, data)
        node = c.compute[turn % 2]
        node.run("cp", source, target)
        node.run("ls", "-l", target)
        same(f"turn {turn}: size elsewhere", second.path_size(target), len(data))
        node.run("sh", "-c", f"cat {source} >> {target}")
        same(f"turn {turn}: the copy, seen elsewhere", second.read_file(target), data + data)


@check(DISTRIBUTED)
def sizes(c):
    """A writer's own fstat, and link counts, while others extend and link."""
    one, other = c.agent(0), c.agent(1)
    for turn in range(8):
        path = f"{c.tide}/size{turn}"
        one.write_file(path, b"")
        file, there = one.open(path, 2), other.open(path, 2)
        other.size(there)
        one.write_all(file, b"x" * 3_000_000, 0)
        same(f"turn {turn}: fstat of the writer", one.size(file), 3_000_000)
        same(f"turn {turn}: fstat elsewhere", other.size(there), 3_000_000)
        appender = other.open(path, 1 | 0o2000)
        other.write(appender, b"y" * 10)
        same(f"turn {turn}: size after an append elsewhere", one.size(file), 3_000_010)
        one.ftruncate(file, 100)
        same(f"turn {turn}: size after a truncate elsewhere", other.size(there), 100)
        one.link(path, path + "l")
        same(f"turn {turn}: links", other.links(path), 2)


@check(DISTRIBUTED)
def read_extended(c):
    """A file that was read here and extended there is read here to its new end."""
    one, other = c.agent(0), c.agent(1)
    for turn in range(6):
        path, data = f"{c.tide}/grows{turn}", pattern(turn, 4_195_091)
        other.write_file(path, data[:1_000_777])
        same("before", one.read_file(path), data[:1_000_777])
        file = other.open(path, 2)
        other.write_all(file, data[1_000_777:], 1_000_777)
        text = c.compute[0].run("sh", "-c", f"cat {path} | wc -c")
        same(f"turn {turn}: bytes that cat reads", int(text), len(data))
        same(f"turn {turn}: content", one.read_file(path), data)


@check(DISTRIBUTED, quick=("ceph",))
def read_hole(c):
    """A file that was read here and grew there by a hole is read here through it, in large reads.

    The forwarders of the hole wrote nothing when the file grew: their kernels may remember its old size.
    """
    one, other, before, after = c.agent(0), c.agent(1), 5_000_777, 8 << 20
    for turn in range(4):
        path, data = f"{c.tide}/hole{turn}", pattern(turn, before)
        other.write_file(path, data)
        file, there = one.open(path, 0), other.open(path, 2)
        same("before", one.pread(file, after, 0), data)
        if turn % 2:
            other.ftruncate(there, after)
            data = data.ljust(after, b"\0")
        else:
            other.pwrite(there, b"end", after - 3)
            data = data.ljust(after - 3, b"\0") + b"end"
        text = c.compute[0].run("sh", "-c", f"dd if={path} bs=1M status=none | wc -c")
        same(f"turn {turn}: bytes that dd reads", int(text), after)
        same(f"turn {turn}: content", one.pread(file, after, 0), data)


@check(DISTRIBUTED)
def mapped(c):
    """A program maps a file that it has just made longer, stores, and reads elsewhere what it stored."""
    other = c.agent(1)
    for turn in range(4):
        path, length = f"{c.tide}/map{turn}", 4 << 20
        other.write_file(path, b"short")
        c.compute[0].run("python3", "-B", c.program("mapping.py"), path, str(length))
        there = other.read_file(path)
        same("length", len(there), length)
        for at in range(0, length, 1 << 19):
            same(f"bytes at {at}", there[at:at + 6], b"stored")


@check((*DISTRIBUTED, "gluster-default"), serve=False)
def groups(c):
    """A member of a group is let in, also when he became one only now, and others are not."""
    c.serve_or_refused()
    if c.refused:
        return c.refused
    folder = c.tide + "/of-group"
    c.compute[0].run("sh", "-c", f"mkdir {folder} && chgrp 3000 {folder} && chmod 2770 {folder}")
    c.compute[0].run("chmod", "755", c.tide, check=False)
    programs = [node.start("python3", "-B", c.program("groups.py"), folder, f"{node.name}-{number}", 60)
                for node in c.compute for number in range(2)]
    for program in programs:
        if program.wait(120) != 0:
            raise Failed(f"{program.node.name}: {program.tail()}")


@check(DISTRIBUTED)
def two_writers(c):
    """Two write halves of each block of a file, one reads: no half is torn or lost."""
    path, blocks, size = c.tide + "/shared", 200, 10_000
    c.agent(0).write_file(path, bytes(blocks * size))
    rounds = 3 if c.quick else 10
    writers = [node.start("python3", "-B", c.program("halves.py"), "write", path, str(half), str(blocks),
                          str(size), str(rounds)) for half, node in enumerate(c.compute[:2])]
    reader = c.compute[1].start("python3", "-B", c.program("halves.py"), "read", path, "0", str(blocks),
                                str(size), str(rounds))
    for process in (*writers, reader):
        if process.wait(180) != 0:
            raise Failed(f"{process.node.name}: {process.tail()}")
    for node in c.compute:
        node.run("python3", "-B", c.program("halves.py"), "check", path, "0", str(blocks), str(size),
                 str(rounds))


@check(DISTRIBUTED, quick=("ceph",))
def locks(c):
    """fcntl, open-file and flock locks from two nodes: never two holders at once."""
    exclude(c, 4 if c.quick else 20)


def exclude(c, seconds, kinds=("ofd", "posix", "flock"), names=("lock",)):
    """A holder also takes a lock of this machine's kernel, outside Tidegate: that it must get at once."""
    programs = []
    for kind, name in ((kind, name) for kind in kinds for name in names):
        path, witness = f"{c.tide}/{name}-{kind}", f"{c.work}/witness-{c.exports}-{name}-{kind}"
        c.agent(0).write_file(path, b"x" * 100)
        open(witness, "w").close()
        programs += [node.start("python3", "-B", c.program("holders.py"), kind, path, witness, str(seconds))
                     for node in c.compute for _ in range(2)]
    for program in programs:
        if program.wait(seconds + 90) != 0:
            raise Failed(f"{program.node.name}: {program.tail()}")


@check(UNCACHED, serve=False)
def uncached_mount(c):
    """Over mounts without a page cache forwarders serve, or do not start and say why; none hangs."""
    c.serve_or_refused()
    if c.refused:
        return c.refused
    one, other = c.agent(0, 30), c.agent(1, 30)
    for turn in range(5):
        one.write_file(f"{c.tide}/f{turn}", pattern(turn, 100_000))
        same("content elsewhere", other.read_file(f"{c.tide}/f{turn}"), pattern(turn, 100_000))
        other.rename(f"{c.tide}/f{turn}", f"{c.tide}/g{turn}")
        until("the new name is seen", lambda: f"g{turn}" in one.listdir(c.tide), 1)
