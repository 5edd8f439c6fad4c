#!/bin/bash
# tidegate down on a mount in use: says at once who uses it, waits, and says what it did.
. "$(dirname "$0")/../lib.sh"
need_fuse

# hold: a process that keeps a file of the mount open; its process id is in HOLDER.
hold() {
  echo bytes > "$MNT/held"
  sleep 300 < "$MNT/held" &
  HOLDER=$!
  remember $HOLDER
  disown $HOLDER
  for _ in $(seq 100); do readlink "/proc/$HOLDER/fd/0" | grep -q held && break; sleep 0.05; done
}
# begin_down: `tidegate down` in the background, its process id in DOWN.
begin_down() {
  BEGUN=$SECONDS
  "$TIDEGATE" down --state-dir "$RUN" > "$WORK/down.out" 2> "$WORK/down.err" < /dev/null &
  DOWN=$!
  remember $DOWN
}
says() { grep -qF -- "$1" "$WORK/down.err" || { sed 's/^/    /' "$WORK/down.err"; return 1; }; }
said_soon() { for _ in $(seq 100); do [ -s "$WORK/down.err" ] && return 0; sleep 0.05; done; return 1; }
# ended CODE: `tidegate down` ends with that code, and so does `tidegate up`, one way or another.
ended() {
  local code=0
  wait $DOWN || code=$?
  wait "$UP_PID" 2>/dev/null || true
  UP_PID=
  [ "$code" = "$1" ] || { echo "    it was $code"; return 1; }
}

for user in "a program that lets go" "one that does not"; do
  note "down beside $user"
  up 2
  hold
  begin_down
  check "it says something within 5 s" said_soon
  check "who uses the mount" says "the mount $MNT is in use by sleep (pid $HOLDER, open file $MNT/held)"
  check "and how long it waits" says "waiting up to 15 s"
  check "it still waits" alive $DOWN
  if [ "$user" = "one that does not" ]; then
    check "it ends with 1" ended 1
    check "after 15 s, not much later" test $((SECONDS - BEGUN)) -ge 14 -a $((SECONDS - BEGUN)) -le 30
    check "what it did" says "had to be killed: the mount in use by sleep (pid $HOLDER, "
    check "the program is not touched" alive $HOLDER
    kill -KILL $HOLDER
  else
    kill -KILL $HOLDER
    check "it ends with 0" ended 0
    check "before the 15 s are over" test $((SECONDS - BEGUN)) -le 13
    check "what it did" says "$MNT was let go of and taken away after"
  fi
  check "two lines, no more" test "$(wc -l < "$WORK/down.err")" = 2
  check "nothing is mounted any more" not mounted "$MNT"
done

note "down beside nobody"
up 2
begin_down
check "it ends with 0" ended 0
check "and says nothing" test ! -s "$WORK/down.err"
verdict
