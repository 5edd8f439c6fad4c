#!/bin/bash
# The test programs of ROMIO and of MPICH's MPI-IO, which nobody here wrote, do over four forwarders what
# they do on a plain directory: on the mount, with the short-cut, and with the MPI shim.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../mpi_lib.sh"
need_fuse
need_mpi mpich
sources=$("$REPO/tools/need" --path mpich-tests) \
  || skip "the test programs of MPICH are not there: run tools/need mpich-tests"
ONE_LIMIT_S=${ONE_LIMIT_S:-120}

# FAMILIES names some of them.
read -ra families <<< "${FAMILIES:-mpich openmpi mpich5 openmpi5}"
quick=''
choose_ways "shim" "mount shortcut shim-mount shim"
if [ "$MODE" = quick ]; then
  families=(mpich)
  # One or two of each kind of call that MPI-IO makes of a file system (locks, aio, shared pointers, holes).
  quick=" simple file_info async misc noncontig shared_fp types_with_zeros i_noncontig resized hindexed_io "
fi

# The part of a configuration that the helpers of MPICH's tests look at, for Linux with gcc.
configuration() {
  local name
  for name in DLFCN_H INTTYPES_H GETRUSAGE LONG_DOUBLE LONG_LONG MPI_IO MPI_WIN_CREATE PTHREAD_H STDARG_H \
      STDINT_H STDLIB_H STRDUP STRINGS_H STRING_H SYS_RESOURCE_H SYS_STAT_H SYS_TIME_H SYS_TYPES_H UNISTD_H \
      USLEEP; do
    echo "#define HAVE_$name 1"
  done
  printf '#define %s 1\n' STDC_HEADERS MPIO_USES_MPI_REQUEST
  printf '#define %s\n' 'THREAD_PACKAGE_POSIX 2' 'THREAD_PACKAGE_NAME THREAD_PACKAGE_POSIX'
}
# Open MPI's library has the markers that MPI-3 removed, its header does not.
removed() {
  cat << 'END'
#include <mpi.h>
#ifdef OPEN_MPI
extern struct ompi_predefined_datatype_t ompi_mpi_lb, ompi_mpi_ub;
#undef MPI_LB
#undef MPI_UB
#define MPI_LB OMPI_PREDEFINED_GLOBAL(MPI_Datatype, ompi_mpi_lb)
#define MPI_UB OMPI_PREDEFINED_GLOBAL(MPI_Datatype, ompi_mpi_ub)
#endif
END
}

wanted() { [ -z "$quick" ] || [[ $quick = *" ${1#./} "* ]]; }
programs() { grep -v '^#' "$REPO/tests/mpi/romio-programs"; }

# build FAMILY: the wanted programs, to $WORK/programs/FAMILY.
build() {
  local family=$1 to=$WORK/programs/$1 helper folder name rest source
  local flags=(-w -O1 -pthread -include "$WORK/removed.h" -I"$WORK" -I"$sources/mpi/include")
  mkdir -p "$to/romio" "$to/mpi/io"
  configuration > "$WORK/mpitestconf.h"
  removed > "$WORK/removed.h"
  for helper in mtest mtest_common mtest_thread; do
    "$(compiler "$family")" "${flags[@]}" -c "$sources/mpi/util/$helper.c" -o "$to/$helper.o" || return 1
  done
  while read -r folder name rest; do
    wanted "$name" || continue
    name=${name#./} source=$sources/$folder/$name.c
    if [ ! -f "$source" ]; then
      sed 's/@LL@/lld/g' "$source.in" > "$to/$name.c" && source=$to/$name.c
    fi
    # ROMIO's own programs define functions that the helpers have as well.
    local with=("$to"/mtest*.o)
    [ "$folder" != romio ] || with=()
    "$(compiler "$family")" "${flags[@]}" "$source" "${with[@]}" -o "$to/$folder/$name" -lm > "$WORK/said" 2>&1 \
      && continue
    # Some use what MPI has given up since.
    case $family in *5) LEFT_OUT+=" $folder/$name"; continue;; esac
    tail -n 20 "$WORK/said"
    return 1
  done < <(programs)
}

