#!/bin/bash
# `tidegate bench cluster` on forwarders that run: programs under the commands of two nodes (here this
# one, twice), a valid run, what it puts back and removes, and what makes a run invalid or impossible.
. "$(dirname "$0")/../lib.sh"
need_fuse
up 2 --stripe 64KiB --policy wfq
bench() { timeout 120 "$TIDEGATE" bench cluster --tide "$MNT" --state-dir "$RUN" --dir "$WORK" --limit 60 "$@"; }
small=(--programs 4 --small 512KiB --large 1MiB --request 128KiB --node "env A=1" --node "nice -n 1")

# Direct I/O at the back end needs a file system that has it, which $WORK is not everywhere.
dd if=/dev/zero of="$DATA/direct" bs=4096 count=1 oflag=direct status=none 2> /dev/null || skip "no direct I/O in $DATA"
rm "$DATA/direct"
before=$("$TIDEGATE" policy get --state-dir "$RUN")
for access in read write; do
  code=0
  bench --bare "$DATA" "${small[@]}" --runs 2 --access $access --check --json > "$WORK/$access.json" || code=$?
  check "a valid run: $access (was $code)" test $code = 0
  check "each way had its turns: $access" python3 - "$WORK/$access.json" <<'P'
import json, sys
found = json.load(open(sys.argv[1]))
[load] = found["loads"]
ways = sorted(turn["way"] for run in load["runs"] for turn in run["turns"])
assert ways == sorted(["none", "fifo", "window"] * 2), ways
assert load["program_nodes"] == ["env A=1", "nice -n 1"] * 2, load["program_nodes"]
assert all(claim["holds"] for claim in load["claims"]) and len(load["claims"]) == 2
for run in load["runs"]:
    for turn in run["turns"]:
        assert len(turn["completions_s"]) == 4 and turn["makespan_s"] == max(turn["completions_s"])
        assert 0.25 <= turn["fairness"] <= 1.0, turn["fairness"]
P
done
check "the policy is what it was" test "$("$TIDEGATE" policy get --state-dir "$RUN")" = "$before"
check "no files are left" test -z "$(ls "$DATA")"

note "runs that are not valid"
# Tidegate's own mount in the place of the back end: what should pass the forwarders by does not.
code=0; bench --bare "$MNT" "${small[@]}" --runs 1 --check > "$WORK/out" || code=$?
check "requests that went astray are an exit code of 1 (was $code)" test $code = 1
check "and are told" grep -q "DOES NOT HOLD.*turns where that is not so: 1" "$WORK/out"
refused() {
  local words=$1 code=0; shift
  "$@" > "$WORK/out" 2>&1 || code=$?
  [ $code != 0 ] && grep -q "$words" "$WORK/out" || { cat "$WORK/out"; return 1; }
}
check "a folder that is not the export" refused "No such file" bench --bare "$WORK" "${small[@]}"
# Programs 1 and 3 are there; the one that ends first is named.
check "a node that cannot be reached" refused "program-[13] under .false.: has ended" \
  bench --bare "$DATA" "${small[@]:0:8}" --node "env A=1" --node false
check "sizes that do not fit" refused "multiple of --request" bench --bare "$DATA" --small 8KiB
check "programs that cannot be halved" refused "must be even" bench --bare "$DATA" --programs 3
check "no files are left" test -z "$(ls "$DATA")"
down
verdict
