#!/bin/bash
# Two mounts of one export, as on two nodes: what one changes the other sees, also what it has open.
. "$(dirname "$0")/../lib.sh"
need_fuse
OTHER=$WORK/other

# mount_other: a second client of the same forwarders, at $OTHER.
mount_other() {
  mkdir -p "$OTHER"
  "$TIDEGATE" mount "$OTHER" --state-dir "$RUN" --foreground > "$WORK/other.log" 2>&1 < /dev/null &
  remember $!
  OTHER_PID=$!
  for _ in $(seq 100); do mounted "$OTHER" && return 0; sleep 0.1; done
  cat "$WORK/other.log"; die "the second mount did not come up"
}
same_sum() { [ "$(sha256sum < "$1")" = "$(sha256sum < "$2")" ]; }

up 4 --stripe 65536
mount_other

note "a file that is open here is renamed there, while it is written"
head -c 2500000 /dev/urandom > "$PLAIN/source"
(
  for part in 0 1 2 3 4; do
    dd if="$PLAIN/source" bs=500000 skip=$part count=1 status=none || exit 1
    sleep 0.3
  done
) > "$MNT/log" &
writer=$!
sleep 0.5
mv "$OTHER/log" "$OTHER/log.1"
check "the writer ends without an error" wait $writer
check "all it wrote is in the renamed file" same_sum "$PLAIN/source" "$OTHER/log.1"
check "the old name is gone here" not test -e "$MNT/log"

note "what is removed there stays readable here, where it is open"
exec 7< "$MNT/log.1"
rm "$OTHER/log.1"
cat <&7 > "$WORK/kept"
exec 7<&-
check "all bytes are still there" same_sum "$PLAIN/source" "$WORK/kept"

note "records appended through both"
: > "$MNT/journal"
append() { for i in $(seq 200); do echo "$1 $i" >> "$2/journal"; done; }
append here "$MNT" & first=$!
append there "$OTHER" & second=$!
check "appending here" wait $first
check "appending there" wait $second
check "each record once" test "$(sort -u "$MNT/journal" | wc -l)" = 400
check "and nothing else" test "$(wc -l < "$OTHER/journal")" = 400

note "a lock held here is seen there"
exec 8> "$MNT/lock"
flock 8
check "flock there fails" not flock --nonblock "$OTHER/lock" true
exec 8>&-
check "and is granted when the lock is gone" flock --timeout 5 "$OTHER/lock" true

kill -TERM "$OTHER_PID"
check "SIGTERM: the second mount ends with 0" wait "$OTHER_PID"
down
verdict
