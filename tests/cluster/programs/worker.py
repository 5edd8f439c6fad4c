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


class Wrong(Exception):
    pass


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

    def stopped(self):
        return os.path.exists(self.stop)

    def append(self):
        """Records at the end of a file that both nodes append to. Returns sure and unknown numbers."""
        path, sure, unknown, number = f"{self.folder}/log", [], [], 0
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        while not self.stopped():
            text = f"{self.name} {number} {'.' * (number * 37 % 500)}\n".encode()
            done, count = self.do("append", os.write, file, text)
            if done and count != len(text):
                raise Wrong(f"record {number}: {count} of {len(text)} bytes were taken")
            if done:
                sure.append(number)
            elif done is None:
                unknown.append(number)
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
                done, count = self.do("pwrite", os.pwrite, file, stamp.to_bytes(8, "little") * (BLOCK // 8),
                                      block * BLOCK)
                if done is not False:
                    may[block].append(stamp)
                if done is None or (done and count != BLOCK):
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
                    again, _ = self.do("pwrite", os.pwrite, file, stamp.to_bytes(8, "little") * (BLOCK // 8),
                                       block * BLOCK)
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
                    done, _ = self.do(what, function, *arguments)
                    if done is not False or self.stopped():
                        break
                if not done:
                    left[str(number - 1)] = "unknown"
                    break
            else:
                left[str(number - 1)] = "sure"
            time.sleep(0.01)
        return {"left": left}


def run(kind, folder, name, stop):
    worker = Worker(folder, name, stop)
    try:
        result = getattr(worker, kind)()
    except Wrong as wrong:
        sys.exit(f"{kind} {name} at {time.strftime('%H:%M:%S')}: {wrong}")
    with open(f"{stop}.{name}", "w") as file:
        json.dump({"kind": kind, "longest": worker.longest, "at": worker.at, "calls": worker.calls,
                   "refusals": worker.refused, "doubts": worker.unknown, **result}, file)


def verify(folder, name, kept):
    kind = kept["kind"]
    if kind == "append":
        seen = {}
        for line in open(f"{folder}/log", "rb").read().splitlines():
            words = line.decode(errors="replace").split(" ")
            if len(words) != 3 or not words[1].isdigit() or words[2] != "." * (int(words[1]) * 37 % 500):
                raise Wrong(f"not a record: {line[:80]!r}")
            if words[0] == name:
                seen[int(words[1])] = seen.get(int(words[1]), 0) + 1
        wrong = [f"{number} is there {seen.get(number, 0)} times" for number in kept["sure"]
                 if seen.get(number, 0) != 1]
        wrong += [f"{number}, of unknown fate, is there {seen[number]} times" for number in kept["unknown"]
                  if seen.get(number, 0) > 1]
        if wrong:
            raise Wrong(f"{len(wrong)} records wrong: {wrong[:5]}")
    elif kind == "synced":
        with open(f"{folder}/synced-{name}", "rb") as file:
            for block in range(BLOCKS):
                Worker(folder, name, "").look(block, file.read(BLOCK), kept["may"][str(block)])
    else:
        there = set(os.listdir(f"{folder}/names-{name}"))
        for number, sure in kept["left"].items():
            mine = {entry for entry in there if entry.rstrip("dlr") == number}
            if sure == "sure" and mine != {number + "r"}:
                raise Wrong(f"of {number} there is {sorted(mine)}")


if sys.argv[1] == "verify":
    for stopped in sys.argv[3:]:
        try:
            verify(sys.argv[2], stopped.rsplit(".", 1)[1], json.load(open(stopped)))
        except Wrong as wrong:
            sys.exit(f"{stopped.rsplit('.', 1)[1]}: {wrong}")
else:
    run(*sys.argv[1:])
