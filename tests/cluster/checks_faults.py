"""Checks under faults: what was promised holds over the death of processes and nodes."""
import errno
import os
import threading
import time

from checks_data import ALL, exclude, pattern, same
from checks_loop import end_workers, look, start_workers
from cluster import REPO
from nodes import Failed, until
from registry import DISTRIBUTED, check

# How long a back end may keep the locks of a node that is gone.
DEAD_LOCK_S = int(os.environ.get("DEAD_LOCK_S", "90"))
# How long a forwarder is cut off: longer than a call may wait.
CUT_S = int(os.environ.get("CUT_S", "90"))
OPS = ("create", "rename", "append", "unlink", "mkdir", "rmdir", "link", "symlink")


@check(ALL, quick=("ceph",))
def fail_over(c):
    """Bytes that were written and synced are there after seats went to a stand-in and back."""
    path, size = c.tide + "/synced", 8 << 20
    one, other = c.agent(0), c.agent(1)
    for turn in range(1 if c.quick else 3):
        data = [pattern(10 * turn + part, size) for part in range(3)]
        one.write_file(path, data[0])
        same("before", one.read_file(path), data[0])
        c.kill(0)
        same(f"turn {turn}: at the stand-in", other.read_file(path), data[0])
        file = other.open(path, 2)
        other.write_all(file, data[1], 0)
        other.fsync(file)
        c.restart(0)
        until("the owner is back in its seat", lambda: c.taken_by(0) == 0, 60)
        same(f"turn {turn}: synced at the stand-in, read when the owner is back", one.read_file(path), data[1])
        file = one.open(path, 2)
        one.write_all(file, data[2], 0)
        one.fsync(file)
        c.kill(0)
        same(f"turn {turn}: synced at the owner, read at the stand-in", other.read_file(path), data[2])
        c.restart(0)


def settle(seconds, why):
    """A wait for something that has no sign: its reason is for the reader."""
    assert why
    time.sleep(seconds)


def there_and_back(c, *flags):
    """Seat 0 goes to a stand-in and back to its owner, who gets these flags."""
    c.serve_all_seats()
    c.kill(0)
    c.serve_all_seats()
    until("a stand-in takes seat 0", lambda: c.taken_by(0) != 0, 60)
    c.restart(0, *flags)
    until("the owner is back", lambda: c.taken_by(0) == 0, 60)


ONCE = REPO + "/tests/programs/src/py/once.py"


def prepared(c, op, folders, flags=()):
    """Forwarders and mounts with these folders to perform in; each seat has changed hands before, so
    that a stand-in has old pages of the reply table if it keeps any."""
    c.serve_quick(clients=False)
    # Behind Tidegate, so that only the operation under test counts.
    for folder in folders:
        c.io[1].run("mkdir", "-p", f"{c.export}/{folder}")
        c.io[1].run("python3", "-B", ONCE, "prepare", op, f"{c.export}/{folder}")
    for node in c.compute:
        c.mount_tide(node)
    there_and_back(c)
    there_and_back(c, *flags)


def took_effect_once(c, op, folders, performing):
    """The programs end without an error, and both nodes find what they must have done."""
    for program in performing:
        if program.wait(150) != 0:
            raise Failed(f"{op}, not answered once: the program got an error: {program.tail()}")
    for folder in folders:
        for node in (c.compute[1], c.compute[0]):
            node.run("python3", "-B", ONCE, "check", op, f"{c.tide}/{folder}", timeout=150)


def once(c, op, at):
    """The forwarder of seat 0 is killed when its `at`-th `op` took effect and is not answered; a stand-in
    on another node answers what is sent again: one effect, no error."""
    prepared(c, op, ["."], ("--kill-after-effect", f"{op}:{at}"))
    performing = c.compute[0].start("python3", "-B", ONCE, "perform", op, c.tide)
    until(f"{op}: the fault comes", lambda: not c.forwarders[0].running(), 60)
    took_effect_once(c, op, ["."], [performing])


def once_on_a_lost_node(c, op):
    """Operations are under way at all times, so that some take effect and are not answered when the
    owner's answers are lost; then it is lost with its node."""
    folders = [f"of-program{number}" for number in range(8)]
    prepared(c, op, folders)
    performing = [c.compute[0].start("python3", "-B", ONCE, "perform", op, f"{c.tide}/{folder}")
                  for folder in folders]
    until("all programs have begun", lambda: all("begun" in program.tail() for program in performing), 30)
    settle(0.3, "they are under way")
    same(f"{op}: programs under way", all(program.running() for program in performing), True)
    c.cut("io0", "cn0", both=False)
    settle(2, "operations take effect and are not answered")
    c.die(0)
    took_effect_once(c, op, folders, performing)


