"""Nodes of a cluster on one machine: each a set of namespaces with a network address of its own.

A run lives in a *world*: a network, mount and process namespace with a bridge, in which the nodes
are made. So addresses and ports of two runs never meet, and when the world's first process ends,
however it ends, the kernel kills every process of it and takes its mounts and links away.
"""
import os
import random
import signal
import subprocess
import sys
import time
import uuid

from agent import Agent

HERE = os.path.dirname(os.path.abspath(__file__))
OPERATOR = "10.97.0.1"          # the world's own address on the bridge
NOWHERE = "02:00:00:00:de:ad"   # no interface has it: what is sent there is lost
HAS_CLOCKS = os.path.exists("/proc/self/ns/time")  # Linux 5.6
STOP_S = 40                     # a forwarder drains for at most 30 s


class Failed(Exception):
    """A check did not hold; the text says what was seen."""


def enter_world(arguments):
    """Runs this program again as the first process of a new world; does not return."""
    os.execvp("unshare", [
        "unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--mount-proc", "--kill-child=KILL",
        "--propagation", "private", sys.executable, "-B", *arguments])


def leave_mounts():
    """Lets go of the FUSE mounts that this world has copies of: they would live on when they are unmounted
    outside, and their processes would wait for the copies."""
    for line in open("/proc/self/mounts"):
        at, kind = line.split(" ")[1:3]
        if kind.split(".")[0] in ("fuse", "fuseblk"):
            subprocess.run(["umount", "--lazy", at.encode().decode("unicode_escape")], check=False)


def command(*words, timeout=60, check=True):
    """Runs a command in the world, and returns what it printed."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=timeout)
    if check and done.returncode != 0:
        raise Failed(f"{' '.join(words)}: exit {done.returncode}: {done.stdout.strip()}")
    return done.stdout


def until(what, holds, seconds=30, every=0.05):
    """Waits for a condition; fails by its name when the time is over."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise Failed(f"not within {seconds} s: {what}")
        time.sleep(every)


class Process:
    """A program that runs on a node. `pid` is its process id in the world."""

    def __init__(self, node, words, log, env=None, cwd=None):
        self.node, self.words, self.log = node, words, log
        enter = ["nsenter", "-t", str(node.pid), "-m", "-n", "-u", "-p", "-i", *(["-T"] if HAS_CLOCKS else []),
                 f"--wd={cwd or '/'}", "--", *words]
        with open(log, "ab") as out:
            self.entered = subprocess.Popen(enter, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                            env={**os.environ, **node.env, **(env or {})})
        self._pid = None

    @property
    def pid(self):
        """nsenter forks once, for the new process id; its child is the program."""
        if self._pid is None:
            path = f"/proc/{self.entered.pid}/task/{self.entered.pid}/children"

            def born():
                children = open(path).read().split() if self.running() else []
                if children:
                    self._pid = int(children[0])
                return children or not self.running()
            until(f"{self.words[0]} starts on {self.node.name}", born, 10, 0.01)
        return self._pid

    def running(self):
        return self.entered.poll() is None

    def signal(self, number):
        try:
            if self.running() and self.pid:
                os.kill(self.pid, number)
                if number == signal.SIGCONT:
                    # nsenter stops itself with its child.
                    os.kill(self.entered.pid, number)
        except ProcessLookupError:
            pass  # it has just ended

    def wait(self, seconds):
        """Its exit code; a program that does not end in time is killed, and fails the check."""
        try:
            return self.entered.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(f"{self.node.name}: {' '.join(self.words)[:200]}: no end after {seconds} s"
                         f"\n{self.tail()}") from None

    def kill(self):
        self.signal(signal.SIGKILL)
        self.signal(signal.SIGCONT)
        try:
            self.entered.wait(10)
        except subprocess.TimeoutExpired:
            pass  # stuck in the kernel; the end of its node frees it

    def stop(self):
        """SIGTERM, and what must follow: an end in order."""
        self.signal(signal.SIGTERM)
        return self.wait(STOP_S)

    def tail(self, size=3000):
        with open(self.log, "rb") as log:
            log.seek(max(0, os.path.getsize(self.log) - size))
            return log.read().decode(errors="replace")


BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Node:
    """One node: host name, machine id, network, mounts, clocks and processes of its own."""

    def __init__(self, world, name, address):
        self.world, self.name, self.address = world, name, address
        self.dir = os.path.join(world.work, name)
        self.env = {}
        self.link = "v" + name
        os.makedirs(self.dir, exist_ok=True)
        self.write("machine-id", uuid.uuid4().hex)
        self.processes, self.outputs = [], 0
        self.unshare, self.agents, self.agent_path = None, None, None
        self.boot()

    def write(self, name, text):
        with open(os.path.join(self.dir, name), "w") as file:
            file.write(text + "\n")

    def boot(self):
        """Starts the node anew: another boot id, other clocks, no process, no mount."""
        self.write("boot-id", open(BOOT_ID).read().strip() if self.world.one_kernel else str(uuid.uuid4()))
        ahead = str(random.randrange(1, 10_000_000))
        # Monotonic clocks of two nodes have nothing in common; the kernel has one time of day.
        clocks = ["--time", "--monotonic", ahead, "--boottime", ahead] if HAS_CLOCKS else []
        self.unshare = subprocess.Popen(
            ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", *clocks,
             "--kill-child=KILL", "--propagation", "private", sys.executable, "-B",
             os.path.join(HERE, "init.py"), self.name, f"{self.dir}/machine-id", f"{self.dir}/boot-id"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if self.unshare.stdout.readline() != b"ready\n":
            raise Failed(f"{self.name} did not boot")
        children = open(f"/proc/{self.unshare.pid}/task/{self.unshare.pid}/children").read().split()
        self.pid = int(children[0])
        command("ip", "link", "add", "name", self.link, "type", "veth",
                "peer", "name", "eth0", "netns", str(self.pid))
        command("ip", "link", "set", self.link, "master", "br0", "up")
        self.run("ip", "address", "add", self.address + "/16", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    @property
    def up(self):
        return self.unshare is not None

    def die(self):
        """The node is gone at once: first from the network, then its processes and mounts."""
        command("ip", "link", "set", self.link, "down")
        os.kill(self.pid, signal.SIGKILL)
        for process in self.processes:
            # The kernel waits until all are reaped, and an nsenter may have been stopped with its child.
            process.entered.send_signal(signal.SIGCONT)
        self.unshare.wait(30)
        self.unshare.stdout.close()
        self.unshare = None
        command("ip", "link", "del", self.link, check=False)
        for process in self.processes:
            process.entered.wait(30)
        self.processes = []

    def start(self, *words, log=None, env=None, cwd=None):
        """Starts a program that runs on."""
        if log is None:
            self.outputs += 1
            log = f"{self.dir}/out.{self.outputs}"
        process = Process(self, [str(word) for word in words], log, env, cwd)
        self.processes = [one for one in self.processes if one.running()] + [process]
        return process

    def run(self, *words, timeout=60, check=True, env=None, cwd=None):
        """Runs a program to its end, and returns what it printed."""
        process = self.start(*words, env=env, cwd=cwd)
        code = process.wait(timeout)
        text = open(process.log, errors="replace").read()
        os.unlink(process.log)
        if check and code != 0:
            raise Failed(f"{self.name}: {' '.join(map(str, words))[:300]}: exit {code}: {text.strip()}")
        return text

    def agent(self, seconds=90):
        """A new thread on this node that runs system calls (agent.py)."""
        if self.agents is None or not self.agents.running():
            self.outputs += 1
            self.agent_path = f"{self.dir}/agent.{self.outputs}"
            self.agents = self.start(sys.executable, "-B", os.path.join(HERE, "agent.py"), self.agent_path)
        return Agent(self.agent_path, seconds)

    def all_pids(self):
        """Process ids, in the world, of all that runs on this node."""
        inside, pids = os.readlink(f"/proc/{self.pid}/ns/pid"), []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/pid") == inside:
                    pids.append(int(entry))
            except OSError:
                pass  # it ended meanwhile
        return [pid for pid in pids if pid != self.pid]

    def pids_of(self, program):
        """Those of them that run this program."""
        found = []
        for pid in self.all_pids():
            try:
                if open(f"/proc/{pid}/comm").read().strip() == program[:15]:
                    found.append(pid)
            except OSError:
                pass
        return found

    def deaf_to(self, other):
        """What this node sends to the other is lost from now on; `heal` ends it."""
        self.run("ip", "neighbour", "replace", other.address, "lladdr", NOWHERE, "dev", "eth0",
                 "nud", "permanent")

    def heal(self, other):
        self.run("ip", "neighbour", "del", other.address, "dev", "eth0", check=False)


class World:
    """The nodes of a run, and the bridge between them. `work` is a folder for all they leave."""

    def __init__(self, work):
        self.work = os.path.abspath(work)
        os.makedirs(self.work, exist_ok=True)
        self.nodes = {}
        self.cuts = set()
        # Whether all nodes are to show the boot id of this machine, whose page cache they share.
        self.one_kernel = False
        command("ip", "link", "set", "lo", "up")
        command("ip", "link", "add", "name", "br0", "type", "bridge")
        command("ip", "address", "add", OPERATOR + "/16", "dev", "br0")
        command("ip", "link", "set", "br0", "up")

    def add(self, name, address):
        self.nodes[name] = Node(self, name, address)
        return self.nodes[name]

    def cut(self, one, other, both=True):
        """Nothing goes from one node to the other any more, nor, by default, back."""
        one.deaf_to(other)
        self.cuts.add((one, other))
        if both:
            self.cut(other, one, False)

    def heal(self):
        for one, other in self.cuts:
            if one.up and other.up:
                one.heal(other)
        self.cuts = set()

    def end(self):
        """Ends all nodes; their processes and mounts go with them."""
        for node in self.nodes.values():
            if node.up:
                node.die()
        command("ip", "link", "del", "br0")
