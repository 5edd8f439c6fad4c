#!/bin/bash
# The papers' figures: every claim of every built-in scenario with its first seed (long: with all
# seeds); the same bytes on one thread and on two, from the development build and from the release;
# and an imported Darshan log replayed under every policy.
. "$(dirname "$0")/../lib.sh"
[ -x "$TIDEGATE" ] || die "$TIDEGATE is missing: make build"
seeds=(--repetitions 1)
[ "$MODE" = quick ] || seeds=()

# figure NAME: its claims hold; what does not is printed.
figure() {
  local repetitions=("${seeds[@]}")
  # What is claimed there depends on where the seed places files and messages: claims are of the mean.
  case "$1" in vpfs-2013-fig1 | iofsl-2010-fig6 | liu-2013-fig5) repetitions=() ;; esac
  "$TIDEGATE" sim "$1" "${repetitions[@]}" --check > "$WORK/figure" && return 0
  grep "DOES NOT HOLD" "$WORK/figure"
  return 1
}
"$TIDEGATE" sim --list | grep -o '^[a-z][a-z0-9-]*' > "$WORK/names"
check "there are figures" test "$(grep -c '^[a-z]*-20[0-9][0-9]-fig[0-9]*$' "$WORK/names")" -ge 8
while read -r name; do
  # scale-1024 has one size, which is a test of its own.
  [ "$name" = scale-1024 ] && [ "$MODE" = quick ] && continue
  check "the claims of $name hold" figure "$name" < /dev/null
done < "$WORK/names"

# A disk and an SSD, several programs, a window that has an edge in the run; small enough for a
# build without optimisation.
cat > "$WORK/small.toml" << 'TOML'
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
TOML
"$TIDEGATE" sim "$WORK/small.toml" --json --threads 1 > "$WORK/one.json"
"$TIDEGATE" sim "$WORK/small.toml" --json --threads 2 > "$WORK/two.json"
check "one thread and two give the same bytes" cmp "$WORK/one.json" "$WORK/two.json"
development=${CARGO_TARGET_DIR:-$REPO/target}/debug/tidegate-lab
if [ -x "$development" ]; then
  developed() { "$development" sim "$WORK/small.toml" --json | cmp "$WORK/one.json"; }
  check "the development build gives the same bytes as the release" developed
else
  note "$development is missing (cargo build): debug and release are not compared"
fi

# What darshan-dxt-parser prints of a log: four ranks that write and read a shared file.
python3 > "$WORK/log.txt" << 'PYTHON'
print("# darshan log version: 3.41\n# exe: ./climate\n# uid: 1000\n# jobid: 7\n# nprocs: 4\n# run time: 2.0\n")
for rank in range(4):
    print(f"# DXT, file_id: 111, file_name: /scratch/shared\n# DXT, rank: {rank}, hostname: n{rank}\n"
          "# DXT, write_count: 8, read_count: 8\n# Module    Rank  Wt/Rd  Segment          Offset       Length    Start(s)      End(s)")
    for side, begin in (("write", 0.1), ("read", 1.1)):
        for segment in range(8):
            start = begin + segment * 0.1 + rank * 0.001
            print(f" X_POSIX {rank:8} {side:>6} {segment:8} {(segment * 4 + rank) << 18:15} {1 << 18:12} {start:12.4f} {start + 0.01:11.4f}")
PYTHON

# replayed LOG [import options]: its accesses run to their end under every policy.
replayed() {
  "$TIDEGATE" trace import "$@" --output "$WORK/log.trace" --json > "$WORK/import.json" || return 1
  "$TIDEGATE" sim --trace "$WORK/log.trace" --forwarders 2 --json > "$WORK/replay.json" || return 1
  python3 - "$WORK/import.json" "$WORK/replay.json" << 'PYTHON'
import json, sys
imported, replay = (json.load(open(path)) for path in sys.argv[1:])
policies = replay["series"][0]["points"][0]["policies"]
for policy, result in policies.items():
    print(f"-- {policy}: makespan {result['makespan']:.1f} ms, {result['back_end_calls']:.0f} calls")
    moved = result["bandwidth"] * result["makespan"] * 1000
    assert abs(moved / (imported["bytes_read"] + imported["bytes_written"]) - 1) < 1e-3, moved
assert set(policies) == set(replay["policies"]) >= {"fifo", "round-robin", "window"}, list(policies)
PYTHON
}
check "an imported Darshan log is replayed under every policy" replayed "$WORK/log.txt"
verdict
