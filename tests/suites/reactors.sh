#!/bin/bash
# Forwarders with four reactors each: programs, connections that fill all of them, stops, and a kill.
. "$(dirname "$0")/../lib.sh"
need_fuse
REACTORS=4
sizes="1000 70000 1048576 5000001"
[ "$MODE" = quick ] || sizes="$sizes 50000000"

# busy NAME: in the background, many clients of all forwarders write, read back and compare, each with
# connections of its own (the short-cut makes a client of each process); their ids are in BUSY.
cat > "$WORK/busy.py" <<'PY'
import hashlib, os, random, sys
path, seed, sizes = sys.argv[1], int(sys.argv[2]), [int(size) for size in sys.argv[3:]]
chance = random.Random(seed)
for turn in range(6):
    for size in sizes:
        name, data = f"{path}.{size}", chance.randbytes(size)
        with open(name, "wb", buffering=0) as file:
            assert file.write(data) == size
            os.fsync(file.fileno())
        with open(name, "rb", buffering=0) as file:
            read = b"".join(iter(lambda: file.read(1 << 20), b""))
        assert read == data, f"{name}: other bytes"
        print(hashlib.sha256(data).hexdigest(), os.path.basename(name))
PY
busy() {
  BUSY=()
  for client in $(seq 12); do
    "$TIDEGATE" run --state-dir "$RUN" -- \
      python3 "$WORK/busy.py" "$MNT/$1.$client" "$client" $sizes > "$WORK/$1.$client.out" 2>&1 < /dev/null &
    BUSY+=($!)
    remember $!
  done
}
# done_well NAME: they ended without an error, and the back end has what each wrote last.
done_well() {
  local code=0 client
  for client in "${BUSY[@]}"; do
    wait "$client" || { code=1; echo "    a client exits with $?"; }
  done
  for client in $(seq 12); do
    tail -n "$(echo $sizes | wc -w)" "$WORK/$1.$client.out" > "$WORK/sums"
    (cd "$DATA" && sha256sum --quiet --check "$WORK/sums") || code=1
  done
  return $code
}
shard_threads() { cat /proc/"$(forwarder_pid "$1")"/task/*/comm | grep -c '^shard\.' || true; }

note "programs"
up 2
check "a forwarder has three threads beside the first" test "$(shard_threads 0)" = 3
check "cp" compare programs cp
check "sqlite" compare programs sqlite
busy many
check "many clients at once have their own bytes" done_well many
down

note "a forwarder is killed amid the work of many, and started again"
up 2 --kill-at-request 1:300
pid=$(forwarder_pid 1)
restart_when_dead 1
busy killed
check "they do not notice" done_well killed
check "the fault came" killed "$pid"
down

note "a stop amid the work of many, and a start"
up 2
busy stopped
sleep 1
pid=$(forwarder_pid 0)
restart_when_dead 0
kill -TERM "$pid"
for _ in $(seq 350); do killed "$pid" || sleep 0.1; done
check "it ends in time" killed "$pid"
check "it has drained" grep -q 'stopped in_time=true' "$RUN/forwarder.0.log"
check "they do not notice" done_well stopped
down
verdict
