#!/bin/bash
# The comparison of programs itself: two plain directories agree, and every planted difference is found.
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
verdict
