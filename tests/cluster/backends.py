"""Back ends: what a directory of the I/O nodes is made of. Each serves from a node of its own, `st0`.

`plain` is one directory of this machine that all I/O nodes see: one kernel, one page cache.
"""
import os
import signal
import time
import uuid

from nodes import Failed, command, until

STORE = "10.97.1.1"
MOUNT_S = 60


class Backend:
    """What all have: a store, mounts of it on nodes, and faults of it."""
    one_kernel = False
    options = []        # of a mount, where a check asks for no others
    lock_s = 0          # how long it keeps the locks of a node that it hears no more
    filled = False      # whether it is without room now

    def __init__(self, world):
        self.world = world
        world.one_kernel = self.one_kernel
        self.store = world.add("st0", STORE)
        self.stopped = []

    def mount(self, node, at, options=None):
        """Mounts the volume on a node and returns the process that serves it, if there is one."""
        raise NotImplementedError

    def stop(self):
        """All daemons are stopped (SIGSTOP), as behind a switch that hangs."""
        self.stopped = self.store.all_pids()
        for pid in self.stopped:
            os.kill(pid, signal.SIGSTOP)

    def go_on(self):
        for pid in self.stopped:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass
        if self.stopped:
            for process in self.store.processes:
                process.signal(signal.SIGCONT)
        self.stopped = []

    def has_spare_part(self):
        """Whether one of the daemons that keep data may be away."""
        return False

    def kill_part(self):
        """Kills one of the daemons that keep data."""
        raise Failed("this back end has no part to spare")

    def restart_part(self):
        """Starts it again."""

    def verdict(self):
        """What its own log says of names that are back, in words; empty for nothing."""
        return ""

    def fill(self):
        """No more room."""
        raise Failed("this back end cannot be filled")

    def empty(self):
        """Room again."""


class Plain(Backend):
    one_kernel = True

    def __init__(self, world, **_):
        super().__init__(world)
        self.dir = os.path.join(world.work, "volume")
        os.makedirs(self.dir, exist_ok=True)

    def mount(self, node, at, options=None):
        os.makedirs(at, exist_ok=True)
        node.run("mount", "--bind", self.dir, at)


# "no mon config": all settings are here. A daemon that asks the monitor for settings as it starts hangs
# for good once in some 30 starts (16.2).
CEPH_CONF = """[global]
fsid = {fsid}
mon host = [v1:{at}:6789/0]
mon initial members = a
no mon config = true
ms bind msgr2 = false
public addr = {at}
cluster addr = {at}
auth cluster required = none
auth service required = none
auth client required = none
mon allow pool size one = true
mon warn on pool no redundancy = false
osd pool default size = {copies}
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd max object name len = 256
osd objectstore = {objectstore}
memstore device bytes = {bytes}
bluestore block size = {bytes}
osd memory target = 939524096
osd class dir = /usr/lib/x86_64-linux-gnu/rados-classes
mds cache memory limit = 268435456
mon data = {dir}/mon
osd data = {dir}/osd$id
mds data = {dir}/mds
run dir = {dir}/run
admin socket = {dir}/run/$name.$pid.asok
pid file = {dir}/run/$name.pid
log file = {dir}/log/$name.log
mon data avail warn = 1
mon data avail crit = 0
mon osd full ratio = 0.97
mon election timeout = 1
mon lease = 2
paxos propose interval = 0.1
paxos min wait = 0.02
osd heartbeat grace = 20
mds beacon grace = 60
[client]
client dirsize rbytes = false
admin socket = /run/$name.$pid.asok
log file = /run/ceph.client.$pid.log
"""


