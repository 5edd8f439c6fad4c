#!/bin/bash
# A killed process is gone within a second, also while every forwarder is stopped or a lock is held.
. "$(dirname "$0")/../lib.sh"
need_fuse
forwarders=4
up $forwarders
signal_all() { for i in $(seq 0 $((forwarders - 1))); do kill "-$1" "$(cat "$RUN/forwarder.$i.pid")"; done; }

# gone_in_time PID: SIGKILL, and the process no longer exists (not even in state D) a second later.
gone_in_time() {
  local pid=$1 started now
  kill -KILL "$pid"
  started=$(date +%s%N)
  while alive "$pid"; do
    now=$(date +%s%N)
    if [ $((now - started)) -gt 1000000000 ]; then
      echo "    still there: $(ps -o stat=,wchan= -p "$pid")"
      return 1
    fi
    sleep 0.01
  done
  echo "    gone after $((($(date +%s%N) - started) / 1000000)) ms"
}

head -c 20000000 /dev/urandom > "$DATA/file"
cat > "$WORK/one.py" <<'PY'
import fcntl, mmap, os, sys, time
what, path = sys.argv[1:]
file = os.open(path, os.O_RDWR)
ready = lambda: print("ready", flush=True)
if what == "lock":
    ready(); fcntl.lockf(file, fcntl.LOCK_EX)
elif what == "flock":
    ready(); fcntl.flock(file, fcntl.LOCK_EX)
elif what == "hold":
    fcntl.lockf(file, fcntl.LOCK_EX); fcntl.flock(file, fcntl.LOCK_EX); ready(); time.sleep(100)
ready()
while True:
    if what == "read": os.pread(file, 1 << 20, 3 << 20)
    elif what == "write": os.pwrite(file, b"x" * (3 << 20), 1 << 20)
    elif what == "fsync": os.pwrite(file, b"x", 5); os.fsync(file)
    elif what == "stat": os.stat(path)
    elif what == "list": os.listdir(os.path.dirname(path))
    elif what == "create": os.close(os.open(path + ".new", os.O_CREAT | os.O_WRONLY)); os.unlink(path + ".new")
    elif what == "map":
        with mmap.mmap(file, 0) as m: m[4096 * 300:4096 * 301] = b"m" * 4096; m.flush()
    elif what == "close": os.close(os.open(path, os.O_RDONLY))
PY
# begin WHAT: starts the program and returns when it is at work; its process id is in PID.
begin() {
  rm -f "$WORK/$1.out"
  python3 "$WORK/one.py" "$1" "$MNT/file" > "$WORK/$1.out" 2>&1 < /dev/null &
  PID=$!
  remember $PID
  disown $PID  # so that bash does not report its end
  for _ in $(seq 100); do grep -q ready "$WORK/$1.out" && break; sleep 0.05; done
  sleep 0.3
}

for what in read write fsync stat list create close; do
  begin $what
  check "$what is at work" alive $PID
  signal_all STOP
  sleep 0.5
  check "$what with stopped forwarders: killed in time" gone_in_time $PID
  signal_all CONT
  check "afterwards the file is readable again" timeout 20 cmp -n 1000000 "$MNT/file" "$DATA/file"
done
# Dirty pages of a mapping belong to no process (docs/semantics.md): who is killed while they wait for
# a stopped forwarder is gone when that goes on, and leaves nothing that hangs.
begin map
check "map is at work" alive $PID
signal_all STOP
sleep 0.5
kill -KILL $PID 2> /dev/null || true
signal_all CONT
check "map, killed with stopped forwarders: gone when they go on" gone_in_time $PID
check "afterwards the file is readable again" timeout 20 cmp -n 1000000 "$MNT/file" "$DATA/file"
begin hold; holder=$PID
for what in lock flock; do
  begin $what
  check "waiting for a $what: killed in time" gone_in_time $PID
  begin $what; waiter=$PID
  signal_all STOP
  sleep 0.3
  check "waiting for a $what with stopped forwarders: killed in time" gone_in_time "$waiter"
  signal_all CONT
done
kill -KILL "$holder"; sleep 0.3
begin lock
check "the locks of killed processes are free" test "$(wc -l < "$WORK/lock.out")" = 2
kill -KILL $PID
down
verdict
