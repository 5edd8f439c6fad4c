"""Faults of every kind, one after another, while programs work and check all that they were promised."""
import glob
import json
import os
import random
import sys
import time

from nodes import Failed, until
from registry import DISTRIBUTED, check

# Seconds of the loop, between two faults, and the longest pause that is documented for a program.
LOOP_S = int(os.environ.get("FAULT_LOOP_S", "1800"))
EVERY_S = int(os.environ.get("FAULT_EVERY_S", "20"))
PAUSE_MAX_S = float(os.environ.get("PAUSE_MAX_S", "60"))
# How long bricks may take to tell each other what they missed, on a machine that is busy.
HEALED_S = 60


def process_kill(c, chance):
    index = chance.randrange(len(c.io))
    c.kill(index)
    yield 6
    c.restart(index)


def node_death(c, chance):
    index = chance.randrange(len(c.io))
    c.die(index)
    yield EVERY_S - 4
    c.boot(index, serve=True)


def cut_store(c, chance):
    c.cut(chance.choice(c.io).name, "st0")
    yield 12
    c.world.heal()


def cut_client(c, chance):
    c.cut(chance.choice(c.io).name, chance.choice(c.compute).name, chance.random() < 0.5)
    yield 8
    c.world.heal()


def store_stops(c, chance):
    c.backend.stop()
    yield 6
    c.backend.go_on()


def part_killed(c, chance):
    c.backend.kill_part()
    yield 8
    c.backend.restart_part()


def store_full(c, chance):
    c.backend.fill()
    yield 5
    c.backend.empty()


def killed_when_full(c, chance):
    index = chance.randrange(len(c.io))
    c.backend.fill()
    yield 2
    c.kill(index)
    yield 5
    c.backend.empty()
    c.restart(index)


def mount_dies(c, chance):
    index = chance.randrange(len(c.io))
    c.kill_mount(index)
    yield 8
    c.kill(index)
    c.remount(index)
    c.restart(index)


def mount_read_only(c, chance):
    index = chance.randrange(len(c.io))
    c.kill(index)
    c.read_only(index)
    c.start(index)
    yield 8
    c.forwarders[index].kill()
    c.read_only(index, on=False)
    c.restart(index)


KINDS = (process_kill, node_death, cut_store, cut_client, store_stops, part_killed, store_full, killed_when_full,
         mount_dies, mount_read_only)
WORKERS = ("append", "synced", "names")


@check(("plain", "ceph-copies", "gluster"))
def fault_loop(c):
    """Faults of each kind in turn, while two nodes append, sync, lock and rename: nothing wrong or lost."""
    chance, names = random.Random(c.seed), os.environ.get("FAULTS", "").split()
    kinds = [kind for kind in KINDS if not names or kind.__name__ in names]
    if c.backend.one_kernel:
        kinds = [kind for kind in kinds if kind in (process_kill, cut_client)]
    elif not c.backend.has_spare_part():
        kinds = [kind for kind in kinds if kind is not part_killed]
    seconds = min(LOOP_S, 60) if c.quick else LOOP_S
    folder, stop = c.tide + "/loop", f"{c.work}/stop-{c.exports}"
    workers = start_workers(c, folder, stop)
    lock, witness = f"{folder}/lock", f"{c.work}/witness-loop-{c.exports}"
    c.agent(0).write_file(lock, b"x")
    open(witness, "w").close()
    workers += [node.start(sys.executable, "-B", c.program("holders.py"), kind, lock + kind, witness + kind,
                           str(seconds)) for kind in ("ofd", "flock") for node in c.compute
                if [c.agent(0).write_file(lock + kind, b"x"), open(witness + kind, "w").close()]]
    end, turn = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        kind, started = kinds[turn % len(kinds)], time.monotonic()
        turn += 1
        print(f"     {time.strftime('%H:%M:%S')} {kind.__name__}", flush=True)
        try:
            for pause in kind(c, chance):
                look(workers, pause)
            look(workers, max(2, EVERY_S - (time.monotonic() - started)))
        except Failed as failed:
            raise Failed(f"{failed}\n{c.backend.verdict()}") from None
    told, said = end_workers(c, workers, folder, stop)
    said = f"seed {c.seed}, {turn} faults, {said}, bound {PAUSE_MAX_S:.0f} s"
    if told["longest"] > PAUSE_MAX_S:
        raise Failed(said)
    return said


