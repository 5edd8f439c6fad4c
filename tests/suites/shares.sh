#!/bin/bash
# Shares set at run time under load change what applications get within a second; the last rule that
# goes brings the plain policy back; what is saved outlives a restart; views have a share; mistakes
# change nothing.
. "$(dirname "$0")/../lib.sh"
need_fuse
export TIDEGATE_STATE_DIR=$RUN

up 2 --device hdd-7200

share() { "$TIDEGATE" share "$@"; }
policy() { "$TIDEGATE" share --json 2>/dev/null | python3 -c 'import json, sys; print(json.load(sys.stdin)["policy"])'; }
# moved NAME...: bytes that each application has written so far.
moved() {
  "$TIDEGATE" stat --json | python3 -c '
import json, sys
states = json.load(sys.stdin)
print(*(sum(app["write_bytes"] for state in states for app in state.get("applications", [])
            if app.get("name") == name) for name in sys.argv[1:]))' "$@"
}
# rates SECONDS: KB a second that heavy and light write, over so many seconds.
rates() {
  local from to
  read -ra from <<< "$(moved heavy light)"; sleep "$1"; read -ra to <<< "$(moved heavy light)"
  echo "$(((to[0] - from[0]) / 1000 / $1)) $(((to[1] - from[1]) / 1000 / $1))"
}
# writers NAME: four writers of one application, until the suite ends.
writers() {
  mkdir -p "$DATA/$1"
  for number in 1 2 3 4; do
    "$TIDEGATE" run --app "$1" -- sh -c "while dd if=/dev/zero of=$MNT/$1/$number bs=1M count=64 \
      conv=notrunc status=none; do :; done" 2>/dev/null < /dev/null &
    WRITERS+=($!); remember $!
  done
}
# within LOW HIGH VALUE
within() { [ "$3" -ge "$1" ] && [ "$3" -le "$2" ]; }

note "under load"
WRITERS=()
writers heavy; writers light
sleep 2
check "the policy is fifo" test "$(policy)" = fifo
read -r heavy light <<< "$(rates 2)"
echo "    no rules: heavy $heavy KB/s, light $light KB/s"
check "both write" test "$heavy" -gt 1000 -a "$light" -gt 1000
share set heavy weight=8 > "$WORK/set"
check "the rule's application is shown" grep -q 'app *heavy.*8.*heavy' "$WORK/set"
check "the policy keeps shares" test "$(policy)" = two-level
sleep 1
read -r heavy light <<< "$(rates 3)"
echo "    weight 8: heavy $heavy KB/s, light $light KB/s"
check "heavy gets at least three times as much" test "$heavy" -gt $((3 * light))
check "light goes on" test "$light" -gt 0
share set heavy weight=1 max=8MB/s > /dev/null
sleep 1
read -r heavy light <<< "$(rates 3)"
echo "    max 8 MB/s: heavy $heavy KB/s, light $light KB/s"
check "heavy keeps its maximum" within 4000 10400 "$heavy"
check "light gets the rest" test "$light" -gt "$heavy"

note "mistakes change nothing"
before=$(share)
for wrong in "set a weight=0" "set a min=-5MB/s" "set a min=9MB/s max=3MB/s" "set a --group none-such" \
  "set a colour=red" "set a max=99999999999TB/s" "remove none-such"; do
  code=0; read -ra words <<< "$wrong"
  share "${words[@]}" > "$WORK/out" 2> "$WORK/err" || code=$?
  check "$wrong: exit code 2 (was $code), one line" test $code = 2 -a "$(wc -l < "$WORK/err")" = 1
  sed 's/^/    /' "$WORK/err"
done
check "the rules are as before" test "$(share)" = "$before"
share set greedy min=500GB/s 2> "$WORK/err" > /dev/null
check "a minimum beyond all is told with the sum" grep -q 'reservations cannot be met.*500 GB/s' "$WORK/err"
share remove greedy > /dev/null

