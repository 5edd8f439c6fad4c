#!/bin/bash
# The scheduler's C library as a host gets it: installed, linked in both ways, every call, under
# valgrind, from many threads, in random sequences, with AGIOS's interface, and away again.
. "$(dirname "$0")/../lib.sh"
command -v valgrind > /dev/null || skip "valgrind is missing: run tools/need test"
cd "$REPO"
stage=$WORK/stage tests=crates/capi/tests
make --silent install-libraries PREFIX="$stage" > "$WORK/install.log" 2>&1 || { cat "$WORK/install.log"; die "make install"; }
export PKG_CONFIG_PATH=$stage/lib/pkgconfig
flags=(-std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -g -O1 -pthread)

# build NAME PACKAGE: shared, with the flags that pkg-config gives, and the folder to run it from.
build() {
  # shellcheck disable=SC2046
  cc "${flags[@]}" -o "$WORK/$1" "$tests/$1.c" $(pkg-config --cflags --libs "$2") "-Wl,-rpath,$stage/lib" ||
    die "$1.c does not compile"
}
build calls tidegate_sched; build threads tidegate_sched; build sequence tidegate_sched
build agios_defects agios
# form NAME SOURCE FLAG...: a program for another interface of AGIOS.
form() {
  # shellcheck disable=SC2046
  cc "${flags[@]}" "${@:3}" -o "$WORK/$1" "$tests/$2.c" $(pkg-config --cflags --libs agios) "-Wl,-rpath,$stage/lib" ||
    die "$2.c does not compile"
}
form forge agios_2018 -DAGIOS_INTERFACE=2018; form orangefs agios_2018 -DAGIOS_INTERFACE=2018 -DORANGEFS_AGIOS
form ints agios_2018 -DAGIOS_INTERFACE=2015; form gekkofwd agios_2020 -DAGIOS_INTERFACE=2020
clean=(valgrind --quiet --leak-check=full --show-leak-kinds=definite,possible
  --errors-for-leak-kinds=definite,possible --error-exitcode=9 --fair-sched=yes)
