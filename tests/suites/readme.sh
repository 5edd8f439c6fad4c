#!/bin/bash
# README's blocks of commands run from top to bottom as printed.
. "$(dirname "$0")/../lib.sh"
need_fuse

# The blocks between fences, one file each; a picture begins its lines with blanks.
mkdir -p "$WORK/blocks"
awk -v to="$WORK/blocks/" '/^```/ { inside = !inside; number += inside; next } inside { print > (to number) }' "$REPO/README.md"
ran=0
for block in "$WORK"/blocks/*; do
  if head -n 1 "$block" | grep -q '^ '; then continue; fi
  if ! grep -qv '^make ' "$block"; then
    # These build and test all there is: that they are there is enough here.
    while read -r _ target _; do
      check "make $target: the Makefile has it" grep -q "^$target:.*##" "$REPO/Makefile"
    done < "$block"
    continue
  fi
  note "$(wc -l < "$block") lines, the first of which is: $(head -n 1 "$block")"
  # As printed, but for where things lie: in a folder with the programs that were built.
  mkdir -p "$WORK/here/target" "$WORK/home" "$WORK/runtime"
  chmod 700 "$WORK/runtime"
  ln -sfn "$(dirname "$TIDEGATE")" "$WORK/here/target/release"
  sed "s|/tmp/|$WORK/|g" "$block" > "$WORK/commands"
  as_printed() {
    (cd "$WORK/here" && HOME=$WORK/home XDG_RUNTIME_DIR=$WORK/runtime TMPDIR=$WORK \
      timeout 300 bash -euxo pipefail "$WORK/commands" < /dev/null 2>&1)
  }
  check "all of them end with 0" as_printed
  check "and a second time" as_printed
  # Where one failed, the rest has not ended the forwarders.
  HOME=$WORK/home XDG_RUNTIME_DIR=$WORK/runtime "$TIDEGATE" down > "$WORK/down.out" 2>&1 || true
  ran=$((ran + 1))
done
check "there was a block to run" test "$ran" -gt 0
check "nothing is mounted any more" not grep -q " $WORK/[^ ]* fuse" /proc/self/mounts
verdict
