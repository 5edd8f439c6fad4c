"""Takes and drops a lock until the time is over; whoever has it must be alone.

usage: holders.py ofd|posix|flock FILE WITNESS SECONDS
WITNESS is a file outside Tidegate: its flock is kept by this machine's kernel, for all nodes.
"""
import fcntl
import os
import random
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from agent import lock  # noqa: E402  (it lies above this file)

kind, path, witness_path, seconds = sys.argv[1:]
end, taken = time.monotonic() + float(seconds), 0
file = os.open(path, os.O_RDWR)
witness = os.open(witness_path, os.O_RDWR)
while time.monotonic() < end:
    if not lock(file, kind, wait=random.random() < 0.5):
        time.sleep(0.01)
        continue
    try:
        fcntl.flock(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"{kind}: granted, and somebody else has it too, after {taken} times")
    time.sleep(random.random() * 0.01)
    fcntl.flock(witness, fcntl.LOCK_UN)
    lock(file, kind, "none")
    taken += 1
print(f"{kind}: {taken} times")
if taken == 0:
    sys.exit(f"{kind}: never granted")
