# What every end-to-end suite needs: a working folder, forwarders up and down, faults, verdicts.
# A suite begins with `. "$(dirname "$0")/../lib.sh"`; tests/run gives it TIDEGATE, MODE and WORK.
set -euo pipefail
REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
: "${MODE:=quick}" "${TIDEGATE:=${CARGO_TARGET_DIR:-$REPO/target}/release/tidegate}"
: "${TIDEGATE_TEST_DIR:=/var/tmp}"
OWN_WORK=''
if [ -z "${WORK:-}" ]; then
  WORK=$(mktemp -d "$TIDEGATE_TEST_DIR/tidegate.XXXXXX") OWN_WORK=1
fi
PLAIN=$WORK/plain DATA=$WORK/data MNT=$WORK/mnt RUN=$WORK/run UP_PID=
FAILURES=0

note() { echo "-- $*"; }
# Ends the suite with a named skip; tests/run makes a failure of it under CI=true.
skip() { echo "SKIP: $*"; exit 77; }
die() { echo "FAIL: $*"; exit 1; }
# check WHAT COMMAND...: counts a failure, and goes on.
check() {
  local what=$1; shift
  if "$@"; then echo "  ok   $what"; else echo "  FAIL $what"; FAILURES=$((FAILURES + 1)); fi
}
# The last line of a suite: its exit code is the number of failed checks.
verdict() { [ "$FAILURES" = 0 ] || die "$FAILURES of the checks above"; exit 0; }

need_fuse() {
  [ -r /dev/fuse ] && [ -w /dev/fuse ] || skip "no right to open /dev/fuse"
  command -v fusermount3 >/dev/null || skip "fusermount3 is missing: run tools/need test"
  [ -x "$TIDEGATE" ] || die "$TIDEGATE is missing: cargo build --release -p tidegate-cli"
}

# remember PID: that process is ended with the suite, whatever happens.
remember() { echo "$1 $(started_at "$1")" >> "$WORK/pids"; }
# The start time of a process in clock ticks tells it from a later one with the same id.
started_at() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
# alive PID: neither gone nor a zombie. Looked at once: it may be reaped between two looks.
alive() { case $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) in ''|Z*) return 1;; esac; }

# up N [options]: N forwarders over $DATA, mounted at $MNT, their files in $RUN. The variable REACTORS
# gives each that many threads for connections, so REACTORS=4 tests/run stop is the suite with four.
up() {
  local count=$1; shift
  mkdir -p "$PLAIN" "$DATA" "$MNT"
  mkdir -p -m 700 "$RUN"
  # Emptied here: the process below comes to it only later, and an old `ready` would be believed.
  : > "$WORK/up.out"
  "$TIDEGATE" up "$DATA" --forwarders "$count" --mount "$MNT" --state-dir "$RUN" --foreground --no-restart \
    ${REACTORS:+--reactors "$REACTORS"} "$@" \
    > "$WORK/up.out" 2> "$WORK/up.err" < /dev/null &
  UP_PID=$!
  remember $UP_PID
  for _ in $(seq 300); do
    if grep -qx ready "$WORK/up.out"; then
      mounted "$MNT" || die "tidegate up is ready, and nothing is mounted at $MNT"
      return 0
    fi
    alive $UP_PID || break
    sleep 0.1
  done
  echo "tidegate up: not ready"; tail -n 20 "$WORK/up.out" "$WORK/up.err"
  die "the forwarders did not come up"
}

# down: ends the forwarders with SIGTERM and checks that they leave nothing behind.
down() {
  local code=0 pid=$UP_PID
  [ -n "$pid" ] || return 0
  UP_PID=
  kill -TERM "$pid" 2>/dev/null || true
  for _ in $(seq 300); do alive "$pid" || break; sleep 0.1; done
  if alive "$pid"; then
    echo "  FAIL tidegate up did not end within 30 s of SIGTERM"; FAILURES=$((FAILURES + 1))
  else
    wait "$pid" || code=$?
    check "SIGTERM: tidegate up ends with 0 (was $code)" test "$code" = 0
  fi
  check "nothing is mounted any more" not mounted "$MNT"
  clean_work "$WORK"
  rm -rf "$DATA" "$PLAIN" "$RUN"
}
not() { ! "$@"; }
mounted() { grep -q " $1 fuse" /proc/self/mounts; }

# clean_work DIR: takes away the mounts of DIR, and ends the remembered processes and forwarders.
clean_work() {
  local dir=$1 pid start file point
  # First: whoever looks into a mount without forwarders waits.
  grep -E " $dir/[^ ]* (fuse|tmpfs)" /proc/self/mounts 2>/dev/null | while read -r _ point _; do
    # A forced unmount as root ends the connection, and with it every stuck request.
    umount -f "$point" 2>/dev/null || true
    fusermount3 -uz "$point" 2>/dev/null || umount -l "$point" 2>/dev/null || true
  done || true
  { cat "$dir"/pids "$dir"/*/pids 2>/dev/null || true
    for file in "$dir"/run/forwarder.*.pid "$dir"/*/run/forwarder.*.pid; do
      [ -f "$file" ] || continue
      pid=$(cat "$file")
      # A pid file may be old: only a process that is ours by its command line counts.
      tr '\0' ' ' 2>/dev/null < "/proc/$pid/cmdline" | grep -q "$dir" && echo "$pid $(started_at "$pid")"
    done; true; } | while read -r pid start; do
      [ "$(started_at "$pid")" = "$start" ] || continue
      kill -CONT "$pid" 2>/dev/null; kill -KILL "$pid" 2>/dev/null
    done || true
  rm -f "$dir"/pids "$dir"/*/pids
}
leave() {
  local code=$?
  trap - EXIT; trap '' INT TERM
  if [ $code != 0 ] && [ $code != 77 ]; then
    for file in "$WORK"/up.err "$RUN"/forwarder.*.log; do
      [ -s "$file" ] && { echo "---- the end of ${file#"$WORK"/}"; tail -n 15 "$file"; }
    done
  fi
  clean_work "$WORK"
  [ -z "$OWN_WORK" ] || rm -rf "$WORK"
  exit $code
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# compare NAME [options and cases]: the programs on $PLAIN/NAME and $MNT/NAME give the same.
compare() {
  local name=$1; shift
  mkdir -p "$PLAIN/$name" "$MNT/$name"
  "$REPO/tests/programs/compare" --backend "$DATA/$name" --name "$name/" \
    "$PLAIN/$name" "$MNT/$name" "$@"
}
