#!/bin/bash
# A forwarder stays within its pool and 64 MiB while clients have far more in flight (long: 256 of
# them, 64 MiB each).
. "$(dirname "$0")/../lib.sh"
[ -x "$TIDEGATE" ] || die "$TIDEGATE is missing: make build"
quick=(--quick)
[ "$MODE" = quick ] || quick=()
mkdir -p "$WORK/bench"
check "memory is bounded whatever is in flight" \
  "$TIDEGATE" bench memory "${quick[@]}" --check --dir "$WORK/bench"
verdict
