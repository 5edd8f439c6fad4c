"""Writes to an LMDB store with several processes at once, and kills one in the midst: lmdb_test.py STORE COUNT"""
import os
import signal
import sys
import time

import lmdb

STORE, COUNT = sys.argv[1], int(sys.argv[2])
WRITERS = 3


def opened():
    # The store grows by its map: half of the size of one is enough for each.
    return lmdb.open(STORE, map_size=256 << 20, max_dbs=2)


def write(number):
    store = opened()
    for item in range(COUNT):
        with store.begin(write=True) as change:
            change.put(b"%d-%08d" % (number, item), b"v" * (item % 500))
            change.put(b"sum", b"%d" % (int(change.get(b"sum", b"0")) + item))
    store.close()


def endless():
    store = opened()
    number = 0
    while True:
        number += 1
        with store.begin(write=True) as change:
            change.put(b"killed", b"%d" % number)
            change.put(b"killed-too", b"%d" % number)


def forked(work, *words):
    process = os.fork()
    if not process:
        try:
            work(*words)
            os._exit(0)
        finally:
            os._exit(1)
    return process


opened().close()
writers = [forked(write, number) for number in range(WRITERS)]
print("ends", [os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]) for writer in writers])
killed = forked(endless)


def changes():
    """How many the process has made that is to be killed."""
    store = opened()
    with store.begin() as view:
        made = int(view.get(b"killed", b"0"))
    store.close()
    return made


# In the midst of its changes, however long it takes to begin.
end = time.monotonic() + 60
while changes() < 20 and time.monotonic() < end:
    time.sleep(0.05)
if changes() < 20:
    print("it changes nothing")
os.kill(killed, signal.SIGKILL)
os.waitpid(killed, 0)
store = opened()
print("dead readers", store.reader_check() >= 0)
with store.begin() as view:
    print("whole", view.get(b"killed") == view.get(b"killed-too") is not None, int(view.get(b"sum")))
    print("entries", sum(1 for _ in view.cursor()))
with store.begin(write=True) as change:
    change.delete(b"killed")
    change.delete(b"killed-too")
store.sync(True)
