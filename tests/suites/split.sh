#!/bin/bash
# The same programs with stripes of 4 KiB, so that every operation is split over the forwarders.
. "$(dirname "$0")/../lib.sh"
need_fuse
cases=(cp tar dd fio-processes fio-threads git sqlite python-mmap append)
[ "$MODE" = quick ] || cases=()
up 4 --stripe 4096
check "programs over stripes of 4 KiB" compare split "${cases[@]}"
down
verdict
