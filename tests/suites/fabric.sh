#!/bin/bash
# Forwarders and clients through libfabric, with the providers tcp and shm: unmodified programs see what they see on a
# plain directory, and either side may be killed.
. "$(dirname "$0")/../lib.sh"
need_fuse
"$REPO/tools/need" fabric > "$WORK/need.log" 2>&1 || skip "libfabric: $(tail -n 1 "$WORK/need.log")"
check "the crate's own tests" cargo test --quiet --locked --manifest-path "$REPO/crates/fabric/Cargo.toml" \
  --features libfabric
check "clients and forwarders, one of them killed" cargo test --quiet --locked \
  --manifest-path "$REPO/crates/server/Cargo.toml" --features fabric --test fabric
[ "$MODE" = long ] || verdict

check "clients of forwarders that are killed again and again" cargo test --quiet --locked \
  --manifest-path "$REPO/crates/server/Cargo.toml" --features fabric --test clients
plain=$TIDEGATE
# TIDEGATE_FABRIC names a program that was built with the feature already.
if [ -z "${TIDEGATE_FABRIC:-}" ]; then
  # Beside the usual build, whose dependencies it shares.
  target=${CARGO_TARGET_DIR:-$REPO/target}
  TIDEGATE_FABRIC=$target/fabric/release/tidegate
  note "building with the feature"
  (cd "$REPO" && CARGO_BUILD_BUILD_DIR=$target CARGO_TARGET_DIR=$target/fabric cargo build --release --quiet --locked \
    -p tidegate-cli -p tidegate-preload --features tidegate-cli/fabric) || die "the build with --features fabric"
fi
export TIDEGATE=$TIDEGATE_FABRIC
library=$(dirname "$TIDEGATE")/libtidegate_preload.so
size_mb=500
head -c $((size_mb * 1000000 + 7)) /dev/urandom > "$WORK/in"
sum() { sha256sum < "$1" | cut -d' ' -f1; }
# through WHAT: a file of odd length comes back, through the mount and from the back end.
through() {
  cp "$WORK/in" "$MNT/file.$1" && check "$1: a file of $size_mb MB arrives" test "$(sum "$DATA/file.$1")" = "$(sum "$WORK/in")"
  # What the page cache of the mount has would not be asked for.
  echo 3 > /proc/sys/vm/drop_caches 2> /dev/null || true
  check "$1: and comes back" test "$(sum "$MNT/file.$1")" = "$(sum "$WORK/in")"
}

note "without the feature"
if "$plain" --version > /dev/null 2>&1; then
  printf 'export = "%s"\nlisten = ["fabric:shm:%s"]\n' "$WORK" "$WORK/none.sock" > "$WORK/none.toml"
  absent() { ! timeout 20 "$plain" serve --config "$WORK/none.toml" 2> "$WORK/said" && grep -q "features fabric" "$WORK/said"; }
  check "a program that was built without says so" absent
fi

note "provider shm"
up 2 --transport fabric:shm
through shm
check "sessions are told by their transport" grep -q 'fabric:shm' "$RUN/client.toml"
stat_works() { "$TIDEGATE" stat --state-dir "$RUN" > "$WORK/stat"; }
check "stat" stat_works
check "programs" compare shm --shortcut "$library"
first=$(forwarder_pid 1)
restart_when_dead 1
(sleep 1; kill -KILL "$(forwarder_pid 1)") & killer=$!
for i in 1 2 3 4; do
  cp "$WORK/in" "$MNT/killed.$i"
  check "a forwarder is killed: copy $i is right" cmp -s "$WORK/in" "$DATA/killed.$i"
  sleep 0.5
done
wait $killer
for _ in $(seq 200); do [ "$(forwarder_pid 1)" != "$first" ] && [ -s "$RUN/forwarder.1.pid" ] && break; sleep 0.1; done
through restarted
down
check "nothing is left in /dev/shm" test -z "$(ls /dev/shm | grep '^tidegate\.' | while read -r name; do
  pid=${name#tidegate.}; [ -d "/proc/${pid%%.*}" ] || echo "$name"; done)"

note "provider tcp, with a secret"
mkdir -p "$PLAIN" "$DATA" "$MNT" "$RUN"
(umask 077; head -c 32 /dev/urandom | base64 > "$WORK/secret")
ports=($(python3 -c 'import socket
all = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*[one.getsockname()[1] for one in all])'))
serve() {
  "$TIDEGATE" serve --config "$RUN/forwarder.$1.toml" >> "$RUN/forwarder.$1.log" 2>&1 < /dev/null &
  remember $!
  for _ in $(seq 300); do [ "$(forwarder_pid "$1")" = $! ] && return 0; sleep 0.1; done
  die "forwarder $1 did not come up"
}
for i in 0 1; do
  cat > "$RUN/forwarder.$i.toml" <<TOML
export = "$DATA"
forwarder = $i
seats = 2
listen = ["fabric:tcp:127.0.0.1:${ports[$i]}"]
secret_file = "$WORK/secret"
pid_file = "$RUN/forwarder.$i.pid"

[log]
level = "debug"
TOML
  serve $i
done
cat > "$WORK/client.toml" <<TOML
forwarders = ["fabric:tcp:127.0.0.1:${ports[0]}", "fabric:tcp:127.0.0.1:${ports[1]}"]
secret_file = "$WORK/secret"
TOML
mount_it() {
  "$TIDEGATE" mount "$MNT" --client "$WORK/client.toml" --foreground > "$WORK/mount.log" 2>&1 < /dev/null &
  mount=$!
  remember $mount
  for _ in $(seq 300); do mounted "$MNT" && return 0; sleep 0.1; done
  tail -n 5 "$WORK/mount.log" "$RUN"/forwarder.*.log; die "nothing is mounted"
}
mount_it
through tcp
check "programs" compare tcp --shortcut "$library"
note "the client is killed, and comes back"
(cat /dev/zero > "$MNT/endless") 2> /dev/null & writer=$!
remember $writer
sleep 0.5; kill -KILL $mount; wait $mount 2> /dev/null || true
umount -l "$MNT" 2> /dev/null || fusermount3 -uz "$MNT"
kill -KILL $writer 2> /dev/null || true; wait $writer 2> /dev/null || true
rm -f "$DATA/endless"
check "the forwarders go on" test -d "/proc/$(forwarder_pid 0)" -a -d "/proc/$(forwarder_pid 1)"
mount_it
through again
note "a forwarder is killed, and comes back"
victim=$(forwarder_pid 0)
(sleep 0.2; kill -KILL "$victim"; sleep 1; echo) > "$WORK/killed" & killer=$!
cp "$WORK/in" "$MNT/over" & copy=$!
wait $killer; serve 0
code=0; wait $copy || code=$?
check "a copy meanwhile succeeds (was $code)" test $code = 0
check "and is right" cmp -s "$WORK/in" "$DATA/over"
through back
check "logs name the transport" grep -q 'fabric:tcp:127' "$RUN/forwarder.1.log"
fusermount3 -u "$MNT"
for i in 0 1; do
  pid=$(forwarder_pid $i)
  kill -TERM "$pid"
  for _ in $(seq 100); do alive "$pid" || break; sleep 0.1; done
  check "SIGTERM: forwarder $i ends" not alive "$pid"
done
verdict