@check(ALL, quick=("ceph",), serve=False)
def effects_once(c):
    """An operation that took effect just before its forwarder was killed takes effect once."""
    for op in (os.environ.get("OPS", "").split() or (("rename",) if c.quick else OPS)):
        # Of 64 folders each forwarder of four has three, but for one run in 400,000.
        once(c, op, 3)


@check(DISTRIBUTED, serve=False)
def effects_once_node(c):
    """The same, with the forwarder's whole node lost at that moment."""
    for op in (os.environ.get("OPS", "").split() or (("mkdir", "append") if c.quick else OPS)):
        once_on_a_lost_node(c, op)


@check(DISTRIBUTED, quick=("ceph",))
def generations(c):
    """Each taking of a seat has a generation of its own, higher than all before."""
    c.agent(0).write_file(c.tide + "/x", b"x")
    rounds = 3 if c.quick else 8
    for _ in range(rounds):
        there_and_back(c)
    takings = c.takings(0)
    numbers = [generation for _, generation, _ in takings]
    same("takings seen", len(numbers) > 2 * rounds, True)
    if len(set(numbers)) != len(numbers) or numbers != sorted(numbers):
        raise Failed(f"generations of seat 0, in the order of time: {takings}")
    return f"generations {numbers}"


@check(DISTRIBUTED)
def split(c):
    """A forwarder that lost its locks at the back end does not go on beside the one that took them."""
    exclude_for = 60
    c.serve_all_seats()
    # Only what lies in the seat that changes hands can be held twice.
    locked = [path for path in c.files_of_every_seat(c.agent(0), c.tide + "/split{}-ofd", 24, lambda _: b"")
              if c.owner_of(c.agent(0).stat(path).st_ino) == 0][:4]
    names = [os.path.basename(path).removesuffix("-ofd") for path in locked]
    for name in names:
        c.agent(0).write_file(f"{c.tide}/{name}", b"")
    c.cut("io0", "st0")
    settle(70, "the back end drops the locks of a client that it lost")
    c.world.heal()
    io0 = c.io[0]
    # Its mount tries again ever more rarely. A back end that has shut the node out never lets it in.
    until("its mount works again, or its forwarder has ended",
          lambda: not c.forwarders[0].running() or c.volume_works(io0), 150, 1)
    # One client goes on with the old holder; for the other one that is out of reach.
    c.cut("cn1", "io0")
    paths = [f"{c.tide}/{name}" for name in names]
    writers = [node.start("python3", "-B", c.program("append.py"), "write", path, node.name, "60")
               for node in c.compute for path in paths]
    healer = threading.Timer(45, c.world.heal)
    healer.start()
    try:
        exclude(c, exclude_for, ("ofd",), names)
        for writer in writers:
            if writer.wait(120) != 0:
                raise Failed(f"{writer.node.name}: {writer.tail()}")
    finally:
        healer.join()
    for path in paths:
        for node in c.compute:
            node.run("python3", "-B", c.program("append.py"), "check", path, "cn0:60", "cn1:60")


@check(DISTRIBUTED)
def cut_off(c):
    """A forwarder that clients reach is cut from the store for long: no error, and a bounded pause."""
    folder, stop = c.tide + "/cut-off", f"{c.work}/stop-{c.exports}"
    c.serve_all_seats()
    workers = start_workers(c, folder, stop)
    look(workers, 3)
    c.cut("io0", "st0")
    look(workers, CUT_S)
    taken = c.taken_by(0)
    comes_back(c)
    look(workers, 3)
    told, said = end_workers(c, workers, folder, stop)
    bound = pause_of_a_cut(c)
    said = f"{said}, bound {bound:.0f} s; seat 0 was with forwarder {taken}"
    if told["doubts"] or told["refusals"] or told["longest"] > bound or not taken:
        raise Failed(said)
    return said


def pause_of_a_cut(c):
    """The longest: until the lease of who is cut off is over, and the back end has let go of its locks."""
    return 2 * c.ttl_s + 2 + c.backend.lock_s


def comes_back(c):
    """The cuts end, and forwarder 0 has its seat again; if its back end has shut its node out, anew."""
    c.world.heal()
    forwarder = c.forwarders[0]
    until("the owner is back, or its mount is dead", lambda: c.taken_by(0) == 0 or not forwarder.running(), 60)
    if not forwarder.running():
        c.kill(0)
        c.remount(0)
        c.restart(0)
    until("the owner is back", lambda: c.taken_by(0) == 0, 60)


