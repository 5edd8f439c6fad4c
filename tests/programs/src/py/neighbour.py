"""neighbour.py FOLDER LEAVE COUNTS: does a little of everything in a new folder, again and again, until the file
LEAVE is there. COUNTS holds how many calls each process of another program has made, 8 bytes each. Prints
how many rounds that were, which of its calls the other program has passed most often, how often, and in how
many seconds."""
import mmap
import os
import sys
import time

FOLDER, LEAVE, COUNTS = sys.argv[1:]


class Passed:
    """How many calls of the other program have come between the begin and the end of one of its own."""

    def __init__(self):
        with open(COUNTS, "rb") as file:
            self.counts = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)).cast("q")
        self.most, self.what, self.took = 0, "none", 0

    def now(self):
        return sum(self.counts)

    def call(self, call, *words):
        before, began = self.now(), time.monotonic()
        result = call(*words)
        passed = self.now() - before
        if passed > self.most:
            self.most, self.what, self.took = passed, call.__name__, time.monotonic() - began
        return result


def rounds(passed):
    call = passed.call
    call(os.mkdir, FOLDER)
    kept = call(os.open, f"{FOLDER}/kept", os.O_RDWR | os.O_CREAT)
    number = 0
    while not os.path.exists(LEAVE):
        text = b"%09d" % number
        new = call(os.open, f"{FOLDER}/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        assert call(os.write, new, text) == 9
        call(os.close, new)
        call(os.rename, f"{FOLDER}/new", f"{FOLDER}/now")
        now = call(os.open, f"{FOLDER}/now", os.O_RDONLY)
        assert call(os.read, now, 99) == text
        call(os.close, now)
        assert call(os.pwrite, kept, text, 0) == 9
        call(os.fsync, kept)
        assert call(os.pread, kept, 99, 0) == text
        assert sorted(call(os.listdir, FOLDER)) == ["kept", "now"]
        assert call(os.stat, f"{FOLDER}/now").st_size == 9
        call(os.unlink, f"{FOLDER}/now")
        number += 1
        print(number, file=sys.stderr, flush=True)
        time.sleep(0.05)
    return number


counted = Passed()
print(rounds(counted), counted.what, counted.most, f"{counted.took:.2f}")
