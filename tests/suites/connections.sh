#!/bin/bash
# Thousands of sessions with one forwarder: each writes and reads its own bytes, a mount goes on beside them, and the
# forwarder's memory is what it was when they have gone.
. "$(dirname "$0")/../lib.sh"
need_fuse
connections=400
[ "$MODE" = quick ] || connections=10000
# The driver and the forwarder each have a descriptor for each connection, the forwarder some more.
hard=$(ulimit -Hn)
if [ "$hard" != unlimited ] && [ "$hard" -lt $((connections * 5 / 4 + 1500)) ]; then
  connections=$(((hard - 1500) * 4 / 5))
  [ "$connections" -ge 100 ] || skip "the hard limit of open files is $hard; 2000 are needed at least"
  note "the hard limit of open files is $hard: $connections connections"
fi
ulimit -Sn "$hard"

port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
mkdir -p "$DATA" "$MNT" "$RUN"
cat > "$WORK/forwarder.toml" <<TOML
export = "$DATA"
listen = ["unix:$WORK/socket", "tcp:127.0.0.1:$port"]
insecure = true
pid_file = "$RUN/forwarder.0.pid"
sessions_max = $((connections + 10))
stall_ms = 120000
TOML
"$TIDEGATE" serve --config "$WORK/forwarder.toml" \
  > "$WORK/serve.log" 2>&1 < /dev/null &
forwarder=$!
remember $forwarder
for _ in $(seq 300); do [ -S "$WORK/socket" ] && [ -s "$RUN/forwarder.0.pid" ] && break; sleep 0.1; done
check "nothing is too low for $connections sessions" not grep -q "room for" "$WORK/serve.log"
echo "forwarders = [\"unix:$WORK/socket\"]" > "$WORK/client.toml"
"$TIDEGATE" mount "$MNT" --client "$WORK/client.toml" --foreground > "$WORK/mount.log" 2>&1 < /dev/null &
mount=$!
remember $mount
for _ in $(seq 300); do mounted "$MNT" && break; sleep 0.1; done
mounted "$MNT" || { tail -n 5 "$WORK/serve.log" "$WORK/mount.log"; die "nothing is mounted"; }

cat > "$WORK/many.py" <<'PY'
import struct, sys, time
sys.path.insert(0, sys.argv[1])
from session import BYE, READ, WRITE, Session
where, count, round_number = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
forwarder, bye = sys.argv[5], sys.argv[6] == "bye"
SIZE, AT_ONCE = 4096, 200

def memory():
    """Anonymous and file-backed memory of the forwarder, bytes."""
    fields = dict(line.split(":", 1) for line in open(f"/proc/{forwarder}/status"))
    return [int(fields[key].split()[0]) * 1024 for key in ("RssAnon", "RssFile")]