conf=$WORK/conf; mkdir -p "$conf"
agios() { rm -f "$conf"/*; timeout 300 "$@" 2> "$WORK/agios.err" ||
  { grep -v '^==' "$WORK/agios.err"; tail -n 5 "$WORK/agios.err"; return 1; }; }

note "headers"
printf '#include <%s>\n' tidegate_sched.h agios.h agios/scheduling_algorithms.h > "$WORK/all.c"
takes() { "$@" -Wall -Wextra -Werror -fsyntax-only "-I$stage/include" "$WORK/all.c"; }
check "C11 takes them" takes cc -std=c11 -pedantic
! command -v c++ > /dev/null || check "C++ takes them" takes c++ -x c++
check "C99 takes them" takes cc -std=c99 -pedantic
for interface in 2015 2018 2020; do
  check "C99 takes them: AGIOS of $interface" takes cc -std=c99 -pedantic -DAGIOS_INTERFACE=$interface
  ! command -v c++ > /dev/null || check "C++ takes them: AGIOS of $interface" takes c++ -x c++ -DAGIOS_INTERFACE=$interface
done
check "an interface that there is not is refused" not takes cc -DAGIOS_INTERFACE=2017 2> /dev/null

note "linked with the shared library"
check "every call" timeout 60 "$WORK/calls"
check "many threads" timeout 120 "$WORK/threads"
check "AGIOS: its defects, every algorithm" agios "$WORK/agios_defects" "$conf"
for program in forge orangefs ints gekkofwd; do
  check "AGIOS's other interfaces: $program" agios "$WORK/$program" "$conf"
done
check "what is dropped at the end is said" grep -q 'agios_exit drops 1 requests' "$WORK/agios.err"
check "settings without effect are named" \
  grep -q 'agios.conf: these settings have no effect: waiting_time (line 3), mystery (line 4)$' "$WORK/agios.err"
# As GekkoFWD has it.
! command -v c++ > /dev/null || check "in C++, with a callback for each request" \
  c++ -x c++ -Wall -Wextra -Werror -DAGIOS_INTERFACE=2020 -fsyntax-only "-I$stage/include" "$tests/agios_2020.c"
check "the name at run time has the ABI's number" \
  grep -q 'libtidegate_sched.so.0' <(objdump -p "$WORK/calls" "$WORK/agios_defects")

note "linked with the static library"
# shellcheck disable=SC2046
cc "${flags[@]}" -o "$WORK/static" "$tests/calls.c" $(pkg-config --cflags tidegate_sched) \
  "$stage/lib/libtidegate_sched.a" $(pkg-config --static --libs-only-l tidegate_sched | sed 's/-ltidegate_sched//')
check "every call" timeout 60 "$WORK/static"

note "under valgrind"
check "every call: no error, no leak" timeout 300 "${clean[@]}" "$WORK/calls"
check "many threads: no error, no leak" timeout 300 "${clean[@]}" "$WORK/threads" 3000
check "AGIOS: no error, no leak" agios "${clean[@]}" "$WORK/agios_defects" "$conf" 2000
for program in forge gekkofwd; do
  check "AGIOS's other interfaces: $program: no error, no leak" agios "${clean[@]}" "$WORK/$program" "$conf"
done
check "random sequences: no error, no leak" timeout 300 "${clean[@]}" "$WORK/sequence" 1 40

note "the benchmarks of crates/capi/bench"
# bench PROGRAM PACKAGE ARGUMENT...: compiles and runs it, briefly.
bench() {
  # shellcheck disable=SC2046
  cc "${flags[@]}" -o "$WORK/$1.bench" "crates/capi/bench/$1.c" $(pkg-config --cflags --libs "$2") "-Wl,-rpath,$stage/lib" &&
    timeout 120 "$WORK/$1.bench" "${@:3}" | grep -q 'ns a request'
}
check "through the C ABI" bench cost tidegate_sched sjf 1000 5000
for algorithm in NOOP TO TO-agg SJF aIOLi MLF SW TWINS WFQ; do
  check "through the interface of AGIOS: $algorithm" bench agios_cost agios $algorithm 64 2000
done

seconds=10; [ "$MODE" = quick ] || seconds=600
note "random sequences for $seconds s"
check "no seed finds anything" timeout $((seconds + 200)) "$WORK/sequence" "$(date +%s)000000" "seconds=$seconds"

# With the nightly compiler, where it is installed; the pinned one has no sanitizers.
if [ "$MODE" = long ] && command -v rustup > /dev/null && rustup toolchain list | grep -q '^nightly'; then
  note "under ThreadSanitizer"
  host=$(rustc -vV | sed -n 's/^host: //p') target=${CARGO_TARGET_DIR:-$REPO/target}/tsan
  RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" CARGO_TARGET_DIR=$target \
    cargo +nightly build --release --quiet -p tidegate-capi --target "$host" || die "the library with ThreadSanitizer"
  for name in threads agios_defects sequence; do
    cc "${flags[@]}" -fsanitize=thread -Icrates/capi/include -o "$WORK/$name.tsan" \
      "$tests/$name.c" "$tests/tsan_names.c" "$target/$host/release/libtidegate_capi.a" \
      -lgcc_s -lutil -lrt -lpthread -lm -ldl
  done
  check "many threads: no race" timeout 300 "$WORK/threads.tsan" 30000
  check "AGIOS: no race" agios "$WORK/agios_defects.tsan" "$conf" 8000
  check "random sequences: no race" timeout 300 "$WORK/sequence.tsan" 1 3000
fi

note "installed and taken away"
check "DESTDIR goes before PREFIX" make --silent install-libraries PREFIX=/opt/x DESTDIR="$WORK/root"
check "pkg-config files name PREFIX alone" grep -qx 'prefix=/opt/x' "$WORK/root/opt/x/lib/pkgconfig/agios.pc"
check "uninstall" make --silent uninstall-libraries PREFIX=/opt/x DESTDIR="$WORK/root"
check "nothing is left" test -z "$(find "$WORK/root" ! -type d)"
for file in lib/libagios.so include/agios.h; do
  other="$WORK/other/$file"; mkdir -p "${other%/*}"; echo theirs > "$other"
  check "beside another $file all but AGIOS's interface is installed" make --silent install-libraries PREFIX="$WORK/other" 2> /dev/null
  check "the other libraries are there" test -e "$WORK/other/lib/libtidegate_client.so" -a ! -e "$WORK/other/lib/libagios.a"
  check "uninstall" make --silent uninstall-libraries PREFIX="$WORK/other"
  check "another $file stays alone" test "$(find "$WORK/other" ! -type d)" = "$other" -a "$(cat "$other")" = theirs
  rm "$other"
done
verdict
