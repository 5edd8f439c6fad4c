"""A cluster over a back end: I/O nodes with a forwarder each, compute nodes with a mount each.

Every node sees the same paths: the back end's volume at WORK/backend on I/O nodes (the forwarders
export a folder of it), Tidegate at WORK/tide on compute nodes, and, there too, the bare volume at
WORK/bare where a check asks for it.
"""
import os
import re
import signal

from backends import BACKENDS
from nodes import Failed, World, until

HERE = os.path.dirname(os.path.abspath(__file__))
REPO = os.path.dirname(os.path.dirname(HERE))
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
PORT = 4600
ETCD_PORT = 2379
# The lease of seats in the short form; empty for the default, and for versions that know no leases.
TTL_MS = os.environ.get("SEAT_TTL_MS", "2000")
DEFAULT_TTL_MS = 8000
MOUNT_S = 60


class Cluster:
    """`io` and `compute` nodes over one back end. `serve` starts forwarders over a new export."""

    def __init__(self, work, tidegate, backend="plain", io=3, compute=2, **options):
        self.world = World(work)
        try:
            self.bring_up(tidegate, backend, io, compute, options)
        except BaseException:
            # The bed may be to bring up another one.
            self.world.end()
            raise

    def bring_up(self, tidegate, backend, io, compute, options):
        self.work, self.tidegate = self.world.work, tidegate
        self.volume, self.tide, self.bare = (f"{self.work}/{name}" for name in ("backend", "tide", "bare"))
        self.kind, self.backend = backend, BACKENDS[backend](self.world, **options)
        self.io = [self.world.add(f"io{i}", f"10.97.2.{i + 1}") for i in range(io)]
        self.compute = [self.world.add(f"cn{i}", f"10.97.3.{i + 1}") for i in range(compute)]
        self.mounts, self.forwarders, self.clients = {}, {}, {}
        self.secret = f"{self.work}/secret"
        with open(os.open(self.secret, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write("a secret of the test bed, nowhere else\n")
        for node in self.io:
            self.mount_volume(node)
        self.exports, self.settings, self.list = 0, "", ""
        os.makedirs(self.tide, exist_ok=True)
        self.quick, self.seed, self.refused = True, 0, None
        self.keeper, self.etcd = "files", None

    # Nodes and what runs on them.

    def node(self, name):
        if name not in self.world.nodes:
            raise Failed(f"no node {name}; there are {' '.join(self.world.nodes)}")
        return self.world.nodes[name]

    def mount_volume(self, node, at=None, options=None):
        self.mounts[node.name] = self.backend.mount(node, at or self.volume, options)

    def mount_bare(self):
        """The bare volume on the compute nodes, for comparing with."""
        for node in self.compute:
            if self.bare not in node.run("cat", "/proc/mounts"):
                self.backend.mount(node, self.bare)

    def serve(self, stripe="1 MiB", settings="", flags=None, clients=True):
        """Ends what serves, and starts a forwarder on each I/O node over a new, empty export.

        `settings` is added to each forwarder's configuration; `flags` gives flags by its index.
        """
        self.quiet()
        self.exports += 1
        self.export = f"{self.volume}/export{self.exports}"
        self.io[0].run("mkdir", "-m", "1777", self.export)
        self.list = ",".join(f"tcp:{node.address}:{PORT}" for node in self.io)
        for index, node in enumerate(self.io):
            with open(f"{node.dir}/forwarder.toml", "w") as file:
                file.write(f'export = "{self.export}"\nforwarder = {index}\nseats = {len(self.io)}\n'
                           f'stripe = "{stripe}"\nlisten = ["tcp:{node.address}:{PORT}"]\n'
                           f'secret_file = "{self.secret}"\npid_file = "/run/tidegate.pid"\n'
                           f'grace_ms = 3000\n{settings}\n')
            self.start(index, *(flags or {}).get(index, ()))
        for index in range(len(self.io)):
            self.until_serving(index)
        if clients:
            for node in self.compute:
                self.mount_tide(node)
        for index in range(len(self.io)):
            self.until_serving(index)

    @property
    def ttl_s(self):
        """How long the lease of a seat holds that is not renewed, in seconds."""
        return float(self.quick and TTL_MS or DEFAULT_TTL_MS) / 1000

    def serve_quick(self, **named):
        """As `serve`; the short form with a short lease of seats, so that what waits for it is short."""
        ttl = f"ttl_ms = {TTL_MS}\n" if self.quick and TTL_MS else ""
        if self.keeper == "etcd":
            # Its time limits follow from it, and this machine has other work.
            ttl = 'keeper = "etcd"\n' + ("ttl_ms = 4000\n" if self.quick else "")
            ttl += f'[ownership.etcd]\nendpoints = ["http://{self.backend.store.address}:{ETCD_PORT}"]\n'
        self.serve(settings=f"[ownership]\n{ttl}" if ttl else "", **named)

    def start_etcd(self):
        """Starts etcd on the storage node, unless it runs; one that was killed finds its data again."""
        store = self.backend.store
        if self.etcd and self.etcd.running():
            return
        at, data = f"http://{store.address}:{ETCD_PORT}", "/run/etcd"
        if data not in store.run("cat", "/proc/mounts"):
            # In memory: how fast this machine's disk syncs is not what is checked.
            store.run("mkdir", "-p", data)
            store.run("mount", "-t", "tmpfs", "tmpfs", data)
        self.etcd = store.start("etcd", "--data-dir", data + "/data", "--listen-client-urls", at,
                                "--advertise-client-urls", at, "--heartbeat-interval", "50",
                                "--election-timeout", "500", log=f"{store.dir}/etcd.log")
        until("etcd serves", lambda: "is healthy" in store.run(
            "etcdctl", "--endpoints", at, "endpoint", "health", check=False, env={"ETCDCTL_API": "3"}), 60, 0.2)

    def locks_at_the_back_end(self):
        """Byte locks of forwarders in their hidden folder, as this machine's kernel knows them."""
        found = []
        for node in self.io:
            hidden = f"/proc/{node.pid}/root{self.export}/.tidegate"
            for name in os.listdir(hidden):
                try:
                    stat = os.stat(f"{hidden}/{name}")
                except FileNotFoundError:
                    continue  # a forwarder has just removed or renamed it
                place = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
                found += [name for line in open("/proc/locks") if f" {place} " in line]
        return found

    def start(self, index, *flags):
        """Starts that forwarder; its node must be up and have the volume mounted."""
        node = self.io[index]
        self.forwarders[index] = node.start(self.tidegate, "serve", "--config", f"{node.dir}/forwarder.toml",
                                            *flags, log=self.log_of(index), cwd=node.dir)

    def log_of(self, index):
        return f"{self.io[index].dir}/forwarder.{self.exports}.log"

    def until_serving(self, index, seconds=60):
        """Until it listens: the pid file is written then."""
        node, forwarder = self.io[index], self.forwarders[index]
        path = f"/proc/{node.pid}/root/run/tidegate.pid"
        until(f"forwarder {index} serves", lambda: os.path.exists(path) or not forwarder.running(), seconds)
        if not forwarder.running():
            raise Failed(f"forwarder {index} ended:\n{forwarder.tail()}")

    def mount_tide(self, node):
        self.clients[node.name] = client = node.start(
            self.tidegate, "mount", self.tide, "--forwarders", self.list, "--secret-file", self.secret,
            "--foreground", log=f"{node.dir}/mount.{self.exports}.log")
        until(f"Tidegate is mounted on {node.name}", lambda: self.has_tide(node) or not client.running(), MOUNT_S)
        if not client.running():
            raise Failed(f"{node.name}: tidegate mount ended:\n{client.tail()}")

    def has_tide(self, node):
        return f" {self.tide} fuse" in open(f"/proc/{node.pid}/mounts").read()

    def quiet(self):
        """Heals every fault and ends forwarders and mounts, whatever state they are in."""
        self.world.heal()
        self.backend.go_on()
        if self.backend.filled:
            self.backend.empty()
        for node in self.compute:
            client = self.clients.pop(node.name, None)
            if client:
                client.kill()
                said = ""
                for _ in range(5):
                    if not self.has_tide(node):
                        break
                    said = node.run("umount", "-l", self.tide, check=False)
                else:
                    raise Failed(f"{node.name}: {self.tide} stays mounted: {said}")
        for index, forwarder in self.forwarders.items():
            forwarder.kill()
        self.forwarders = {}
        for index, node in enumerate(self.io):
            if node.up and not self.volume_works(node):
                node.die()
            if not node.up:
                self.boot(index)
            node.run("rm", "-f", "/run/tidegate.pid")

    def volume_works(self, node):
        """False where the mount is dead, or was put out by the back end while it was cut off."""
        try:
            node.run("sh", "-c", f"touch {self.volume}/.alive && ls {self.volume}", timeout=20)
            return True
        except Failed:
            return False

    def end(self):
        self.quiet()
        self.world.end()

    # Faults.

    def kill(self, index):
        """SIGKILL for the forwarder's process; its node and its mount of the volume live on."""
        self.forwarders[index].kill()
        self.io[index].run("rm", "-f", "/run/tidegate.pid")

    def restart(self, index, *flags):
        self.start(index, *flags)
        self.until_serving(index)

    def die(self, index):
        """The I/O node is lost: first its network, then all that it ran and had not written."""
        self.io[index].die()
        self.forwarders.pop(index, None)

    def boot(self, index, serve=False):
        """The node comes back: other boot id, fresh mount of the volume, and if wanted its forwarder."""
        self.io[index].boot()
        self.mount_volume(self.io[index])
        if serve:
            self.restart(index)

    def kill_mount(self, index):
        """The process that serves this node's mount of the back end dies."""
        self.mounts[self.io[index].name].kill()

    def remount(self, index):
        node = self.io[index]
        node.run("umount", "-l", self.volume, check=False)
        self.mount_volume(node)

    def cut(self, one, other, both=True):
        self.world.cut(self.node(one), self.node(other), both)

    def pause(self, index):
        self.forwarders[index].signal(signal.SIGSTOP)

    def go_on(self, index):
        self.forwarders[index].signal(signal.SIGCONT)

    def read_only(self, index, on=True):
        self.io[index].run("mount", "-o", "remount,bind," + ("ro" if on else "rw"), self.volume)

    # What checks ask.

    def program(self, name):
        return os.path.join(HERE, "programs", name)

    def serve_or_refused(self, **named):
        """For back ends that cannot carry several nodes: forwarders either serve, or do not start and
        name what is missing. Then `refused` is what they said."""
        self.refused = None
        try:
            self.serve_quick(**named)
        except Failed as failed:
            if " ended:\n" not in str(failed):
                raise  # something else than a forwarder's refusal
            for forwarder in self.forwarders.values():
                until(f"all forwarders end, as one does: {failed}", lambda one=forwarder: not one.running(), 20)
            said = [line for line in str(failed).splitlines() if self.export in line or "export" in line]
            if not said:
                raise Failed(f"forwarders end and do not name what is missing: {failed}") from None
            self.refused = f"refused: {said[-1].strip()}"

    def agent(self, index, seconds=90):
        """A thread on compute node `index` that runs system calls."""
        return self.compute[index].agent(seconds)

    def takings(self, seat):
        """(time, generation, forwarder) of each taking of a seat, as the forwarders' logs have it."""
        found = []
        for index in range(len(self.io)):
            for line in self.logs(index).splitlines():
                match = re.match(r"(\S+) .*\bseat taken\b.* seat=(\d+) generation=(\d+)", ESCAPES.sub("", line))
                if match and int(match[2]) == seat:
                    found.append((match[1], int(match[3]), index))
        return sorted(found)

    def serve_all_seats(self, client=0):
        """A client asks for something of every seat, so that a dead forwarder's are taken."""
        agent, folder = self.agent(client), self.tide + "/of-every-seat"
        agent.makedirs(folder, exist_ok=True)
        self.files_of_every_seat(agent, folder + "/{}", 4 * len(self.io), sync=False)

    def files_of_every_seat(self, agent, path, least, content=lambda number: b"x", sync=True):
        """Makes files, `path` with a number for its {}: at least so many, and on until every seat has one.

        The back end gives each file its inode, and that decides on the file's seat. A fixed number of
        files may all lie with other seats than the one that a check is about. Returns their paths.
        """
        paths, missing = [], set(range(len(self.io)))
        while missing or len(paths) < least:
            if len(paths) >= least + 40 * len(self.io):
                raise Failed(f"{path}: of {len(paths)} files there is no file of seats {str(sorted(missing))[1:-1]}")
            paths.append(path.format(len(paths)))
            agent.write_file(paths[-1], content(len(paths) - 1), sync=sync)
            missing.discard(self.owner_of(agent.stat(paths[-1]).st_ino))
        return paths

    def taken_by(self, seat):
        """The forwarder that took a seat last, or None."""
        takings = self.takings(seat)
        return takings[-1][2] if takings else None

    def logs(self, index):
        with open(self.log_of(index), errors="replace") as log:
            return log.read()

    def owner_of(self, inode, stripe=0):
        """Which forwarder is in charge of that stripe of a file while all live: hash(inode) + stripe."""
        return (layout_hash(inode) + stripe) % len(self.io)


def layout_hash(x):
    """As `mix` in crates/wire/src/layout.rs."""
    x ^= x >> 33
    x = x * 0xff51afd7ed558ccd % (1 << 64)
    x ^= x >> 33
    x = x * 0xc4ceb9fe1a85ec53 % (1 << 64)
    return x ^ (x >> 33)