def own(number):
    return (b"%08d-%d " % (number, round_number)) * (SIZE // 11 + 1)

before, began = memory(), time.monotonic()
sessions = []
for first in range(0, count, AT_ONCE):
    group = range(first, min(first + AT_ONCE, count))
    group = [Session(where, (round_number << 32) + number + 1) for number in group]
    for session in group:
        session.send_hello()
    for session in group:
        session.take_hello()
    sessions += group
greeted, idle = time.monotonic() - began, memory()
handle = sessions[0].create("shared")
def extent(number):
    return handle + struct.pack("<HQQ", 1, number * SIZE, SIZE)
# In groups whose requests are all under way at once.
for first in range(0, count, AT_ONCE):
    group = list(enumerate(sessions))[first:first + AT_ONCE]
    for number, session in group:
        session.send(WRITE, extent(number), own(number)[:SIZE], reply_slot=True)
    for number, session in group:
        session.take()
for first in range(0, count, AT_ONCE):
    group = list(enumerate(sessions))[first:first + AT_ONCE]
    for number, session in group:
        session.send(READ, extent(number))
    for number, session in group:
        data = session.take()[1]
        assert data == own(number)[:SIZE], f"session {number} read what is not its own"
worked, busy = time.monotonic() - began, memory()
for first in range(0, count if bye else 0, AT_ONCE):
    group = sessions[first:first + AT_ONCE]
    for session in group:
        session.send(BYE)
    for session in group:
        session.take()
for session in sessions:
    session.socket.close()
print(f"    {count} over {where.split(':')[0]}: greeted after {greeted:.1f} s,"
      f" I/O done {worked:.1f} s")
print(f"    bytes for each: {(idle[0] - before[0]) // count} when it is idle after its hello,"
      f" {(busy[0] - before[0]) // count} after I/O, and {(busy[1] - before[1]) // count} of the mapped table")
PY
cat > "$WORK/ordinary.py" <<'PY'
# An ordinary program: writes and reads back, over and over, until it is told to stop.
import os, random, sys
path, stop = sys.argv[1:]
chance, rounds = random.Random(1), 0
file = os.open(path, os.O_RDWR | os.O_CREAT)
while not os.path.exists(stop):
    data, at = chance.randbytes(chance.randrange(1, 200000)), chance.randrange(0, 1 << 20)
    assert os.pwrite(file, data, at) == len(data)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    read = os.pread(file, len(data), at)
    assert read == data, f"round {rounds}: other bytes at {at}"
    rounds += 1
print(rounds)
PY

# settled: waits until the forwarder has no sessions but the mount's and those of who asks.
settled() {
  local left=
  for _ in $(seq 300); do
    left=$("$TIDEGATE" stat --client "$WORK/client.toml" --json | python3 -c '
import json, sys
print(len(json.load(sys.stdin)[0]["sessions"]))')
    [ "$left" -le 3 ] && return 0
    sleep 0.3
  done
  echo "    $left sessions are still there"; return 1
}
rss() { awk '/^VmRSS/ { print $2 }' "/proc/$forwarder/status"; }
# many WHERE ROUND bye|close
many() { python3 "$WORK/many.py" "$REPO/tests" "$1" "$connections" "$2" "$forwarder" "$3"; }

python3 "$WORK/ordinary.py" "$MNT/ordinary" "$WORK/stop" > "$WORK/ordinary.out" 2>&1 &
ordinary=$!
remember $ordinary
sleep 2
settled
before=$(rss)
round=0
for where in "unix:$WORK/socket" "tcp:127.0.0.1:$port" "unix:$WORK/socket" "tcp:127.0.0.1:$port"; do
  round=$((round + 1))
  # A killed client says no goodbye: its session ends with its lease.
  end=bye; [ $round != 3 ] || end=close
  note "round $round: $connections sessions over ${where%%:*}, which end with $end"
  check "each has its own bytes" many "$where" $round $end
  check "they have gone" settled
  sleep 2
  after[round]=$(rss)
  echo "    memory: $before KiB before all, ${after[round]} KiB now"
  check "the forwarder answers stat" "$TIDEGATE" stat --client "$WORK/client.toml" > /dev/null
done
check "memory is within 6 MiB of what it was" test $((after[2] - before)) -le 6144
check "a second time takes nothing more (1 MiB for what comes and goes)" test $((after[4] - after[2])) -le 1024
touch "$WORK/stop"
code=0; wait $ordinary || code=$?
check "the program on the mount went on without an error (was $code)" test $code = 0
echo "    rounds of it: $(cat "$WORK/ordinary.out")"
check "it made progress" test "$(tail -n 1 "$WORK/ordinary.out")" -gt 5
check "its file is as it was written" cmp "$MNT/ordinary" "$DATA/ordinary"

kill -TERM $mount; wait $mount || true
kill -TERM $forwarder
code=0; wait $forwarder || code=$?
check "SIGTERM ends the forwarder with 0 (was $code)" test $code = 0
verdict