class Ceph(Backend):
    """CephFS: a monitor, a metadata server, and as many OSDs as copies. One OSD keeps its objects in
    memory; two keep them in files, so that one may be killed and come back.

    A client that is dead holds its locks until the session's time limits are over: `session_s`.
    """

    def __init__(self, world, cached=True, locks=True, copies=1, session_s=30, size=8 << 30, **_):
        super().__init__(world)
        # By default open files are cached by each node's kernel, names and attributes are not.
        self.options = [] if cached else ["--fuse_disable_pagecache=true"]
        # Without, the node's kernel keeps locks to itself, as with nolock.
        self.options += [] if locks else ["-o", "no_remote_lock"]
        self.dir, self.session_s, self.copies = self.store.dir, session_s, copies
        self.lock_s = session_s
        for folder in ("mon", "osd0", "osd1", "mds", "run", "log"):
            os.makedirs(f"{self.dir}/{folder}", exist_ok=True)
        self.fsid = str(uuid.uuid4())
        self.conf = f"{world.work}/ceph.conf"
        with open(self.conf, "w") as conf:
            conf.write(CEPH_CONF.format(at=STORE, dir=self.dir, fsid=self.fsid, copies=copies, bytes=size,
                                        objectstore="memstore" if copies == 1 else "bluestore"))
        for node in world.nodes.values():
            node.env["CEPH_CONF"] = self.conf
        self.bring_up()

    def ceph(self, *words, check=True):
        """A young monitor may have no descriptions of its commands yet: then again."""
        for _ in range(20):
            text = self.store.run("ceph", "--connect-timeout", "20", *words, check=False)
            if "command descriptions" not in text:
                break
            time.sleep(0.3)
        if check and "Error E" in text:
            raise Failed(f"ceph {' '.join(words)}: {text.strip()}")
        return text

    def bring_up(self):
        store, at = self.store, f"[v1:{STORE}:6789/0]"
        store.run("monmaptool", "--create", "--fsid", self.fsid, "--addv", "a", at,
                  "--set-min-mon-release", "pacific", f"{self.dir}/monmap")
        store.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", f"{self.dir}/monmap")
        self.mon = store.start("ceph-mon", "-f", "-i", "a", log=f"{self.dir}/log/mon.out")
        self.osds = []
        for number in range(self.copies):
            osd_id = str(uuid.uuid4())
            self.ceph("osd", "new", osd_id)
            store.run("ceph-osd", "--mkfs", "-i", str(number), "--osd-uuid", osd_id)
            self.osds.append(None)
            self.start_osd(number)
        self.mds = store.start("ceph-mds", "-f", "-i", "m", log=f"{self.dir}/log/mds.out")
        for pool in ("meta", "data"):
            self.ceph("osd", "pool", "create", pool, "8", "8")
        self.ceph("fs", "new", "fs", "meta", "data")
        for name in ("session_timeout", "session_autoclose"):
            self.ceph("fs", "set", "fs", name, str(self.session_s))
        until("the metadata server is active", lambda: "up:active" in self.ceph("mds", "stat"), 60, 0.1)

    def osd_up(self, number):
        return f"osd.{number} up" in self.ceph("osd", "dump", check=False)

    def start_osd(self, number):
        """Its first command may go out before it knows the cluster's id, and end it: try again."""
        for _ in range(10):
            self.osds[number] = self.store.start("ceph-osd", "-f", "-i", str(number),
                                                 log=f"{self.dir}/log/osd{number}.out")
            for _ in range(100):
                if self.osd_up(number):
                    return
                if not self.osds[number].running():
                    break
                time.sleep(0.05)
        raise Failed(f"osd.{number} does not start:\n{self.osds[number].tail()}")

    def mount(self, node, at, options=None):
        os.makedirs(at, exist_ok=True)
        node.env["CEPH_CONF"] = self.conf
        options = self.options if options is None else options
        process = node.start("ceph-fuse", "-f", "-n", "client.admin", "--client_mountpoint=/", *options, at,
                             log=f"{node.dir}/ceph-fuse.log")
        until(f"CephFS is mounted on {node.name}",
              lambda: f" {at} fuse" in node.run("cat", "/proc/mounts"), MOUNT_S, 0.1)
        return process

    def has_spare_part(self):
        return self.copies > 1

    def kill_part(self):
        if not self.has_spare_part():
            super().kill_part()
        self.osds[1].kill()

    def restart_part(self):
        self.start_osd(1)

    def ratios(self, full):
        for name, ratio in (("full", full), ("backfillfull", full * 0.99), ("nearfull", full * 0.98)):
            self.ceph("osd", f"set-{name}-ratio", f"{ratio:.6f}")

    def fill(self):
        """From now on so little counts as full that it is."""
        self.filled = True
        self.ratios(0.00001)
        until("the OSDs are full", lambda: "OSD_FULL" in self.ceph("health", "detail"), 60, 0.5)

    def empty(self):
        self.ratios(0.97)
        until("the OSDs have room", lambda: "OSD_FULL" not in self.ceph("health", "detail"), 60, 0.5)
        self.filled = False


