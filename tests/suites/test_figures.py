"""The papers' figures: every claim of every built-in scenario with its first seed (long: with all seeds), which must
hold, and not without the policy that it tests; the same bytes on one thread and on two, from the development build
and from the release; and an imported Darshan log replayed under every policy."""
import json
import os
import pathlib
import re

import pytest
from conftest import LONG, REPO, run, tidegate

NAMES = re.findall("^[a-z][a-z0-9-]*", tidegate("sim", "--list").stdout, re.MULTILINE)
# What is claimed there depends on where the seed places files and messages: claims are of the mean.
OF_THE_MEAN = "vpfs-2013-fig1", "iofsl-2010-fig6", "liu-2013-fig5"
# scale-1024 has one size, which is a test of its own. The others claim of the mean, which takes minutes.
ONLY_LONG = "scale-1024", "vpfs-shares", "shares-on-disks", "sizes-log-normal"
SMALL = """
title = "Programs on two kinds of devices"
protocol = "closed loop"
policies = ["fifo", "round-robin", "window"]
repetitions = 3
network = { preset = "gigabit-ethernet", jitter = "2 ms", overtaking = true }
forwarders = { count = 3, stripe = "64 KiB", copy_mb_s = 2000, contention_percent = 5 }
device = { model = "hdd-7200" }
application = [
    { workload = "ior", copies = 2, processes = 4, request = "256 KiB", requests = 6 },
    { workload = "noncontig", processes = 4, block = "4 KiB", blocks = 16, requests = 4, direction = "write" },
]
series = [{ name = "disk" }, { name = "ssd", set = { "device.model" = "ssd-sata" } }]
figure = { metric = "completion_mean", also = ["bandwidth", "jain"], requests = true, alone = true }
"""


def test_there_are_figures():
    assert sum(bool(re.fullmatch("[a-z]*-20[0-9][0-9]-fig[0-9]*", name)) for name in NAMES) >= 8


@pytest.mark.parametrize("name", [name for name in NAMES if LONG or name not in ONLY_LONG])
def test_the_claims_of_a_figure_hold(name):
    seeds = [] if LONG or name in OF_THE_MEAN else ["--repetitions", "1"]
    done = tidegate("sim", name, *seeds, "--check", code=None, timeout=3000)
    assert done.returncode == 0, [
        line for line in done.stdout.splitlines() if re.search("DOES NOT HOLD|HOLDS WITHOUT THE POLICY", line)]


def test_the_same_bytes(work):
    """By one thread and two, and by the development build."""
    words = "sim", work.file("small.toml", SMALL), "--json"
    one = tidegate(*words, "--threads", "1").stdout
    assert tidegate(*words, "--threads", "2").stdout == one
    development = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or REPO / "target") / "debug/tidegate-lab"
    if development.exists():
        assert run(development, *words, timeout=600).stdout == one
    else:
        print(f"{development} is missing (cargo build): debug and release are not compared", end=" ")


def darshan():
    """What darshan-dxt-parser prints of four ranks that write and read a file."""
    yield "# darshan log version: 3.41\n# exe: ./climate\n# uid: 1000\n# jobid: 7\n# nprocs: 4\n# run time: 2.0\n"
    for rank in range(4):
        yield (f"# DXT, file_id: 111, file_name: /scratch/shared\n# DXT, rank: {rank}, hostname: n{rank}\n"
               "# DXT, write_count: 8, read_count: 8\n"
               "# Module    Rank  Wt/Rd  Segment          Offset       Length    Start(s)      End(s)")
        for side, begin in (("write", 0.1), ("read", 1.1)):
            for segment in range(8):
                start = begin + segment * 0.1 + rank * 0.001
                yield (f" X_POSIX {rank:8} {side:>6} {segment:8} {(segment * 4 + rank) << 18:15} {1 << 18:12}"
                       f" {start:12.4f} {start + 0.01:11.4f}")


def test_an_imported_darshan_log_is_replayed_under_every_policy(work):
    log, trace = work.file("log.txt", "\n".join(darshan()) + "\n"), work / "log.trace"
    imported = json.loads(tidegate("trace", "import", log, "--output", trace, "--json").stdout)
    replay = json.loads(tidegate("sim", "--trace", trace, "--forwarders", 2, "--json", timeout=600).stdout)
    policies = replay["series"][0]["points"][0]["policies"]
    for policy, result in policies.items():
        print(f"{policy}: {result['makespan']:.1f} ms, {result['back_end_calls']:.0f} calls", end="; ")
        moved = result["bandwidth"] * result["makespan"] * 1000
        assert abs(moved / (imported["bytes_read"] + imported["bytes_written"]) - 1) < 1e-3, (policy, moved)
    assert set(policies) == set(replay["policies"]) >= {"fifo", "round-robin", "window"}, list(policies)
