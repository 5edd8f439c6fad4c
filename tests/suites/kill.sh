#!/bin/bash
# A forwarder is killed at a chosen request of a running program: restarted after 2 s, or left dead.
. "$(dirname "$0")/../lib.sh"
need_fuse
stripe=65536  # small enough that each of the programs uses each of the forwarders

# fault NAME I K CASE restart|dead
fault() {
  local name=$1 index=$2 at=$3 case=$4 then=$5 pid
  note "$name: forwarder $index dies at request $at of $case"
  up 4 --stripe $stripe --kill-at-request "$index:$at"
  pid=$(forwarder_pid "$index")
  [ "$then" = dead ] || restart_when_dead "$index"
  check "$case does not notice" compare "$name" "$case"
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
  for index in 0 1 2 3; do
    for at in 1 7 50 333 1000; do
      fault "fio-$index-$at" $index $at fio-shared restart
      fault "git-$index-$at" $index $at git restart
      fault "append-$index-$at" $index $at append dead
    done
  done
fi
verdict
