#!/bin/bash
# A forwarder is killed at a chosen request of a running program: restarted after 2 s, or left dead.
. "$(dirname "$0")/../lib.sh"
need_fuse
stripe=65536  # small enough that each of the programs uses each of the forwarders
tries_max=6

# requests: how many requests each forwarder has answered, one number a line; 0 for a dead one.
requests() {
  "$TIDEGATE" stat --json --state-dir "$RUN" | python3 -c '
import json, sys
for state in json.load(sys.stdin): print(state.get("requests", {}).get("answered", 0))'
}

# most CASE: how many requests the busiest forwarder gets when nothing happens, in MOST.
most() {
  note "$1 without a fault"
  up 4 --stripe $stripe
  check "$1 over 4 forwarders" compare "most-$1" "$1"
  MOST=$(requests | sort -n | tail -n 1)
  down
  note "the busiest forwarder gets $MOST requests"
}

# fault NAME I K CASE restart|dead: forwarder I dies at its K-th request. Which forwarder gets how
# many follows from the inode numbers of the program's files, which nobody can choose. So a run in
# which it got fewer than K is done again, with a number below what it got.
fault() {
  local name=$1 index=$2 at=$3 case=$4 then=$5 pid try got
  for try in $(seq $tries_max); do
    note "$name: forwarder $index dies at request $at of $case"
    up 4 --stripe $stripe --kill-at-request "$index:$at"
    pid=$(forwarder_pid "$index")
    [ "$then" = dead ] || restart_when_dead "$index"
    check "$case does not notice" compare "$name" "$case"
    got=$(requests | sed -n "$((index + 1))p")
    killed "$pid" && break
    [ "$try" = $tries_max ] && break
    note "it got $got requests: again"
    at=$((got > 1 ? got * 3 / 4 : 1))
    down
  done
  check "the fault came" killed "$pid"
  if [ "$then" = dead ]; then
    check "fsync does not fail with a forwarder dead" python3 - "$MNT/synced" <<'PY'
import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for number in range(32):
    os.pwrite(file, bytes([number]) * 70000, number * 70000)
    os.fsync(file)
assert all(os.pread(file, 1, number * 70000 + 69999) == bytes([number]) for number in range(32))
PY
  else
    for _ in $(seq 50); do [ -e "$WORK/restarted" ] && break; sleep 0.1; done
    check "the forwarder was restarted" test -e "$WORK/restarted"
    check "the mount goes on" cp -r "$REPO/tests/programs/src" "$MNT/afterwards"
    check "what is written then is right" diff -r "$REPO/tests/programs/src" "$DATA/afterwards"
  fi
  down
}

fault cp-restart 1 150 cp restart
fault fio-restart 2 400 fio-processes restart
fault sqlite-restart 3 200 sqlite restart
fault cp-dead 2 150 cp dead
fault fio-dead 1 400 fio-processes dead
fault sqlite-dead 0 200 sqlite dead
if [ "$MODE" = long ]; then
  for run in fio-shared:restart git:restart append:dead; do
    case=${run%:*} then=${run#*:}
    most "$case"
    for index in 0 1 2 3; do
      for at in 1 7 $((MOST / 10)) $((MOST / 2)) $((MOST * 9 / 10)); do
        fault "$case-$index-$at" $index $at "$case" "$then"
      done
    done
  done
fi
verdict
