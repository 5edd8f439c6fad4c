#!/bin/bash
# What judges: two plain directories agree and every planted difference is found; `make check` goes on
# after a part that failed, and names it.
. "$(dirname "$0")/../lib.sh"
compare=$REPO/tests/programs/compare planted=$REPO/tests/programs/selftest
mkdir -p "$WORK/first" "$WORK/second"

note "the same cases on two plain directories"
check "two plain directories agree" \
  "$compare" "$WORK/first" "$WORK/second" cp dd links shell holes python-os fio-threads sqlite

note "cases that do another thing in the second directory"
for case in "$planted"/*.sh; do
  name=$(basename "$case" .sh) code=0
  CASE_TIME_LIMIT_S=5 "$compare" --cases "$planted" \
    "$WORK/first" "$WORK/second" "$name" > "$WORK/out" 2>&1 || code=$?
  check "$name is reported" test $code = 1
  check "$name is named in words" grep -q "FAIL $name" "$WORK/out"
done

note "a tree that is right in the mount and wrong behind it"
mkdir -p "$WORK/behind" "$WORK/one" "$WORK/two"
mkdir "$WORK/behind/links"
check "the exported directory is compared too" not "$compare" --backend "$WORK/behind" \
  "$WORK/one" "$WORK/two" links

note "a check of which two parts fail"
mkdir "$WORK/bin"
cat > "$WORK/bin/cargo" <<'END'
#!/bin/bash
case $1 in
  clippy) echo 'error: could not compile `tidegate-wire`'; exit 101;;
  test) printf '\nfailures:\n    frame::tests::planted\n\n'; exit 101;;
esac
END
chmod +x "$WORK/bin/cargo"
code=0
PATH=$WORK/bin:$PATH CARGO_TARGET_DIR=$WORK/target "$REPO/tools/parts" check > "$WORK/out" || code=$?
check "it fails" test $code = 1
check "it goes on after the first" grep -qx "make check: 2 of 3 parts failed; .*" "$WORK/out"
check "it names the test at its end" grep -qx "      test frame::tests::planted" <(tail -n 4 "$WORK/out")
check "and what was not compiled" grep -q "tidegate-wire" <(tail -n 4 "$WORK/out")
verdict
