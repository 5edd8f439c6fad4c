#!/bin/bash
# An operation that took effect just before its forwarder was killed, unanswered, takes effect once.
. "$(dirname "$0")/../lib.sh"
need_fuse
ops=(create rename append unlink mkdir rmdir link symlink)

# replayed OP FORWARDERS K restart|dead: forwarder 0 dies after the K-th OP; the program sees nothing.
replayed() {
  local op=$1 count=$2 at=$3 then=$4 pid
  note "$op over $count, killed at number $at, then $then"
  mkdir -p "$DATA"
  # Prepared behind the mount, so that only the operation under test counts.
  python3 "$REPO/tests/programs/src/py/once.py" prepare "$op" "$DATA"
  up "$count" --kill-after-effect "0:$op:$at"
  pid=$(forwarder_pid 0)
  [ "$then" = dead ] || restart_when_dead 0
  check "$op: the program gets no error" \
    python3 "$REPO/tests/programs/src/py/once.py" perform "$op" "$MNT"
  check "$op: the fault came" killed "$pid"
  check "$op: each took effect once, seen through the mount" \
    python3 "$REPO/tests/programs/src/py/once.py" check "$op" "$MNT"
  check "$op: each took effect once, in the exported directory" \
    python3 "$REPO/tests/programs/src/py/once.py" check "$op" "$DATA"
  down
}

for op in "${ops[@]}"; do
  replayed "$op" 1 5 restart
  replayed "$op" 4 1 dead
  if [ "$MODE" = long ]; then
    replayed "$op" 1 1 restart
    replayed "$op" 4 2 restart
    replayed "$op" 2 3 dead
  fi
done
verdict
