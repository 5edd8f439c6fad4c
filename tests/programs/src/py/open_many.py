"""open_many.py FOLDER FILES PROCESSES [COUNTS]: opens so many files there, which so many processes share, and
uses each of them while all are open. Prints the first error, or `ok` and the seconds of each step. In COUNTS
each process counts its calls, in 8 bytes."""
import mmap
import os
import resource
import sys
import time

FOLDERS = 16
DONE = [0]  # of this process


def bytes_of(name):
    return f"the bytes of {name}\n".encode()


def step(what, items, call):
    began = time.monotonic()
    for item in items:
        if what != "close":  # which nobody waits for
            DONE[0] += 1
        try:
            call(item)
        except OSError as error:
            sys.exit(f"{what} {item}: {error}")
    return f"{what} {time.monotonic() - began:.1f}"


class Files:
    def __init__(self, folder, own, count):
        self.folder, self.names = folder, [f"{number % FOLDERS}/{own}-{number}" for number in range(count)]
        self.open = {}

    def make(self, name):
        self.open[name] = os.open(f"{self.folder}/{name}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, name):
        assert os.write(self.open[name], bytes_of(name)) == len(bytes_of(name))

    def read(self, name):
        assert os.pread(self.open[name], 4096, 0) == bytes_of(name), f"{name} has other bytes"
        assert os.fstat(self.open[name]).st_size == len(bytes_of(name)), f"{name} has another size"

    def sync(self, name):
        os.fsync(self.open[name])

    def move(self, name):
        os.rename(f"{self.folder}/{name}", f"{self.folder}/{name}.moved")

    def close(self, name):
        os.close(self.open.pop(name))


def work(folder, own, count, others):
    """`others` are the ends of pipes: one says that its files are open, the other that all are."""
    files = Files(folder, own, count)
    told = [step("open", files.names, files.make), step("write", files.names, files.write)]
    ready, leave = others
    os.write(ready, b"x")
    os.read(leave, 1)
    told += [step("read", files.names, files.read), step("sync", files.names[::50], files.sync)]
    os.rename(f"{folder}/{files.names[0]}", f"{folder}/moved-{own}")
    os.unlink(f"{folder}/{files.names[1]}")
    # One half of the folders keep their names, and the files of the others theirs.
    half = FOLDERS // 2
    told.append(step("move", [name for name in files.names[2::5] if int(name.split("/")[0]) < half], files.move))
    moves = range(half, FOLDERS) if own == 0 else []
    told.append(step("move", moves, lambda number: os.rename(f"{folder}/{number}", f"{folder}/moved.{number}")))
    told += [step("again", files.names[::3], files.read), step("close", files.names, files.close)]
    print(own, "ok:", *told, "s", flush=True)


def main(folder, files, processes, counts=None):
    global DONE
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for number in range(FOLDERS):
        os.makedirs(f"{folder}/{number}", exist_ok=True)
    (there, ready), (leave, go) = os.pipe(), os.pipe()
    pids = []
    for own in range(processes):
        pids.append(os.fork())
        if pids[-1] == 0:
            if counts:
                with open(counts, "r+b") as file:
                    DONE = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")[own:own + 1]
            work(folder, own, files // processes, (ready, leave))
            sys.exit()
    os.close(ready)
    for _ in pids:
        os.read(there, 1)
    os.write(go, bytes(processes))
    os.close(go)
    ends = [os.waitpid(pid, 0)[1] for pid in pids]
    sys.exit(any(ends))


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
