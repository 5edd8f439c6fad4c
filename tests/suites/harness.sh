#!/bin/bash
# What judges: two plain directories agree and every planted difference is found; `make check` goes on
# after a part that failed, and names it; a cluster's bed asks for each seat that it says it asks for.
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

note "a part that runs beside another"
mkdir -p "$WORK/tree/tools" "$WORK/tree/tests"
cp "$REPO/tools/parts" "$WORK/tree/tools/"
for name in cargo make; do printf '#!/bin/bash\n' > "$WORK/bin/$name"; done
for name in tools/licences tools/need tests/run; do printf '#!/bin/bash\necho in %s\n' "$name" > "$WORK/tree/$name"; done
printf '#!/bin/bash\n[ "${2:-}" != alone ] || { echo "a figure: 4%% off"; exit 1; }\n' > "$WORK/tree/tools/instructions"
chmod +x "$WORK"/bin/* "$WORK"/tree/t*/*
code=0
PATH=$WORK/bin:$PATH CARGO_TARGET_DIR=$WORK/target "$WORK/tree/tools/parts" test > "$WORK/out" || code=$?
check "its failure fails all" test $code = 1
check "and is the only one" grep -q "^make test: 1 of [0-9]* parts failed" "$WORK/out"
check "it is named at the end" grep -q "^  instruction counts" <(tail -n 2 "$WORK/out")
check "with what it said" grep -qx "      a figure: 4% off" <(tail -n 1 "$WORK/out")
check "which is printed behind the other part's" \
  grep -q "in tests/run.*a figure: 4% off" <(tr '\n' ' ' < "$WORK/out")

note "new files of a cluster's bed whose inodes leave a seat out for long"
# Inode 3399841 and the eleven after it lie with two seats of three.
cat > "$WORK/seats.py" <<'END'
import sys
sys.path.insert(0, sys.argv[1])
from types import SimpleNamespace
from cluster import Cluster

class Agent:
    def __init__(self, step):
        self.step, self.inodes = step, {}
    def makedirs(self, *_, **__):
        pass
    def write_file(self, path, data, sync=True):
        self.inodes.setdefault(path, 3399841 + self.step * len(self.inodes))
    def stat(self, path):
        return SimpleNamespace(st_ino=self.inodes[path])

bed, agent = Cluster.__new__(Cluster), Agent(int(sys.argv[2]))
bed.io, bed.tide, bed.agent = [None] * 3, "/tide", lambda _: agent
bed.serve_all_seats()
asked = {bed.owner_of(inode) for inode in agent.inodes.values()}
sys.exit(f"asked for seats {sorted(asked)}" if asked != {0, 1, 2} else 0)
END
check "every seat is asked for" python3 -B "$WORK/seats.py" "$REPO/tests/cluster" 1
check "a bed that finds no file of a seat fails, and names the seat" \
  grep -q "^nodes.Failed: .*no file of seats 0, 1$" <(python3 -B "$WORK/seats.py" "$REPO/tests/cluster" 0 2>&1)
verdict
