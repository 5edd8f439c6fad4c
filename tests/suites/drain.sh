#!/bin/bash
# Maintenance: a forwarder is drained and taken back, then all are restarted one after the other.
# Programs that write, rename, lock and read meanwhile see no error, and `stat --check` says who serves
# what.
. "$(dirname "$0")/../lib.sh"
need_fuse
OUT=$WORK/out ERR=$WORK/err STOP=$WORK/stop LOAD=$WORK/load
mkdir -p "$LOAD"
up 3 --stripe 65536  # so that each file is on each of them
tidegate() { timeout 90 "$TIDEGATE" "$@" --state-dir "$RUN" > "$OUT" 2> "$ERR"; }
says() { grep -qE "$1" "$OUT" || { cat "$OUT" "$ERR"; return 1; }; }
# healthy / ill PATTERN...: stat --check comes to say so within 20 s, with a line for each pattern.
healthy() {
  for _ in $(seq 100); do tidegate stat --check && return 0; sleep 0.2; done
  cat "$OUT" "$ERR"; return 1
}
ill() {
  local code pattern missing
  for _ in $(seq 100); do
    code=0 missing=; tidegate stat --check || code=$?
    for pattern in "$@"; do grep -qE "$pattern" "$OUT" || missing=1; done
    [ $code = 1 ] && [ -z "$missing" ] && return 0
    sleep 0.2
  done
  echo "code $code:"; cat "$OUT" "$ERR"; return 1
}

cat > "$WORK/load.py" <<'PY'
import fcntl, os, random, sys, time
what, mount, plain, stop, report = sys.argv[1:]
rounds, longest = 0, 0.0
def timed(call, *arguments):
    global longest
    began = time.monotonic()
    result = call(*arguments)
    longest = max(longest, time.monotonic() - began)
    return result
def put(folder, number):
    data = random.Random(number).randbytes(200_000)
    name = f"{folder}/{number % 20}"
    file = timed(os.open, name + ".new", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    for at in range(0, 150_000, 30_000):
        assert timed(os.pwrite, file, data[at:at + 30_000], at) == 30_000
    timed(os.fsync, file)
    end = timed(os.open, name + ".new", os.O_WRONLY | os.O_APPEND)
    assert timed(os.write, end, data[150_000:]) == 50_000
    os.close(end)
    timed(os.rename, name + ".new", name)
    assert timed(os.fstat, file).st_size == 200_000
    assert timed(os.pread, file, 300_000, 0) == data, f"{name} reads otherwise than it was written"
    os.close(file)
def fetch():
    with open(f"{mount}/first", "rb") as file, open(f"{plain}/first", "rb") as same:
        assert timed(file.read) == same.read(), "first reads otherwise than it was written"
    assert "first" in timed(os.listdir, mount)
held = os.open(f"{mount}/held", os.O_RDWR | os.O_CREAT)
while not os.path.exists(stop):
    if what == "write":
        put(mount, rounds)
        put(plain, rounds)
        with open(f"{mount}/lock", "w") as lock:
            timed(fcntl.lockf, lock, fcntl.LOCK_EX)
            timed(fcntl.lockf, lock, fcntl.LOCK_UN)
        timed(fcntl.lockf, held, fcntl.LOCK_EX, 1, rounds)  # and keeps them
    else:
        fetch()
    rounds += 1
    with open(report + ".new", "w") as file: file.write(f"{rounds}\n{longest * 1000:.0f}\n")
    os.rename(report + ".new", report)
PY
rounds() { head -n 1 "$LOAD/$1" 2>/dev/null || echo 0; }
# goes_on WHAT: it has done three more rounds within 20 s.
goes_on() {
  local from; from=$(rounds "$1")
  for _ in $(seq 200); do [ "$(rounds "$1")" -ge $((from + 3)) ] && return 0; sleep 0.1; done
  tail -n 5 "$LOAD/$1.err"; return 1
}
head -c 1000000 /dev/urandom > "$PLAIN/first"; cp "$PLAIN/first" "$MNT/first"; : > "$MNT/lock"
declare -A PID
for what in write read; do
  python3 "$WORK/load.py" $what "$MNT" "$PLAIN" "$STOP" "$LOAD/$what" 2> "$LOAD/$what.err" < /dev/null &
  PID[$what]=$!; remember $!
done
for what in write read; do check "$what is at work" goes_on $what; done

note "drain and undo"
check "all is well" healthy
check "and is said" says '^3 forwarders, each serves its own seat$'
check "forwarder 1 is drained" tidegate drain 1
check "and holds no seat" says 'forwarder 1 .* holds no seat'
check "stat --check says who stands in" ill '^forwarder 1 \(.*\) is draining' '^seat 1 is served by forwarder [02] \(.*\), a stand-in'
check "nothing else is wrong" test "$(wc -l < "$OUT")" = 2
tidegate stat --check --json && code=0 || code=$?
check "as JSON too" test "$code $(python3 -c '
import json, sys
said = json.load(open(sys.argv[1]))
print(said["healthy"], said["forwarders"], sorted(one["kind"] for one in said["wrong"]))' "$OUT")" = \
  "1 False 3 ['draining', 'stand-in']"
for what in write read; do check "$what goes on" goes_on $what; done
tidegate stat --json
check "it still holds none, and answers" test "$(python3 -c '
import json, sys
one = json.load(open(sys.argv[1]))[1]
print(one["draining"], one["seats"])' "$OUT")" = "True []"
check "drained twice is drained" tidegate drain 1
check "another one, by its address" tidegate drain "unix:$RUN/forwarder.0.sock"
for what in write read; do check "$what goes on with one left" goes_on $what; done
tidegate drain 2 && code=0 || code=$?
check "the last one is not" sh -c "test $code = 1 && grep -q 'forwarder 2 .* is the last one that serves' $ERR"
tidegate drain 3 && code=0 || code=$?
check "a forwarder that is not there is told" sh -c "test $code = 2 && grep -q 'forwarder 3 is none of these' $ERR"
for index in 1 0; do
  check "forwarder $index is taken back" tidegate drain $index --undo
  check "and serves its seat" says "forwarder $index .* serves its seat"
done
check "all is well again" healthy

note "a rolling restart"
# restart I: SIGTERM, and the same again when it has ended.
restart() {
  local pid; pid=$(forwarder_pid "$1")
  kill -TERM "$pid"
  for _ in $(seq 300); do alive "$pid" || break; sleep 0.1; done
  ! alive "$pid" || { echo "forwarder $1 did not end within 30 s"; return 1; }
  "$TIDEGATE" serve --config "$RUN/forwarder.$1.toml" >> "$WORK/restart.log" 2>&1 < /dev/null &
  remember $!; RESTARTED+=($!)
  healthy
}
tidegate drain 0
for index in 0 1 2; do
  check "forwarder $index is restarted, all is well" restart $index
  for what in write read; do check "$what goes on" goes_on $what; done
done

: > "$STOP"
for what in write read; do
  code=0; wait "${PID[$what]}" || code=$?
  check "$what saw no error: $(rounds $what) rounds, longest call $(tail -n 1 "$LOAD/$what") ms" test $code = 0
  [ $code = 0 ] || cat "$LOAD/$what.err"
done
check "what was written is there" diff -r --exclude held --exclude lock "$PLAIN" "$MNT"
down
verdict