note "messages"
# says WORD COMMAND...: the command fails with exit code 2 and says that.
says() {
  local word=$1 code=0; shift
  "$TIDEGATE" "$@" > "$WORK/out" 2> "$WORK/err" || code=$?
  check "$*: $word (exit code 2, was $code)" test $code = 2 -a "$(grep -c -- "$word" "$WORK/err")" = 1
}
says "there is none; add latency" share set a percentile=99
says "weight is there twice" share set a weight=3 weight=4
says "has a control character" share set $'a\nb' weight=3
says "there is no view none-such" view remove none-such
"$TIDEGATE" policy set window > /dev/null 2> "$WORK/err"
check "a policy that waits for the last rule is told" grep -q 'two-level stays effective' "$WORK/err"
"$TIDEGATE" policy set fifo > /dev/null 2>&1

# errors: how many requests were answered with an errno.
errors() {
  "$TIDEGATE" stat --json | python3 -c '
import json, sys; print(sum(state["requests"]["errors"] for state in json.load(sys.stdin)))'
}
check "nobody failed" test "$(errors)" = 0

note "changes at once"
CHANGES=()
for number in 1 2 3 4 5 6 7 8; do
  save=(); [ $((number % 2)) = 0 ] && save=(--temporary)
  share set "many$number" weight="$number" "${save[@]}" > /dev/null 2> "$WORK/many.$number" &
  CHANGES+=($!); remember $!
done
for pid in "${CHANGES[@]}"; do wait "$pid" || check "a change beside others succeeds" false; done
share > "$WORK/out" 2> "$WORK/err"
check "none is lost" test "$(grep -c 'app *many[1-8] ' "$WORK/out")" = 8
check "the forwarders have the same" not grep -q 'other rules' "$WORK/err"
check "nothing is left of writing them" test "$(find "$DATA/.tidegate" -name 'shares.toml*' | wc -l)" = 1
for number in 1 2 3 4 5 6 7 8; do share remove "many$number" > /dev/null 2>&1; done
# Changes that came second were answered so.
refused=$(errors)

note "views"
"$TIDEGATE" view create quick jobs/quick weight=3 > /dev/null
"$TIDEGATE" run --view quick -- sh -c 'echo inside > hello; test "$PWD" = "$TIDEGATE_MOUNT"'
check "a view's program works in its directory" grep -q inside "$DATA/jobs/quick/hello"
mkdir "$WORK/view"
"$TIDEGATE" mount "$WORK/view" --view quick
check "a view can be mounted" grep -q inside "$WORK/view/hello"
echo more > "$WORK/view/more"
"$TIDEGATE" umount "$WORK/view"
check "its users count as one application" test "$(moved quick)" = 12
says "a view quick already" view create quick jobs/elsewhere
"$TIDEGATE" view remove quick > "$WORK/out"
check "a removed view is gone" not grep -q quick "$WORK/out"
code=0; "$TIDEGATE" run --view quick -- true 2> "$WORK/err" || code=$?
check "no view of that name: exit code 2 (was $code)" test $code = 2

note "the last rule"
share remove heavy > "$WORK/out"
check "the plain policy is back" test "$(policy)" = fifo
read -r heavy light <<< "$(rates 2)"
echo "    no rules: heavy $heavy KB/s, light $light KB/s"
check "heavy is bounded no more" test "$heavy" -gt 10400
check "nobody else failed" test "$(errors)" = "$refused"
kill "${WRITERS[@]}" 2>/dev/null || true
wait "${WRITERS[@]}" 2>/dev/null || true

note "saved"
share --save set kept weight=5 > /dev/null
share group club --user 0 weight=2 --temporary > /dev/null
pid=$(forwarder_pid 1)
kill -TERM "$pid"
for _ in $(seq 100); do alive "$pid" || break; sleep 0.1; done
"$TIDEGATE" serve --config "$RUN/forwarder.1.toml" > "$WORK/restart.log" 2>&1 < /dev/null &
remember $!; RESTARTED+=($!)
rules_of() {
  "$TIDEGATE" stat --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[int(sys.argv[1])].get("shares", ""))' "$1"
}
for _ in $(seq 100); do rules_of 1 > "$WORK/out" && [ -s "$WORK/out" ] && grep -q . "$WORK/out" && break; sleep 0.1; done
check "what was saved is in force after a restart" grep -q 'kept' "$WORK/out"
check "what was not is gone" not grep -q club "$WORK/out"
share > /dev/null 2> "$WORK/err"
check "forwarders that differ are told" grep -q 'other rules' "$WORK/err"
share reset > "$WORK/out"
check "reset goes back to the configuration" grep -q 'no rules' "$WORK/out"
check "and removes the file" test ! -e "$DATA/.tidegate/shares.toml"