@check(("ceph-copies", "gluster"))
def part_returns(c):
    """A brick or OSD was away and is back: no append goes to an end of before, no removed name is back."""
    places = [(f"{c.tide}/part-{turn}", f"{c.work}/stop-part-{c.exports}-{turn}") for turn in range(3)]
    works = [start_workers(c, *place) for place in places]
    workers = sum(works, [])
    for _ in range(3 if c.quick else 8):
        look(workers, 2)
        for pause in part_killed(c, None):
            look(workers, pause)
        look(workers, 6)
    look(workers, 10)       # what was healed is listed and read by the programs, too
    for own, place in zip(works, places):
        end_workers(c, own, *place)


@check(("gluster",))
def removed_stay_away(c):
    """A name that most bricks refused marks its folder. Names removed there while a brick is away stay away."""
    c.mount_bare()
    folders = {f"{c.tide}/marked": f"{os.path.basename(c.export)}/marked",
               f"{c.bare}/marked{c.exports}": f"marked{c.exports}"}
    one, other = c.agent(0), c.agent(1)
    for at, folder in folders.items():
        one.makedirs(f"{at}/directory")
        one.write_file(f"{at}/file", b"x")
        c.backend.refuse_names(folder)
        try:
            one.mkdir(f"{at}/refused")
        except OSError:
            pass
        else:
            raise Failed(f"{at}: a name is made that most bricks refuse")
        finally:
            c.backend.refuse_names(folder, on=False)
    # What comes without the settings is to be seen below, not here.
    within(HEALED_S, c.backend.is_healed)
    c.backend.kill_part()
    time.sleep(2)
    for at in folders:
        one.rmdir(f"{at}/directory")
        one.unlink(f"{at}/file")
    c.backend.restart_part()
    until("the brick that was away is healed", c.backend.is_healed, HEALED_S, 1)
    back = {at: sorted({"directory", "file"} & set(other.listdir(at))) for at in folders}
    if any(back.values()):
        raise Failed(f"removed names are back: {back}\n{c.backend.verdict()}")


def within(seconds, holds):
    """Waits until it holds, or so long."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(1)


def start_workers(c, folder, stop):
    """On each compute node programs that work in a new folder until the file `stop` is there."""
    c.agent(0).mkdir(folder)
    return [node.start(sys.executable, "-B", c.program("worker.py"), kind, folder, f"{kind}-{node.name}", stop)
            for node in c.compute for kind in WORKERS]


def end_workers(c, workers, folder, stop):
    """Ends them and has all nodes verify what they left: the sums of what they saw, and those in words."""
    open(stop, "w").close()
    for worker in workers:
        if worker.wait(150) != 0:
            raise Failed(f"seed {c.seed}, {worker.node.name}: {worker.tail()}")
    kept = sorted(glob.glob(stop + ".*"))
    for node in c.compute:
        node.run(sys.executable, "-B", c.program("worker.py"), "verify", folder, *kept, timeout=120)
    seen = [(path.rsplit(".", 1)[1], json.load(open(path))) for path in kept]
    name, longest = max(seen, key=lambda one: one[1]["longest"])
    told = {key: sum(one[key] for _, one in seen) for key in ("calls", "doubts", "refusals")}
    told["longest"] = longest["longest"]
    return told, (f"{told['calls']} calls, {told['doubts']} of unknown fate, {told['refusals']} refused; "
                  f"longest pause {longest['longest']:.1f} s ({name}, {longest['at']})")


def look(workers, seconds):
    """Waits, and fails as soon as a program has found something wrong."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for worker in workers:
            if not worker.running() and worker.entered.returncode != 0:
                raise Failed(f"{worker.node.name}: {worker.tail()}")
        time.sleep(0.2)
