#!/bin/bash
# MPI programs: with the shim they read and write what they do without, on the mount and with the
# short-cut, with MPICH and Open MPI; all ranks are one application, and a collective is one operation.
. "$(dirname "$0")/../lib.sh"
need_fuse
families=()
for family in mpich openmpi; do
  command -v mpicc.$family > /dev/null && command -v mpirun.$family > /dev/null && families+=($family)
done
[ ${#families[@]} = 2 ] || skip "MPICH or Open MPI is missing: run tools/need test"
release=$(dirname "$TIDEGATE")
for library in libtidegate_mpi.so libtidegate_mpich.so libtidegate_ompi.so libtidegate_preload.so; do
  [ -f "$release/$library" ] || die "$release/$library is missing: make build"
done
# Open MPI refuses root, more ranks than cores, and says so at length; one node has no fabric.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none HWLOC_HIDE_ERRORS=2
programs=$REPO/tests/mpi bin=$WORK/bin traces=$WORK/traces claims=()
mkdir -p "$bin"
for family in "${families[@]}"; do
  for name in collectives odd; do
    mpicc.$family -O1 -Wall -Wextra -Werror -o "$bin/$name.$family" "$programs/$name.c" ||
      die "$name.c does not compile"
  done
  fortran=1
  mpifort.$family -o "$bin/columns.$family" "$programs/columns.f90" 2> "$WORK/said" || fortran=
done
cc -O1 -Wall -Wextra -Werror -o "$bin/hints" "$programs/hints.c" || die "hints.c does not compile"

# through APP [run's options] -- COMMAND...: as that application; what it says is in $WORK/said.
through() {
  local app=$1; shift
  timeout 60 "$TIDEGATE" run --state-dir "$RUN" ${app:+--app "$app"} "$@" > "$WORK/said" 2>&1
}
says() { grep -q "$1" "$WORK/said" || { tail -n 15 "$WORK/said"; return 1; }; }
# right APP [run's options] -- COMMAND...: that ends well, and says so.
right() { through "$@" && says 'all right' || { tail -n 15 "$WORK/said"; return 1; }; }
claim() { claims+=("$DATA/$1"); }

up 2 --trace "$traces"
note "the channel, without MPI"
check "hints by the mount" right h --no-shortcut -- "$bin/hints" "$MNT/hints.mount" mount
check "hints by the short-cut" right h -- "$bin/hints" "$MNT/hints.shortcut" shortcut
# The second one ends with a request off its grid, before it had any.
claim hints.mount=h:2; claim hints.shortcut=h:2

for family in "${families[@]}"; do
  note "$family"
  # Two more are nonblocking, which have none; those of large counts are not in Open MPI 4.
  calls=8; [ $family = mpich ] || calls=6
  mpirun="mpirun.$family" run="$bin/collectives.$family"
  for way in --no-shortcut --no-mpi ''; do
    name=calls$way.$family
    check "every collective call ${way:-with all}" \
      right "$name" $way --verbose -- $mpirun -n 3 "$run" "$MNT/$name"
    [ "$way" = --no-mpi ] || { claim "$name=$name:$calls"
      check "none was off the grid" not grep -q '[1-9][0-9]* off the grid' "$WORK/said"
      check "calls were predicted, and requests carried that" \
        grep -q ' [1-9][0-9]* predicted, [1-9][0-9]* requests with hints' "$WORK/said"; }
  done
  export TIDEGATE_MPI_ALIGN=off
  check "two aggregators" right "two.$family" -- $mpirun -n 2 \
    "$run" "$MNT/two.$family" 2
  unset TIDEGATE_MPI_ALIGN
  claim "two.$family=two.$family::2"
  [ -z "$fortran" ] || { check "Fortran" right "f.$family" -- $mpirun -n 2 "$bin/columns.$family" \
      "$MNT/f.$family"; claim "f.$family=f.$family:2"; }
  for part in plain forks missing files; do
    check "$part" right "$part" -- $mpirun -n 2 "$bin/odd.$family" "$MNT/$part.$family" $part
  done
  code=0; through a -- $mpirun -n 2 "$bin/odd.$family" "$MNT/abort.$family" abort || code=$?
  check "abort in the middle of I/O: as without the shim, 9 (was $code)" test $code = 9
  # One application for a script, unless MPI jobs of it are to be told apart: each then.
  way=; [ $family = mpich ] || way=--no-shortcut
  through '' $way --verbose -- sh -c "$mpirun -n 2 $bin/columns.$family $MNT/one.$family;
    $mpirun -n 2 $bin/columns.$family $MNT/another.$family" || true
  apps=($(sed -n 's/.* ranks are application //p' "$WORK/said"))
  check "two jobs of a script are two applications" test "${apps[0]:-}" != "${apps[1]:-}"
  claim "one.$family=${apps[0]:-none}:2"; claim "another.$family=${apps[1]:-none}:2"
  "$TIDEGATE" stat --state-dir "$RUN" --json > "$WORK/stat" 2>&1 || true
  check "forwarders know them by name" grep -q "${apps[0]:-none}" "$WORK/stat"
done
note "MPICH besides"
# 2 of the 10 are nonblocking; rank 0 alone has aggregators' requests of these.
export IN_ORDER=1 TIDEGATE_MPI_NONBLOCKING=exchange
check "nonblocking, if they may exchange" right nb -- mpirun.mpich -n 2 "$bin/collectives.mpich" "$MNT/nb"
unset IN_ORDER TIDEGATE_MPI_NONBLOCKING
claim nb=nb
mpicc.mpich -O1 -shared -fPIC -Dmain=run -o "$bin/plugin.so" "$programs/collectives.c" || die "plugin"
private='import ctypes, sys
path = sys.argv[1].encode()
sys.exit(ctypes.CDLL(sys.argv[2]).run(2, (ctypes.c_char_p * 3)(b"plugin", path, None)))'
check "a library that was loaded privately" right private -- mpirun.mpich -n 2 python3 -c "$private" \
  "$MNT/private" "$bin/plugin.so"
claim private=private:8
note "Python"
if /usr/bin/python3 -c 'import mpi4py' 2> /dev/null; then
  check "mpi4py" right py -- mpirun.openmpi -n 2 /usr/bin/python3 "$programs/columns.py" "$MNT/py"
  claim py=py:2
else
  skip "mpi4py is missing: run tools/need test"
fi

note "MPI_Init that fails"
failing() { "$@" env PMI_FD=99 PMI_RANK=0 PMI_SIZE=2 timeout 30 "$bin/odd.mpich" "$MNT/x" plain \
  > /dev/null 2>&1; }
plain=0; failing || plain=$?
code=0; failing "$TIDEGATE" run --state-dir "$RUN" -- || code=$?
check "it fails alike ($plain, $code)" test "$plain" = "$code" -a "$code" != 0

note "what forwarders were told"
sleep 0.5
check "applications, operations and stamps" python3 "$programs/traced.py" "$traces" "${claims[@]}"
wrong() { ! python3 "$programs/traced.py" "$traces" "$DATA/hints.mount=other" > /dev/null 2>&1; }
check "another application would be noticed" wrong
down
verdict