down

note "rules at start: a group, and a minimum"
cat > "$WORK/rules.toml" <<'RULES'
[[group]]
name = "club"
weight = 3

[[app]]
name = "heavy"
group = "club"

[[app]]
name = "second"
group = "club"
RULES
up 2 --device hdd-7200 --shares "$WORK/rules.toml"
check "they are in force" test "$(policy)" = two-level
# parts SECONDS: what heavy, second and light write of all, over so many seconds, in percent.
parts() {
  local from to all
  read -ra from <<< "$(moved heavy second light)"; sleep "$1"; read -ra to <<< "$(moved heavy second light)"
  all=$((to[0] + to[1] + to[2] - from[0] - from[1] - from[2] + 1))
  echo "$((100 * (to[0] - from[0]) / all)) $((100 * (to[1] - from[1]) / all)) $((100 * (to[2] - from[2]) / all))"
}
WRITERS=()
writers heavy; writers second; writers light
sleep 4
read -r heavy second light <<< "$(parts 4)"
echo "    heavy $heavy %, second $second %, light $light %"
check "the group has three quarters" within 62 86 $((heavy + second))
check "its members share it" within 25 50 "$heavy"
share set light min=60% > /dev/null
sleep 1
read -r heavy second light <<< "$(parts 4)"
echo "    light at least 60 %: heavy $heavy %, second $second %, light $light %"
check "light has its minimum" within 52 80 "$light"
check "the others go on" test "$heavy" -gt 4 -a "$second" -gt 4
kill "${WRITERS[@]}" 2>/dev/null || true
wait "${WRITERS[@]}" 2>/dev/null || true
down

note "a greedy application beside another one"
up 2 --device hdd-7200
share set greedy weight=1 > /dev/null
share set other weight=1 > /dev/null
cat > "$WORK/ask.py" <<'ASK'
"""Reads one file at random places with so many threads until it is killed."""
import os, random, sys, threading
path, threads = sys.argv[1], int(sys.argv[2])
threading.stack_size(256 * 1024)
file = os.open(path, os.O_RDONLY)
def ask():
    while True:
        os.pread(file, 16384, random.randrange(16384) * 65536)
for _ in range(threads):
    threading.Thread(target=ask).start()
ASK
WRITERS=()
# Each on a node of its own, as it were: the applications of one mount share what that may send.
for name in greedy:1000 other:64; do
  app=${name%:*}
  truncate -s 1G "$DATA/$app"
  mkdir "$WORK/$app.mnt"
  "$TIDEGATE" mount "$WORK/$app.mnt"
  TIDEGATE_APP=$app python3 "$WORK/ask.py" "$WORK/$app.mnt/$app" "${name#*:}" 2> /dev/null < /dev/null &
  WRITERS+=($!); remember $!
done
asked() {
  "$TIDEGATE" stat --json | python3 -c '
import json, sys
states = json.load(sys.stdin)
print(*(sum(app["read_requests"] for state in states for app in state.get("applications", [])
            if app.get("name") == name) for name in ("greedy", "other")))'
}
sleep 3
# Four times at most: where the clients wait for a processor, the other does not always ask for its half.
for window in 1 2 3 4; do
  read -ra from <<< "$(asked)"; sleep 10; read -ra to <<< "$(asked)"
  greedy=$((to[0] - from[0])); other=$((to[1] - from[1]))
  part=$((1000 * other / (greedy + other + 1)))
  echo "    window $window: the other has $part of 1000 beside 1000 requests at once: $other to $greedy"
  [ "$part" -ge 475 ] && break
done
check "it keeps its half to a twentieth" test "$part" -ge 475
kill -KILL "${WRITERS[@]}" 2>/dev/null || true
wait "${WRITERS[@]}" 2>/dev/null || true
for app in greedy other; do "$TIDEGATE" umount "$WORK/$app.mnt"; done

down
verdict
