"""Works until it is told to stop, and checks all that it was promised while faults go on.

usage: worker.py append|synced|names DIR NAME STOP_FILE     at the end prints one line of counts
       worker.py verify DIR NAME:KIND...                    from any node, when all have stopped

A call may fail in a way that docs/semantics.md names. Then its effect is unknown, or none, and that is
remembered; what a call said it did must be there, once. What is remembered lies in DIR's name beside
STOP_FILE, outside Tidegate. The longest call is the longest pause that a program saw.
"""
import errno
import json
import os
import random
import sys
import time

BLOCK, BLOCKS = 64 << 10, 48
# Of no effect by their nature; and those after which nobody knows.
REFUSED = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
UNKNOWN = {errno.ETIMEDOUT, errno.EIO}
# A call that takes longer is told in the worker's log.
SLOW_S = 0.5
# So many files are made between two lists of their folder.
LISTED_EACH = 50
# How long a back end stays full at most.
REST_MAX_S = 120


class Wrong(Exception):
    pass


def record(name, number):
    """Its filling is the last letter of its writer's name: so a piece that is cut off shows whose it is."""
    return f"{name} {number} {name[-1] * (number * 37 % 500)}\n".encode()


class Worker:
    def __init__(self, folder, name, stop):
        self.folder, self.name, self.stop = folder, name, stop
        self.calls, self.longest, self.at, self.refused, self.unknown = 0, 0.0, "", 0, 0

    def do(self, what, function, *arguments):
        """Performs a call: (True, result), or (False, None) with nothing or (None, None) who knows what done."""
        started = time.monotonic()
        try:
            return True, function(*arguments)
        except OSError as error:
            if error.errno in REFUSED:
                self.refused += 1
                time.sleep(0.2)
                return False, None
            if error.errno in UNKNOWN:
                self.unknown += 1
                return None, None
            raise Wrong(f"{what}: {error}") from None
        finally:
            spent = time.monotonic() - started
            self.calls += 1
            if spent > self.longest:
                self.longest, self.at = spent, f"{what} at {time.strftime('%H:%M:%S')}"
            if spent > SLOW_S:
                print(f"{time.strftime('%H:%M:%S')} {what}: {spent:.3f} s", flush=True)

    def stopped(self):
        return os.path.exists(self.stop)

    def append(self):
        """Records at the end of a file that both nodes append to. Where a full back end takes the
        beginning of one only, the rest is appended as soon as it can be. Returns the pieces that are
        surely there, in their order, and those of unknown fate, as [number, begin, end]."""
        path, sure, unknown, number = f"{self.folder}/log", [], [], 0
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        while not self.stopped():
            text, begin, since = record(self.name, number), 0, time.monotonic()
            while begin < len(text):
                done, count = self.do("append", os.write, file, text[begin:])
                end = begin + count if done else len(text)
                if done is not False:
                    (sure if done else unknown).append([number, begin, end])
                elif begin > 0:
                    if time.monotonic() - since > REST_MAX_S:
                        raise Wrong(f"record {number}: no room for what is behind its {begin} bytes")
                    continue
                begin = end
            number += 1
            time.sleep(0.005)
        return {"sure": sure, "unknown": unknown}

    def synced(self):
        """Blocks of a file, written, synced, read. A block may hold what was synced last, or, until the
        next sync, what was written since. Returns for each block what it may hold."""
        path, chance = f"{self.folder}/synced-{self.name}", random.Random(self.name)
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        may = {block: [0] for block in range(BLOCKS)}       # the last is what it holds if nothing is lost
        stamp, told = 0, True
        while not self.stopped():
            for block in chance.sample(range(BLOCKS), 3):
                stamp += 1
                done = self.write_block(file, block, stamp)
                if done is not False:
                    may[block].append(stamp)
                if done is None:
                    told = False
            done, _ = self.do("fsync", os.fsync, file)
            if done and told:
                for block in may:
                    may[block] = may[block][-1:]
            # After an error the blocks may be old or new: they are written again, and only then sure.
            told = bool(done)
            if not told:
                for block, stamps in may.items():
                    stamp += 1
                    again = self.write_block(file, block, stamp)
                    if again is not False:
                        stamps.append(stamp)
                    told = again if block == 0 else told and again
                told = bool(told)
            block = chance.randrange(BLOCKS)
            done, data = self.do("pread", os.pread, file, BLOCK, block * BLOCK)
            if done:
                self.look(block, data, may[block])
            time.sleep(0.01)
        return {"may": may}

    def write_block(self, file, block, stamp):
        """As `do`; None also where there was room for a part of it."""
        done, count = self.do("pwrite", os.pwrite, file, stamp.to_bytes(8, "little") * (BLOCK // 8),
                              block * BLOCK)
        return None if done and count != BLOCK else done

    def look(self, block, data, may):
        found = {int.from_bytes(data[at:at + 8], "little") for at in range(0, len(data), 8)} or {0}
        # A write that nobody answered may be there in part.
        if not found <= set(may) or (len(may) == 1 and len(found) != 1):
            raise Wrong(f"block {block} holds {sorted(found)[:5]}, may hold {may[-5:]}")

    def names(self):
        """Files are made, linked, renamed and removed, each step once. Returns what is left."""
        folder, number, left = f"{self.folder}/names-{self.name}", 0, {}
        os.makedirs(folder, exist_ok=True)

        def made(path):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.close(file)
        while not self.stopped():
            base = f"{folder}/{number}"
            number += 1
            steps = (("create", made, (base,)), ("mkdir", os.mkdir, (base + "d",)),
                     ("link", os.link, (base, base + "l")), ("rename", os.rename, (base, base + "r")),
                     ("unlink", os.unlink, (base + "l",)), ("rmdir", os.rmdir, (base + "d",)))
            for what, function, arguments in steps:
                for _ in range(1000):
                    done, _ = self.do(f"{what} of {number - 1}", function, *arguments)
                    if done is not False or self.stopped():
                        break
                if not done:
                    left[str(number - 1)] = "unknown"
                    break
            else:
                left[str(number - 1)] = "sure"
            if number % LISTED_EACH == 0:
                done, there = self.do("listdir", os.listdir, folder)
                if done:
                    look_at_names(there, left)
            time.sleep(0.01)
        return {"left": left}


def look_at_names(there, left):
    """Of each file whose steps were all answered there is one name, the last."""
    found = {}
    for entry in there:
        found.setdefault(entry.rstrip("dlr"), []).append(entry)
    for number, sure in left.items():
        mine = sorted(found.get(number, []))
        if sure == "sure" and mine != [number + "r"]:
            raise Wrong(f"of {number} there is {mine}")


def run(kind, folder, name, stop):
    worker = Worker(folder, name, stop)
    try:
        result = getattr(worker, kind)()
    except Wrong as wrong:
        sys.exit(f"{kind} {name} at {time.strftime('%H:%M:%S')}: {wrong}")
    with open(f"{stop}.{name}", "w") as file:
        json.dump({"kind": kind, "longest": worker.longest, "at": worker.at, "calls": worker.calls,
                   "refusals": worker.refused, "doubts": worker.unknown, **result}, file)


def verify_log(data, writers):
    """Takes the log apart from its beginning: pieces that are surely there come in the order of their
    writer, others anywhere, each once, and nothing else is there. `writers`: what was kept, by name.
    Where several pieces fit, the longest is tried first, and the others if that leads nowhere."""
    def pieces(kind):
        return [[record(name, number)[begin:end] for number, begin, end in kept[kind]] + [b""]
                for name, kept in writers.items()]
    sure, loose = pieces("sure"), [text for own in pieces("unknown") for text in own if text]
    ways, farthest = [(0, (0,) * len(sure), frozenset(range(len(loose))))], (0, [])
    while ways:
        at, taken, left = ways.pop()
        awaited = [own[count] for own, count in zip(sure, taken)]
        if at == len(data) and not any(awaited):
            return
        farthest = max(farthest, (at, awaited))
        fit = [(len(text), taken[:own] + (taken[own] + 1,) + taken[own + 1:], left)
               for own, text in enumerate(awaited) if text and data.startswith(text, at)]
        fit += [(len(loose[one]), taken, left - {one}) for one in left if data.startswith(loose[one], at)]
        ways += [(at + length, *rest) for length, *rest in sorted(fit, key=lambda one: one[0])]
    at, awaited = farthest
    raise Wrong(f"at {at} of {len(data)} in the log is {data[at:at + 80]!r}; what surely comes: "
                f"{[text[:40] for text in awaited]}")


def verify(folder, name, kept):
    kind = kept["kind"]
    if kind == "synced":
        with open(f"{folder}/synced-{name}", "rb") as file:
            for block in range(BLOCKS):
                Worker(folder, name, "").look(block, file.read(BLOCK), kept["may"][str(block)])
    elif kind == "names":
        look_at_names(os.listdir(f"{folder}/names-{name}"), kept["left"])


if sys.argv[1] == "verify":
    said = {stopped.rsplit(".", 1)[1]: json.load(open(stopped)) for stopped in sys.argv[3:]}
    for worker, kept in said.items():
        try:
            verify(sys.argv[2], worker, kept)
        except Wrong as wrong:
            sys.exit(f"{worker}: {wrong}")
    try:
        with open(f"{sys.argv[2]}/log", "rb") as log:
            verify_log(log.read(), {worker: kept for worker, kept in said.items() if kept["kind"] == "append"})
    except Wrong as wrong:
        sys.exit(str(wrong))
else:
    run(*sys.argv[1:])
