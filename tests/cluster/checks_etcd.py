"""Checks with etcd as the keeper of seats, on back ends whose locks do not hold between nodes."""
import contextlib
import time

import checks_data
import checks_faults
from checks_data import pattern, same
from nodes import Failed, until
from registry import check

# `plain`, too: with etcd no lock of the back end is asked for, so one kernel's are no help.
HERE = ("ceph-nolocks", "plain")


@contextlib.contextmanager
def by_etcd(c):
    """Forwarders that are started meanwhile keep their seats by etcd, which runs on the storage node."""
    c.start_etcd()
    c.keeper = "etcd"
    try:
        yield
    finally:
        c.keeper = "files"


@check(HERE, quick=("ceph-nolocks",), serve=False)
def etcd_fail_over(c):
    """Bytes that were written and synced are there after seats went to a stand-in and back, with etcd."""
    with by_etcd(c):
        c.serve_quick()
        checks_faults.fail_over(c)
        same("locks at the back end", c.locks_at_the_back_end(), [])


@check(("ceph-nolocks",), serve=False)
def etcd_needed(c):
    """Without etcd a forwarder that meets another does not start where locks stay on the node."""
    try:
        c.serve_quick(clients=False)
        said = "they serve"
    except Failed as failed:
        said = str(failed)
    if "locks between nodes: both sides got the same lock" not in said or 'keeper = "etcd" there' not in said:
        raise Failed(f"forwarders whose seats are kept by files: {said}")


@check(HERE, serve=False)
def etcd_effects_once(c):
    """An operation that took effect just before its forwarder was killed takes effect once, with etcd."""
    with by_etcd(c):
        checks_faults.effects_once(c)


@check(HERE, serve=False)
def etcd_generations(c):
    """Each taking of a seat has a generation of its own, higher than all before, with etcd."""
    with by_etcd(c):
        c.serve_quick()
        return checks_faults.generations(c)


@check(HERE, serve=False)
def etcd_locks(c):
    """Programs' locks from two nodes: never two holders at once, with etcd."""
    with by_etcd(c):
        c.serve_quick()
        checks_data.locks(c)


@check(HERE, serve=False)
def etcd_split(c):
    """A forwarder that is cut off from etcd does not go on beside the one that took its seat."""
    with by_etcd(c):
        c.serve_quick()
        checks_faults.split(c)


@check(HERE, serve=False)
def etcd_removed_open(c):
    """Open files outlive their names, whoever takes those away; nothing stays of them afterwards."""
    with by_etcd(c):
        c.serve_quick()
        one, other = c.agent(0), c.agent(1)
        data = [pattern(number, 100_000) for number in range(12)]
        paths = [f"{c.tide}/open{number}" for number in range(12)]
        files = []
        for path, text in zip(paths, data):
            one.write_file(path, text)
            files.append(one.open(path, 2))
        for number, path in enumerate(paths):
            if number % 2:
                other.unlink(path)
            else:
                other.write_file(path + ".new", b"new")
                other.rename(path + ".new", path)
        checks_faults.settle(12, "holders of seats sweep what nobody has open")
        for file, text in zip(files, data):
            same("read after its name is gone", one.pread(file, len(text), 0), text)
            one.close(file)
        hidden = f"{c.export}/.tidegate"
        until("nothing is left of removed and renamed files",
              lambda: not c.io[0].run("find", f"{hidden}/orphans", f"{hidden}/moved", "-mindepth", "1").strip(), 40, 1)


@check(HERE, serve=False)
def etcd_away(c):
    """etcd is killed and started anew, soon and late: programs wait at most, and nothing is lost."""
    with by_etcd(c):
        c.serve_quick()
        one = c.agent(0)
        for seconds in (0, 15):
            before = len(c.takings(0))
            one.write_file(f"{c.tide}/before{seconds}", b"before")
            c.etcd.kill()
            checks_faults.settle(seconds, "forwarders lose their leases")
            c.start_etcd()
            started = time.monotonic()
            for number in range(12):
                path = f"{c.tide}/after{seconds}-{number}"
                one.write_file(path, b"after")
                same("read elsewhere", c.agent(1).read_file(path), b"after")
            pause = time.monotonic() - started
            same(f"after {seconds} s: read", one.read_file(f"{c.tide}/before{seconds}"), b"before")
            if seconds:
                same("seat 0 was taken anew", len(c.takings(0)) > before, True)
        return f"served again {pause:.1f} s after it was back"
