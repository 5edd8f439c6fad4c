#!/bin/bash
# Programs do what they do on a plain directory whatever way their data takes: every transport, with
# every storage, through the mount and past it. The long form has all of it, the quick one a slice.
. "$(dirname "$0")/../lib.sh"
need_fuse
library=$(dirname "$TIDEGATE")/libtidegate_preload.so
[ -f "$library" ] || die "$library is missing: cargo build --release -p tidegate-preload"

# cell TRANSPORT STORAGE FORWARDERS [CASE...]: brings both up and compares, on the mount and with the
# short-cut.
cell() {
  local transport=$1 storage=$2 count=$3 name="$1-$2-$3" options=(); shift 3
  case $transport in
    shared) ;;
    unix) options+=(--shared-memory false) ;;
    *) options+=(--transport "$transport") ;;
  esac
  case $storage in
    buffered) ;;
    uring) options+=(--io direct --engine auto) ;;
    threads) options+=(--io direct --engine threads) ;;
  esac
  up "$count" "${options[@]}"
  [ "$transport" != tcp ] || check "clients reach them by TCP" grep -q '"tcp:127' "$RUN/client.toml"
  [ "$storage" != uring ] || check "data goes by io_uring" \
    grep -q "storage: direct I/O by uring" "$RUN/forwarder.0.log"
  check "$transport, $storage, $count forwarders, through the mount" compare "$name" "$@"
  check "$transport, $storage, $count forwarders, with the short-cut" \
    compare "$name-short" --shortcut "$library" "$@"
  down
  rm -rf --one-file-system "$PLAIN/$name" "$PLAIN/$name-short" "$DATA/$name" "$DATA/$name-short"
}

if [ "$MODE" = quick ]; then
  cell tcp buffered 2 append copy-range dd offsets python-io shell sqlite unlinked
  cell unix buffered 2 append dd offsets unlinked
else
  for transport in shared unix tcp; do
    for storage in buffered uring threads; do
      cell "$transport" "$storage" 1
      cell "$transport" "$storage" 4
    done
  done
fi
verdict
