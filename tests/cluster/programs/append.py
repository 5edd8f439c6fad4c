"""Appends numbered records to a file, or checks that all are there once.

usage: append.py write FILE WRITER COUNT | append.py check FILE WRITER:COUNT...
"""
import os
import sys


def record(writer, number):
    return f"{writer} {number} {'.' * (number * 37 % 3000)}\n".encode()


def write(path, writer, count):
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    for number in range(count):
        text = record(writer, number)
        if os.write(file, text) != len(text):
            sys.exit(f"record {number} was cut")
    os.close(file)


def check(path, wanted):
    seen, wrong = {}, []
    data = open(path, "rb").read()
    for line in data.splitlines(keepends=True):
        words = line.split(b" ")
        if len(words) != 3 or not words[1].isdigit() or line != record(words[0].decode(), int(words[1])):
            wrong.append(f"not a record: {line[:60]!r}")
            continue
        key = words[0].decode(), int(words[1])
        seen[key] = seen.get(key, 0) + 1
    for writer, count in wanted:
        wrong += [f"{writer} {number} is there {seen.get((writer, number), 0)} times"
                  for number in range(count) if seen.pop((writer, number), 0) != 1]
    wrong += [f"nobody wrote {key}" for key in seen]
    if wrong:
        sys.exit(f"{path}: {len(data)} bytes, {len(wrong)} wrong: " + "; ".join(wrong[:8]))


if sys.argv[1] == "write":
    write(sys.argv[2], sys.argv[3], int(sys.argv[4]))
else:
    check(sys.argv[2], [(name, int(count)) for name, count in (word.split(":") for word in sys.argv[3:])])
