#!/bin/bash
# Programs do what they do on a plain directory where forwarders take data past the page cache, by
# io_uring and by threads.
. "$(dirname "$0")/../lib.sh"
need_fuse

# chosen WORDS: what the forwarder says in its log of its storage.
chosen() { grep -q "storage: $1" "$RUN"/forwarder.0.log; }

up 1 --io direct
if ! chosen "direct I/O by uring"; then
  grep -h -e storage: -e "takes no direct" "$RUN"/forwarder.0.log || true
  down
  skip "no direct I/O by io_uring in $DATA"
fi
check "stat says how data is moved" \
  grep -q '"engine":"uring"' <("$TIDEGATE" stat --state-dir "$RUN" --json)
cases=(append copy-range dd fio-shared holes offsets python-mmap sqlite unlinked)
[ "$MODE" = quick ] || cases=()
check "programs over 1 forwarder by io_uring" compare ring "${cases[@]}"
operations=2000
[ "$MODE" = quick ] || operations=20000
if fsx=$("$REPO/tools/need" --path fsx); then
  mkdir -p "$WORK/artifacts"
  check "fsx, $operations operations" \
    "$fsx" -q -N "$operations" -S 7 -P "$WORK/artifacts" "$MNT/fsx"
fi
down
cases=(dd fio-threads offsets)
[ "$MODE" = quick ] || cases=()
up 4 --io direct --stripe "64 KiB"
check "programs over 4 forwarders by io_uring" compare rings "${cases[@]}"
down
up 1 --io direct --engine threads
check "the threads were asked for" chosen "direct I/O by threads: as configured"
check "programs over 1 forwarder by threads" compare threads "${cases[@]}"
down
verdict