# outcome FAMILY WAY DIR FOLDER NAME RANKS [ARGUMENT...]: runs one program in DIR, and prints how it ended,
# what it said, and what files it left. Of a program that failed its code only: which rank says so first,
# and what the launcher adds, is chance.
outcome() {
  local family=$1 way=$2 dir=$3 folder=$4 name=$5 ranks=$6 code=0 words=() word START program; shift 6
  mkdir -p "$dir"
  program=$WORK/programs/$family/$folder/${name#./}
  if [ "$name" != "${name#./}" ]; then cp "$program" "$dir/"; program=$name; fi
  for word in "$@"; do
    case $word in
      FILE) word=testfile;;
      HINTS) cp "$sources/romio/test_hintfile" "$dir/hints"; word=./hints;;
    esac
    words+=("$word")
  done
  starter "$family" "$way"
  (cd "$dir" && exec timeout -k 10 "$ONE_LIMIT_S" "${START[@]}" -n "$ranks" "$program" "${words[@]}") \
    > "$WORK/said" 2>&1 < /dev/null || code=$?
  echo "exit code $code"
  if [ $code = 0 ]; then
    # Speeds and addresses are not compared.
    grep -av 'bytes/sec\|Mbytes' "$WORK/said" | sed 's/0x[0-9a-f]*/0x/g' | sort
    (cd "$dir" && find . -type f -printf '%p %s bytes\n' | sort)
  fi
  cp "$WORK/said" "$WORK/said.$way"
  rm -rf "$dir"
}

# one FAMILY FOLDER NAME RANKS [ARGUMENT...]: a program, on a plain directory and every other way. Where
# these differ it may be chance: some crash now and then. Then one of a few more runs on the plain
# directory has to end in the same way. CHANCE counts these.
one() {
  local family=$1 folder=$2 name=$3 way ends tries; shift
  local plain=$WORK/plain.txt there=$WORK/there.txt again=$WORK/again.txt
  [ -x "$WORK/programs/$family/$folder/${name#./}" ] || return 0
  outcome "$family" plain "$PLAIN/mpi" "$@" > "$plain"
  ends=$(head -n 1 "$plain")
  [ "$ends" = "exit code 0" ] || KNOWN_FAILURES+=" $folder/$name"
  for way in "${ways[@]}"; do
    outcome "$family" "$way" "$MNT/mpi" "$@" > "$there"
    cp "$plain" "$again"
    for tries in 1 2 3 4 5; do
      ! cmp -s "$again" "$there" || break
      outcome "$family" plain "$PLAIN/mpi" "$@" > "$again"
    done
    if cmp -s "$again" "$there"; then
      SAME=$((SAME + 1))
      [ "$tries" = 1 ] || { CHANCE=$((CHANCE + 1)); note "$family, $way: $folder/$name: chance, as run $tries on the plain directory"; }
    else
      echo "  FAIL $family, $way: $folder/$name: not as on a plain directory ($ends)"
      diff "$plain" "$there" | head -n 20 || true
      tail -n 20 "$WORK/said.$way"
      FAILURES=$((FAILURES + 1))
    fi
  done
}

for family in "${families[@]}"; do
  case $family in *5) wheel "$family" || true;; esac
  if ! has_mpi "$family"; then
    [ "${CI:-}" != true ] || die "$family is missing: run tools/need mpi"
    note "left out: $family, which is missing: run tools/need mpi, or look at the package index"
    continue
  fi
  use_mpi "$family"
  LEFT_OUT=''
  check "the programs are built with $family" build "$family"
  [ -z "$LEFT_OUT" ] || note "$family: not for this version:$LEFT_OUT"
  check "few are left out" test "$(wc -w <<< "$LEFT_OUT")" -le 10
  up 4
  mkdir -p "$PLAIN"
  SAME=0 CHANCE=0 KNOWN_FAILURES='' count=0
  while read -r folder name rest; do
    wanted "$name" || continue
    [ -x "$WORK/programs/$family/$folder/${name#./}" ] || continue
    count=$((count + 1))
    # shellcheck disable=SC2086
    one "$family" "$folder" "$name" $rest
  done < <(programs)
  note "$family: $SAME of $((count * ${#ways[@]})) as on a plain directory, ways: ${ways[*]}"
  note "$family: fails on a plain directory too:${KNOWN_FAILURES:- none}"
  # MPICH's tests of nonblocking collective I/O crash in ROMIO as Open MPI 4.1 has it, on any directory.
  most=2; case $family in openmpi*) most=16;; esac
  check "on a plain directory at most $most programs fail" \
    test "$(wc -w <<< "$KNOWN_FAILURES")" -le $most
  # One program that once crashed where it mostly does not differs on all ways.
  check "chance decided for few" test "$CHANCE" -le 5
  down
done
verdict
