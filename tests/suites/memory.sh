#!/bin/bash
# What Tidegate takes of a node: the size of its program and of the library that is loaded into others, and a
# forwarder's memory, which stays within its pool and 64 MiB while clients have far more in flight (long: 256 of them,
# 64 MiB each).
. "$(dirname "$0")/../lib.sh"
[ -x "$TIDEGATE" ] || die "$TIDEGATE is missing: make build"
# at_most MB FILE: so large it is without what a debugger needs.
at_most() {
  strip -o "$WORK/stripped" "$2" || return 1
  local bytes
  bytes=$(stat -c %s "$WORK/stripped")
  note "$(basename "$2"): $bytes bytes stripped, at most $1 MB"
  [ "$bytes" -le "$(($1 * 1000000))" ]
}
check "the program is small" at_most 12 "$TIDEGATE"
check "the library for programs is small" at_most 2 "$(dirname "$TIDEGATE")/libtidegate_preload.so"
# It must not stand before the client's C library, which a program may be linked with.
names=$(nm -D --defined-only "$(dirname "$TIDEGATE")/libtidegate_preload.so" | sed -n 's/.* \(tidegate_.*\)/\1/p' | sort)
check "it has no names of the C library" test "$names" = "$(printf 'tidegate_hint_end\ntidegate_hint_publish')"

quick=(--quick)
[ "$MODE" = quick ] || quick=()
mkdir -p "$WORK/bench"
check "memory is bounded whatever is in flight" \
  "$TIDEGATE" bench memory "${quick[@]}" --check --dir "$WORK/bench"
verdict