@check(DISTRIBUTED)
def cut_off_idle(c):
    """A forwarder is cut from the store while nobody asks it; what is asked then, and on, is served."""
    agents = [c.agent(0), c.agent(1)]
    paths = c.files_of_every_seat(agents[0], c.tide + "/idle{}", 12, lambda number: pattern(number, 100_000))
    c.cut("io0", "st0")
    settle(20, "its lease runs out, and it waits for its seat")
    began, longest = time.monotonic(), 0.0
    while time.monotonic() - began < CUT_S - 20:
        for number, path in enumerate(paths):
            for agent in agents:
                started = time.monotonic()
                same(path, agent.read_file(path), pattern(number, 100_000))
                agent.listdir(c.tide)
                longest = max(longest, time.monotonic() - started)
        agents[1].write_file(paths[0], pattern(0, 100_000))
    taken, bound = c.taken_by(0), pause_of_a_cut(c)
    comes_back(c)
    same("read when it is back", agents[1].read_file(paths[1]), pattern(1, 100_000))
    said = f"longest pause {longest:.1f} s, bound {bound:.0f} s; seat 0 was with forwarder {taken}"
    if longest > bound or not taken:
        raise Failed(said)
    return said


@check(DISTRIBUTED)
def dead_mount(c):
    """A forwarder whose mount of the back end died ends with the reason; nothing is refused or lost."""
    one = c.agent(0)
    path, data = c.tide + "/unsynced", pattern(5, 8 << 20)
    one.write_file(path, b"")
    file = one.open(path, 2)
    one.write_all(file, data, 0)
    c.kill_mount(0)
    for number in range(12):
        made = one.open(f"{c.tide}/new{number}", 0o302, 0o600)
        same("written", one.write_all(made, data[:1 << 20], 0), 1 << 20)
        one.close(made)
        one.mkdir(f"{c.tide}/folder{number}")
    until("its forwarder ends by itself", lambda: not c.forwarders[0].running(), 10)
    same("the reason is its last line", "mount of the back end is dead" in c.forwarders[0].tail(400), True)
    c.kill(0)
    c.remount(0)
    c.restart(0)
    told_or_there(c, one, file, path, data)


@check(DISTRIBUTED)
def mount_replaced(c):
    """A forwarder gets a new mount of the back end and is restarted: what was not synced is told or there."""
    one, path, data = c.agent(0, 240), c.tide + "/unsynced", pattern(6, 8 << 20)
    one.write_file(path, b"")
    file = one.open(path, 2)
    one.write_all(file, data, 0)
    # The mount remembers what it has not sent; the forwarder cannot let go of anything in order.
    c.pause(0)
    c.kill_mount(0)
    c.kill(0)
    c.remount(0)
    c.restart(0)
    return told_or_there(c, one, file, path, data)


def told_or_there(c, agent, file, path, data):
    """What was written and not synced is there, or fsync says EIO; then it is written again and there."""
    try:
        agent.fsync(file)
        what = "fsync said that all is well"
    except OSError as error:
        same("fsync's error", error.errno, errno.EIO)
        what = "fsync said EIO"
        agent.write_all(file, data, 0)
        agent.fsync(file)
    for index in range(len(c.compute)):
        try:
            got = c.agent(index, 240).read_file(path)
        except OSError as error:
            raise Failed(f"{what}; read at cn{index}: {error!r}") from None
        same(f"{what}; cn{index}", got, data)
    return what


@check(DISTRIBUTED)
def node_loss(c):
    """An I/O node is lost: what was synced is there, what was not is told, and its seats are served."""
    one, synced, loose = c.agent(0), c.tide + "/synced", c.tide + "/loose"
    data = [pattern(number, 6 << 20) for number in range(2)]
    one.write_file(synced, data[0])
    one.write_file(loose, b"")
    file = one.open(loose, 2)
    one.write_all(file, data[1], 0)
    c.die(0)
    started = time.monotonic()
    c.serve_all_seats(1)
    pause = time.monotonic() - started
    same("what was synced", c.agent(1).read_file(synced), data[0])
    told = told_or_there(c, one, file, loose, data[1])
    c.boot(0, serve=True)
    same("what was synced, when the node is back", c.agent(1).read_file(synced), data[0])
    return f"{told}; all seats were served again after {pause:.1f} s"


@check(DISTRIBUTED)
def locks_of_a_dead_node(c):
    """How long the back end keeps the lock of a node that is gone; printed, and bounded."""
    path = f"{c.volume}/lock-of-the-dead-{c.exports}"
    first, second = c.io[0].agent(), c.io[1].agent()
    first.write_file(path, b"x" * 10)
    there, here = first.open(path, 2), second.open(path, 2)
    same("the lock is free", first.lock(there), True)
    same("the other node gets the lock too", second.lock(here), False)
    c.die(0)
    started = time.monotonic()
    until("the lock of the dead node is free", lambda: second.lock(here), DEAD_LOCK_S, 0.5)
    spent = time.monotonic() - started
    c.boot(0)
    return f"free after {spent:.0f} s"


