"""Performs one kind of operation in 64 folders, and checks that each took effect exactly once.

usage: once.py prepare|perform|check OP DIR. The folders lie with different forwarders, so whichever
is killed has some of them. `check` also proves that nothing else appeared or went.
"""
import os, sys

FOLDERS, RECORDS = 64, 3


def append(path):
    """Appends one record per call of write; a replayed one would be there twice."""
    file = os.open(path + "/log", os.O_WRONLY | os.O_APPEND)
    for number in range(RECORDS):
        text = b"record %d\n" % number
        assert os.write(file, text) == len(text), "a short append"
    os.close(file)


def create(path):
    """O_EXCL: a replay that forgot its first effect would find the name taken."""
    file = os.open(path + "/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    os.write(file, b"made")
    os.close(file)


PERFORM = {
    "create": create,
    "append": append,
    "rename": lambda path: os.rename(path + "/old", path + "/new"),
    "unlink": lambda path: os.unlink(path + "/old"),
    "mkdir": lambda path: os.mkdir(path + "/new", 0o750),
    "rmdir": lambda path: os.rmdir(path + "/folder"),
    "link": lambda path: os.link(path + "/old", path + "/new"),
    "symlink": lambda path: os.symlink("target", path + "/new"),
}
LEFT = {
    "create": {"new": b"made"},
    "append": {"log": b"".join(b"record %d\n" % number for number in range(RECORDS))},
    "rename": {"new": b"old"},
    "unlink": {},
    "mkdir": {"new": "folder"},
    "rmdir": {},
    "link": {"old": b"old", "new": b"old"},
    "symlink": {"new": "-> target"},
}
BEFORE = {"append": {"log": b""}, "rename": {"old": b"old"}, "unlink": {"old": b"old"},
          "rmdir": {"folder": "folder"}, "link": {"old": b"old"}}


def prepare(op, path):
    os.mkdir(path)
    for name, content in BEFORE.get(op, {}).items():
        if content == "folder":
            os.mkdir(f"{path}/{name}")
        else:
            with open(f"{path}/{name}", "wb") as file:
                file.write(content)


def found(path):
    """What a folder holds now."""
    left = {}
    for entry in os.scandir(path):
        if entry.is_symlink():
            left[entry.name] = "-> " + os.readlink(entry.path)
        elif entry.is_dir():
            left[entry.name] = "folder"
        else:
            left[entry.name] = open(entry.path, "rb").read()
    return left


def main():
    verb, op, root = sys.argv[1:]
    wrong = 0
    if verb == "perform":
        print("begun", flush=True)
    for index in range(FOLDERS):
        path = f"{root}/folder-{index}"
        try:
            if verb == "prepare":
                prepare(op, path)
            elif verb == "perform":
                PERFORM[op](path)
            elif found(path) != LEFT[op]:
                print(f"{path}: there is {found(path)}, and should be {LEFT[op]}")
                wrong += 1
        except OSError as error:
            print(f"{op} in {path}: {error}")
            wrong += 1
    if verb == "check" and op == "link":
        wrong += sum(os.stat(f"{root}/folder-{n}/new").st_nlink != 2 for n in range(FOLDERS))
    sys.exit(1 if wrong else 0)


main()
