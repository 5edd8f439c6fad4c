#!/bin/bash
# The short-cut: what programs see is the same as on the mount, whatever they do to descriptors,
# while files change on both ways, and while forwarders die; and it is used when it is worth it.
. "$(dirname "$0")/../lib.sh"
need_fuse
library=$(dirname "$TIDEGATE")/libtidegate_preload.so
[ -f "$library" ] || die "$library is missing: cargo build --release -p tidegate-preload"
cc -O2 -Wall -Wextra -Werror -pthread -o "$WORK/shortcut" "$REPO/tests/programs/src/shortcut.c"

# part MODE NAME [run's options]: a part of the program, through `tidegate run`.
part() {
  local mode=$1 name=$2; shift 2
  mkdir -p "$MNT/parts"
  TIDEGATE_SHORTCUT=$mode timeout 120 "$TIDEGATE" run --state-dir "$RUN" "$@" -- \
    "$WORK/shortcut" "$MNT/parts" "$name"
}
aborts() { local code=0; "$@" 2> "$WORK/said" || code=$?; [ $code = 134 ] && grep -q "$says" "$WORK/said"; }

up 2
for name in calls errors processes handlers numbers maps threads forks last children limited; do
  check "$name, with every file taken at once" part check "$name"
done
check "calls, with files taken when they are worth it" part on calls
for name in flags copies; do
  check "$name, with every file taken at once" part eager "$name"
done
check "a number that changed unseen is noticed" part eager unseen
says='became another file' check "and is a finding when that is asked for" aborts part check unseen
check "a program that does little does not connect" part on worth
check "without the short-cut nobody connects" part on nobody --no-shortcut
check "and neither where the environment says so" part off nobody
check "calls of 40 MiB and more" part eager large
restart_when_dead 1
(sleep 2; kill -KILL "$(forwarder_pid 1)") &
check "writes while a forwarder is killed" part eager faults
wait $!
says='neither on, off, eager nor check'
wrong() { part quick nobody 2> "$WORK/said" && grep -q "$says" "$WORK/said"; }
check "a wrong mode is said, and is off" wrong
mv "$library" "$library.away"
unfound() { part on nobody 2> "$WORK/said" && grep -q "all data goes through the mount" "$WORK/said"; }
check "a missing library is said" unfound
mv "$library.away" "$library"
down

# Unmodified programs; some of them where there is little time.
cases=(append copy-range dd fio-processes holes locks offsets python-io python-mmap shell sqlite-wal unlinked)
counts=(4)
if [ "$MODE" = long ]; then cases=() counts=(1 4); fi
for count in "${counts[@]}"; do
  up "$count"
  check "programs over $count forwarders" compare shortcut --shortcut "$library" "${cases[@]}"
  if [ "$MODE" = long ]; then
    fsx=$("$REPO/tools/need" --path fsx) || skip "fsx is not built: run tools/need fsx"
    check "fsx" env LD_PRELOAD="$library" TIDEGATE_SHORTCUT=check \
      "$fsx" -q -N 20000 -S 9 -P "$WORK" "$MNT/fsx"
  fi
  down
done
verdict