@check(DISTRIBUTED)
def stopped_store(c):
    """The back end's daemons stop for 8 s and go on: calls wait, nothing fails, nothing is lost."""
    programs = [node.start("python3", "-B", c.program("append.py"), "write", c.tide + "/log", node.name, "200")
                for node in c.compute if node is not c.agent(0).write_file(c.tide + "/log", b"")]
    settle(0.3, "they are under way")
    c.backend.stop()
    settle(8, "the back end stands still")
    c.backend.go_on()
    for program in programs:
        if program.wait(90) != 0:
            raise Failed(f"{program.node.name}: {program.tail()}")
    c.compute[1].run("python3", "-B", c.program("append.py"), "check", c.tide + "/log", "cn0:200", "cn1:200")


@check(DISTRIBUTED)
def full_store(c):
    """No room at the back end: writes are told; reading, removing and changes of hands go on; then all."""
    one, other, folder = c.agent(0), c.agent(1), c.tide + "/full"
    one.mkdir(folder)
    cut, gone = folder + "/cut", [f"{folder}/gone{number}" for number in range(12)]
    kept = c.files_of_every_seat(one, folder + "/kept{}", 12, lambda number: pattern(number + 1, 1 << 20))
    for path in (cut, *gone):
        one.write_file(path, pattern(0, 1 << 20))
    settle(c.ttl_s, "renewals, with what the next takings need")
    c.backend.fill()
    refused = None
    for number in range(40):
        try:
            one.write_file(f"{c.tide}/more{number}", pattern(number, 4 << 20))
        except OSError as error:
            refused = error
            break
    if refused is None or refused.errno not in (errno.ENOSPC, errno.EDQUOT):
        raise Failed(f"writes to a full back end: {refused!r}")
    settle(2 * c.ttl_s, "leases that cannot be renewed are over")
    reads_and_removes(other, kept, gone[:6])
    one.truncate(cut, 1000)
    c.kill(0)
    started = time.monotonic()
    reads_and_removes(other, kept, gone[6:])
    pause = time.monotonic() - started
    same("a stand-in has seat 0", c.taken_by(0) != 0, True)
    c.backend.empty()
    until("there is room again", lambda: try_write(other, c.tide + "/after"), 60, 1)
    c.restart(0)
    until("the owner is back", lambda: c.taken_by(0) == 0, 60)
    reads_and_removes(one, kept, [])
    for number, path in enumerate(kept):
        same(path, other.read_file(path), pattern(number + 1, 1 << 20))
    same("what was cut", other.read_file(cut), pattern(0, 1 << 20)[:1000])
    left = [name for name in other.listdir(folder) if name.startswith("gone")]
    same("what was removed", left, [])
    return f"{refused!r}; with a stand-in for seat 0 after {pause:.1f} s"


def reads_and_removes(agent, kept, gone):
    for number, path in enumerate(kept):
        same(path, agent.read_file(path), pattern(number + 1, 1 << 20))
    for path in gone:
        agent.unlink(path)


def try_write(agent, path):
    try:
        agent.write_file(path, b"x" * 100_000)
        return True
    except OSError:
        return False


@check(DISTRIBUTED)
def read_only_mount(c):
    """A forwarder that finds its mount read-only does not serve, and says so; others stand in."""
    one = c.agent(0)
    one.write_file(c.tide + "/before", b"before")
    c.kill(0)
    c.read_only(0)
    try:
        c.start(0)
        for number in range(12):
            one.write_file(f"{c.tide}/f{number}", b"text")
            same("written", c.agent(1).read_file(f"{c.tide}/f{number}"), b"text")
        same("read", one.read_file(c.tide + "/before"), b"before")
        said = c.forwarders[0].tail().lower()
        same("the log names it", "read-only" in said or "read only" in said, True)
    finally:
        c.forwarders[0].kill()
        c.read_only(0, on=False)


@check(("gluster",))
def turns_read_only(c):
    """The volume turns read-only under forwarders that serve: a change is refused, or waits; then it goes on."""
    one, other, path = c.agent(0), c.agent(1), c.tide + "/kept"
    one.write_file(path, b"kept")
    c.backend.set("features.read-only", "on")
    try:
        told = None
        until("a change is refused", lambda: not try_write(one, c.tide + "/more"), 30, 0.5)
        try:
            one.unlink(path)
        except OSError as error:
            told = error
        if told is None or told.errno not in (errno.EROFS, errno.ETIMEDOUT):
            raise Failed(f"unlink on a volume that is read-only: {told!r}")
        settle(2 * c.ttl_s, "leases that cannot be renewed are over")
        seats = [index for index in range(len(c.io)) if "is lost" in open(c.log_of(index)).read()]
        same("forwarders that gave their seats up", seats, list(range(len(c.io))))
    finally:
        c.backend.set("features.read-only", "off")
    until("changes go on", lambda: try_write(other, c.tide + "/after"), 60, 1)
    same("what was not removed", other.read_file(path), b"kept")
    one.unlink(path)
    return repr(told)
