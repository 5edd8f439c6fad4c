"""A program that writes and reads a file for as long as the suite wants, a line at a time."""
import subprocess
import sys
import time

PROGRAM = """
import os, sys
fd = os.open(os.path.join(os.environ["TIDEGATE_MOUNT"], sys.argv[1]), os.O_RDWR | os.O_CREAT, 0o600)
for line in sys.stdin:
    os.pwrite(fd, line.encode(), 0)
    print(os.pread(fd, len(line), 0).decode(), end="", flush=True)
"""


class Worker:
    """The program, started by a command that ends in `tidegate run --`; `file` is a path below the mount."""

    def __init__(self, work, command, file, environment):
        words = [*command, sys.executable, "-c", PROGRAM, file]
        self.process = work.remember(subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=environment, cwd="/"))
        self.count, self.longest_s = 0, 0.0

    def works(self):
        self.count += 1
        begin = time.monotonic()
        self.process.stdin.write(f"line {self.count}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"line {self.count}\n", self.process.stderr.read()
        self.longest_s = max(self.longest_s, time.monotonic() - begin)

    def ends(self):
        """What it has said on standard error."""
        said = self.process.communicate(timeout=60)[1]
        assert self.process.returncode == 0, said
        return said