GLUSTER_FORMS = {
    "rep3": (["replica", "3"], 3),
    "dist": ([], 2),
    "disp": (["disperse", "3", "redundancy", "1"], 3),
    "disp6": (["disperse", "6", "redundancy", "2"], 6),
}


class Gluster(Backend):
    """GlusterFS: a volume `v` of one of the forms above, its bricks on the store.

    Measured between two bare mounts, 20 tries each (what goes wrong where one is left at its default):
    remote-dio: direct I/O that is not aligned is EINVAL. stat-prefetch: sizes 20, names 19, also with
    AT_STATX_FORCE_SYNC. write-behind: sizes 17, direct reads 13. quick-read: direct and other reads of
    small files 20. io-cache: ordinary reads 20, direct ones none. The timeouts: names, link counts and
    modes 20. gid-timeout: groups of one caller for another. post-op-delay-secs: sizes from before a
    brick's restart, and each write takes 1 s where another mount wrote before. use-anonymous-inode:
    removed names that stay on a brick that was away (`part_returns` shows both). heal-timeout: removed
    names that are back on all bricks (`removed_stay_away`; a site's 60 would make checks wait). read-ahead, readdir-ahead, open-behind: none.
    """
    settings = {"network.remote-dio": "enable", "performance.stat-prefetch": "off",
                "performance.write-behind": "off", "performance.quick-read": "off",
                "performance.io-cache": "off", "cluster.post-op-delay-secs": 0,
                "cluster.use-anonymous-inode": "off", "cluster.heal-timeout": 5}
    fresh = ["attribute-timeout=0", "entry-timeout=0", "negative-timeout=0", "gid-timeout=0"]

    def __init__(self, world, form="rep3", cached=True, documented=True, settings=None, ping_s=10, **_):
        super().__init__(world)
        self.form, self.dir, self.lock_s = form, self.store.dir, ping_s
        if not documented:
            settings = {}
        else:
            self.options = self.fresh + ([] if cached else ["direct-io-mode=enable"])
        self.isolate(self.store)
        self.glusterd = self.store.start("glusterd", "--no-daemon", "--log-level=WARNING",
                                         log=f"{self.dir}/glusterd.out")
        self.volume("list", retry=True)
        words, count = GLUSTER_FORMS[form]
        bricks = [f"{STORE}:{self.dir}/brick{number}" for number in range(count)]
        self.volume("create", "v", *words, *bricks, "force")
        # The one is how long a mount waits for a brick; the other, how long a brick does for a mount.
        for name in ("network.ping-timeout", "server.tcp-user-timeout"):
            self.set(name, ping_s)
        for name, value in (self.settings if settings is None else settings).items():
            self.set(name, value)
        self.volume("start", "v")

    def isolate(self, node):
        """glusterd and the mounts have folders of fixed names; give each node its own."""
        for path in ("/var/lib/glusterd", "/var/log/glusterfs", "/run/gluster"):
            own = node.dir + path
            os.makedirs(own, exist_ok=True)
            node.run("mkdir", "-p", path)
            node.run("mount", "--bind", own, path)
            if path == "/var/log/glusterfs":
                os.makedirs(own + "/bricks", exist_ok=True)

    def volume(self, *words, retry=False):
        for _ in range(50):
            text = self.store.run("gluster", "--mode=script", "volume", *words, check=not retry, timeout=130)
            if not retry or "onnection failed" not in text:
                return text
            time.sleep(0.2)
        raise Failed(f"glusterd does not answer: {text}")

    def set(self, name, value):
        self.volume("set", "v", name, str(value))

    def mount(self, node, at, options=None):
        os.makedirs(at, exist_ok=True)
        self.isolate(node)
        words = []
        for option in self.options if options is None else options:
            words.append("--" + option)
        process = node.start("glusterfs", "--no-daemon", f"--volfile-server={STORE}", "--volfile-id=v",
                             f"--log-file={node.dir}/glusterfs.log", *words, at,
                             log=f"{node.dir}/glusterfs.out")
        until(f"GlusterFS is mounted on {node.name}",
              lambda: f" {at} fuse" in node.run("cat", "/proc/mounts"), MOUNT_S, 0.1)
        node.run("stat", at)
        return process

    def fill(self):
        """The bricks keep so much free that there is no room."""
        self.filled = True
        self.set("storage.reserve", 99)

    def empty(self):
        self.set("storage.reserve", 1)
        self.filled = False

    def refuse_names(self, folder, on=True):
        """All bricks but the last refuse new names in a folder of the volume, as bricks without room do."""
        for number in range(GLUSTER_FORMS[self.form][1] - 1):
            self.store.run("chattr", "+i" if on else "-i", f"{self.dir}/brick{number}/{folder}")

    def verdict(self):
        """Folders that were healed by making each name that any brick had: removed names may be back in
        them, through whatever mount."""
        merged, log = [], f"{self.dir}/var/log/glusterfs/glustershd.log"
        for line in open(log, errors="replace") if os.path.exists(log) else []:
            if "entry selfheal on " in line and "sources= " in line:
                folder = line.split("selfheal on ")[1].split(".")[0]
                at = f"{self.dir}/brick0/.glusterfs/{folder[:2]}/{folder[2:4]}/{folder}"
                merged.append(os.path.basename(os.readlink(at)) if os.path.islink(at) else folder)
        return f"folders that GlusterFS merged: {' '.join(merged) or 'none'}"

    def is_healed(self):
        """Whether all bricks are there and have told each other what they missed."""
        text = self.volume("heal", "v", "info")
        counts = [line.split(": ")[1] for line in text.splitlines() if line.startswith("Number of entries")]
        return counts == ["0"] * GLUSTER_FORMS[self.form][1]

    def bricks(self):
        return sorted(self.store.pids_of("glusterfsd"))

    def has_spare_part(self):
        return self.form != "dist"

    def kill_part(self):
        if not self.has_spare_part():
            super().kill_part()
        os.kill(self.bricks()[-1], signal.SIGKILL)

    def restart_part(self):
        self.volume("start", "v", "force")


# The names that commands and checks use. `-uncached`: no page cache for files on the nodes, and so no
# shared mappings. `-nolocks`: byte locks hold on each node alone. `ceph-copies`: two OSDs, of which one
# may be away. `gluster-default`: a volume and mounts as one gets them by default.
BACKENDS = {
    "plain": Plain,
    "ceph": Ceph,
    "ceph-copies": lambda world, **options: Ceph(world, **{**options, "copies": 2}),
    "ceph-uncached": lambda world, **options: Ceph(world, cached=False, **options),
    "ceph-nolocks": lambda world, **options: Ceph(world, locks=False, **options),
    "gluster": Gluster,
    "gluster-uncached": lambda world, **options: Gluster(world, cached=False, **options),
    "gluster-default": lambda world, **options: Gluster(world, documented=False, **options),
}
