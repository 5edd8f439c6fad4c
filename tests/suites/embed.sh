#!/bin/bash
# The file server of examples/embed_in_c: several clients at once, another policy while they run, a
# client that is killed, a full queue, wrong input, and an orderly end.
. "$(dirname "$0")/../lib.sh"
command -v valgrind > /dev/null || skip "valgrind is missing: run tools/need test"
cd "$REPO"
stage=$WORK/stage sock=$WORK/sock files=$WORK/files
make --silent install PREFIX="$stage" > "$WORK/install.log" 2>&1 || { cat "$WORK/install.log"; die "make install"; }
mkdir -p "$WORK/bin" "$files"
export PKG_CONFIG_PATH=$stage/lib/pkgconfig LD_LIBRARY_PATH=$stage/lib
make --silent -C examples/embed_in_c OUT="$WORK/bin" || die "the example does not compile"
client() { timeout 120 "$WORK/bin/client" "$sock" "$@"; }
size_mb=8; [ "$MODE" = quick ] || size_mb=200

SERVER=
# serve COMMAND...: starts the server with it, and waits until it is ready.
serve() {
  : > "$WORK/server.out"
  "$@" > "$WORK/server.out" 2> "$WORK/server.err" < /dev/null &
  SERVER=$!
  remember $SERVER
  for _ in $(seq 300); do
    grep -qx ready "$WORK/server.out" && return 0
    alive $SERVER || break
    sleep 0.1
  done
  cat "$WORK/server.err"; die "the server did not come up"
}
# finish: SIGTERM, exit code 0, no socket left.
finish() {
  local code=0
  kill -TERM $SERVER
  for _ in $(seq 300); do alive $SERVER || break; sleep 0.1; done
  if alive $SERVER; then check "the server ends on SIGTERM" false; return; fi
  wait $SERVER || code=$?
  check "SIGTERM: the server ends with 0 (was $code)" test $code = 0
  [ $code = 0 ] || tail -n 20 "$WORK/server.err"
  check "its socket is gone" not test -e "$sock"
}
# round NAME: four clients write and read at once; what comes back is what was sent.
round() {
  local i pids=() good=0
  for i in 1 2 3 4; do
    { client put "$1.$i" "app$i" < "$WORK/in.$i" && client get "$1.$i" "app$i" > "$WORK/out.$i"; } &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" && good=$((good + 1)); done
  check "$1: four clients at once succeed" test $good = 4
  for i in 1 2 3 4; do
    check "$1: client $i reads what it wrote" cmp -s "$WORK/in.$i" "$WORK/out.$i"
    check "$1: so does the folder" cmp -s "$WORK/in.$i" "$files/$1.$i"
  done
}
count() { client stats | sed -n "s/^$1 //p"; }
for i in 1 2 3 4; do head -c $((size_mb * 1000000 + i)) /dev/urandom > "$WORK/in.$i"; done

note "several clients"
serve "$WORK/bin/server" "$sock" "$files" window window_ms=250
round first
check "stat" test "$(client stat first.2)" = $((size_mb * 1000000 + 2))

note "another policy while requests are on their way"
( while :; do for policy in fifo round-robin "window order=id" "fifo merge=true"; do
    client policy "$policy" || exit 1; sleep 0.02; done; done ) &
changer=$!; remember $changer
round changing
check "every change was taken" alive $changer
kill $changer; wait $changer 2> /dev/null || true
check "wrong policies are refused" not client policy "no-such-policy" 2> /dev/null
check "and told" grep -q 'there is no policy "no-such-policy"; known: aioli' "$WORK/server.err"

note "a full queue"
client policy "fifo queued_max=8"
before=$(count full)
round full
check "clients were held back ($(($(count full) - before)) times)" test "$(count full)" -gt "$before"
client policy "round-robin"

note "a killed client"
for i in 1 2 3 4; do
  client put "killed.$i" < "$WORK/in.$i" & pid=$!
  "$WORK/bin/client" "$sock" put "killed.$i" < "$WORK/in.$i" 2> /dev/null & victim=$!
  sleep 0.0$i; kill -KILL $victim 2> /dev/null || true; wait $victim 2> /dev/null || true
  wait $pid || true
done
round after
for _ in $(seq 50); do [ "$(count queued)" = 0 ] && break; sleep 0.1; done
check "nothing of it stays queued" test "$(count queued)$(count running)" = 00

note "wrong input"
check "no file" not client get nothing 2> /dev/null
check "nothing above the folder" not client get ../in.1 2> /dev/null
check "noise closes one connection" python3 -c '
import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(b"x" * 100)
s.settimeout(10)
try: sys.exit(0 if s.recv(1) == b"" else 1)
except ConnectionError: pass' "$sock"
check "others go on" test "$(client stat after.1)" = $((size_mb * 1000000 + 1))
code=0; "$WORK/bin/server" "$WORK/sock2" "$files" fifo depth=0 2> "$WORK/err" || code=$?
check "wrong options: exit code 2 (was $code), and told" grep -q 'depth = 0 is outside' "$WORK/err"

note "an end in the middle of writing"
client put last < "$WORK/in.1" 2> /dev/null & pid=$!
sleep 0.02
finish
wait $pid || true

note "under valgrind"
serve valgrind --quiet --leak-check=full --errors-for-leak-kinds=definite,possible --error-exitcode=9 \
  --fair-sched=yes "$WORK/bin/server" "$sock" "$files"
for i in 1 2 3 4; do head -c $((400000 + i)) /dev/urandom > "$WORK/in.$i"; done
round valgrind
"$WORK/bin/client" "$sock" put killed < "$WORK/in.1" 2> /dev/null & victim=$!
sleep 0.05; kill -KILL $victim 2> /dev/null || true; wait $victim 2> /dev/null || true
client policy "fifo merge=true"
finish
verdict
