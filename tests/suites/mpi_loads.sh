#!/bin/bash
# The loads of examples/mpi over four forwarders: each verifies what it reads, and leaves the files that
# it leaves on a plain directory; on the mount, with the short-cut and with the MPI shim.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../mpi_lib.sh"
need_fuse
need_mpi mpich
families=(mpich) ranks=(2)
choose_ways "mount shim" "mount shortcut shim-mount shim"
if [ "$MODE" = long ]; then families=(mpich openmpi) ranks=(1 2 4); fi
for family in mpich openmpi; do mkdir -p "$WORK/loads/$family"; done

build() { make -s -C "$REPO/examples/mpi" MPICC="mpicc.$1" OUT="$WORK/loads/$1"; }

# Loads a library after those that the environment names already, into the ranks alone.
cat > "$WORK/loads/behind" << 'END'
#!/bin/sh
LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}$1; shift
export LD_PRELOAD
exec "$@"
END
chmod +x "$WORK/loads/behind"

# load WAY DIR FAMILY RANKS NAME [OPTION...]: runs a load in DIR.
load() {
  local way=$1 dir=$2 family=$3 count=$4 name=$5; shift 5
  starter "$family" "$way"
  mkdir -p "$dir"
  # Ranks that wait sleep: the same calls, without taking the processors from the forwarders.
  (cd "$dir" && timeout -k 10 120 "${START[@]}" -n "$count" "$WORK/loads/behind" \
    "$WORK/loads/$family/interconnect.so" "$WORK/loads/$family/$name" "$@" file) \
    > "$WORK/said" 2>&1 < /dev/null \
    && grep -q verified "$WORK/said"
}

# same FAMILY RANKS NAME [OPTION...]: on a plain directory, then every other way; the files are alike.
same() {
  local family=$1 count=$2 name=$3 way what; shift 3
  what="$family, $count ranks: $name $*"
  rm -rf "$PLAIN/loads"
  load plain "$PLAIN/loads" "$family" "$count" "$name" "$@" \
    || { check "$what on a plain directory" false; tail -n 20 "$WORK/said"; return 0; }
  for way in "${ways[@]}"; do
    if load "$way" "$MNT/loads" "$family" "$count" "$name" "$@" \
        && diff -r "$PLAIN/loads" "$MNT/loads" > "$WORK/differ"; then
      check "$what, $way" true
    else
      check "$what, $way" false; tail -n 20 "$WORK/said"; head -n 5 "$WORK/differ" || true
    fi
    rm -rf "$MNT/loads"
  done
}

for family in "${families[@]}"; do
  if ! has_mpi "$family"; then
    [ "${CI:-}" != true ] || die "$family is missing: run tools/need mpi"
    note "left out: $family, which is missing: run tools/need mpi"
    continue
  fi
  check "the loads are built with $family, without a warning" build "$family"
  up 4
  mkdir -p "$PLAIN"
  for count in "${ranks[@]}"; do
    same "$family" "$count" tile --rows 300 --columns 200
    same "$family" "$count" noncontig --independent
    same "$family" "$count" strided --how split
    same "$family" "$count" checkpoint --strided --collective
    same "$family" "$count" planes --create --queries 4
    if [ "$MODE" = long ]; then
      same "$family" "$count" tile --independent
      same "$family" "$count" noncontig --block 40
      same "$family" "$count" noncontig --file-contiguous
      same "$family" "$count" noncontig --memory-contiguous
      same "$family" "$count" strided
      same "$family" "$count" strided --how pointer
      # Open MPI 4.1 with romio321 crashes in it, on any directory.
      [ "$family" = openmpi ] || same "$family" "$count" strided --how nonblocking
      same "$family" "$count" checkpoint
      same "$family" "$count" checkpoint --separate
      same "$family" "$count" planes --create --queries 4 --lead 100 --aggregators "$count"
      [ "$count" = 2 ] || same "$family" "$count" btio --points 20
    fi
  done
  refuses() { ! "$WORK/loads/$family/$1" "${@:3}" > "$WORK/said" 2>&1 && grep -q -- "$2" "$WORK/said"; }
  check "a wrong option is told" refuses tile "no such option" --wrong file
  check "so is a missing file" refuses planes "a file is missing"
  check "and a wrong number" refuses btio "not a number" --points many file
  echo 1234567 > "$WORK/wrong"
  check "wrong contents are a failure" refuses planes WRONG --planes 1 --rows 1 --columns 1 "$WORK/wrong"
  down
done
verdict
