"""What `tidegate run` says of a program, for suites."""
import re

OUTSIDE = "/"  # a working directory that has nothing to do with the export


def told(up, *words, cwd=OUTSIDE, code=0, env=None, options=("--summary",)):
    """What `run` says of a program: its lines on standard error. The program's own output is nothing."""
    done = up.tidegate("run", *options, "--", *words, cwd=cwd, code=code, env=env)
    assert done.stdout == "", done.stdout
    return done.stderr.splitlines()


def numbers(line):
    """Files opened, through the forwarders, past them."""
    found = re.search(r"(\d+) files? opened: (\d+) through the forwarders.*?, (\d+) past them", line)
    assert found, line
    return tuple(map(int, found.groups()))


def dd(path):
    return ("dd", "if=/dev/zero", f"of={path}", "bs=4K", "count=40", "status=none")
