"""Performs metadata operations in a new folder, one after another, and prints the seconds of each kind.

usage: metadata.py FOLDER COUNT
"""
import json
import os
import sys
import time

folder, count = sys.argv[1], int(sys.argv[2])
seconds = {}


def timed(name, act):
    started = time.perf_counter()
    for number in range(count):
        act(number)
    seconds[name] = (time.perf_counter() - started) / count


def path(number, kind="f"):
    return f"{folder}/{kind}{number}"


os.mkdir(folder)
timed("create", lambda number: os.close(os.open(path(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)))
timed("open", lambda number: os.close(os.open(path(number), os.O_RDONLY)))
timed("stat", lambda number: os.stat(path(number)))
log = os.open(path(0), os.O_WRONLY | os.O_APPEND)
timed("append", lambda number: os.write(log, b"x" * 100))
os.close(log)
if os.stat(path(0)).st_size != 100 * count:
    sys.exit("records are missing")
timed("chmod", lambda number: os.chmod(path(number), 0o600))
timed("rename", lambda number: os.rename(path(number), path(number, "g")))
timed("unlink", lambda number: os.unlink(path(number, "g")))
timed("mkdir", lambda number: os.mkdir(path(number, "d")))
timed("rmdir", lambda number: os.rmdir(path(number, "d")))
os.rmdir(folder)
print(json.dumps(seconds))
