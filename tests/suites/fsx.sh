#!/bin/bash
# fsx: random reads, writes, maps, truncations and copies of one file against its own model.
. "$(dirname "$0")/../lib.sh"
need_fuse
fsx=$("$REPO/tools/need" --path fsx) || skip "fsx is not built: run tools/need fsx"
counts=(4) seeds=(5) operations=2000
if [ "$MODE" = long ]; then counts=(1 4) seeds=(5 6 7 8) operations=20000; fi
for count in "${counts[@]}"; do
  up "$count"
  for seed in "${seeds[@]}"; do
    mkdir -p "$WORK/artifacts"
    check "$operations operations, seed $seed, $count forwarders" \
      "$fsx" -q -N "$operations" -S "$seed" -P "$WORK/artifacts" "$MNT/fsx-$seed"
  done
  down
done
verdict
