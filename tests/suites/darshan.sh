#!/bin/bash
# The 18 logs that the Python package darshan brings: those with DXT are imported with exactly the
# accesses and bytes that the package itself reads, the others are refused. Only in long runs, which
# may fetch the package.
. "$(dirname "$0")/../lib.sh"
if [ "$MODE" = quick ]; then
  note "the logs are fetched in long runs only; cargo test -p tidegate-trace imports logs made there"
  exit 0
fi
[ -x "$TIDEGATE" ] || die "$TIDEGATE is missing: cargo build --release -p tidegate-cli"
version=3.5.0
cache=${TIDEGATE_TOOLS:-${CARGO_TARGET_DIR:-$REPO/target}/tools}/pydarshan-$version
if [ ! -d "$cache" ]; then
  python3 -m pip --version > /dev/null 2>&1 || skip "python3 has no pip, which fetches darshan $version"
  rm -rf "$cache.part"
  timeout 600 python3 -m pip install --quiet --no-input --disable-pip-version-check \
    --target "$cache.part" "darshan==$version" \
    || skip "pip cannot fetch darshan $version: is the package index reachable?"
  mv "$cache.part" "$cache"
fi

# compare_logs: a line for each log and module; fails if one is wrong.
compare_logs() {
  PYTHONPATH=$cache python3 - "$TIDEGATE" "$WORK" << 'PYTHON'
import glob, json, os, subprocess, sys, warnings
warnings.filterwarnings("ignore")
import darshan

tidegate, folder = sys.argv[1:]
root = os.path.dirname(darshan.__file__)
logs = sorted(glob.glob(root + "/**/*.darshan", recursive=True))
wrong, imported = 0, 0
for number, log in enumerate(logs):
    report = darshan.DarshanReport(log, read_all=False)
    for module, flag in (("DXT_POSIX", "posix"), ("DXT_MPIIO", "mpiio")):
        expected = None
        if module in report.modules:
            report.mod_read_all_dxt_records(module, dtype="dict")
            sides = [[int(access["length"]) for record in report.records[module]
                      for access in record[side]] for side in ("read_segments", "write_segments")]
            expected = [len(sides[0]), len(sides[1]), sum(sides[0]), sum(sides[1])]
        output = os.path.join(folder, f"{number}.{flag}.trace")
        run = subprocess.run([tidegate, "trace", "import", log, "--module", flag, "--json",
                              "--output", output], capture_output=True, text=True)
        if run.returncode == 0:
            told = json.loads(run.stdout)
            found = [told[key] for key in ("reads", "writes", "bytes_read", "bytes_written")]
            summary = subprocess.run([tidegate, "trace", "summarise", output, "--json"],
                                     capture_output=True, text=True, check=True)
            total = json.loads(summary.stdout)["total"]
            good = found == expected == [total[key] for key in (
                "read_requests", "write_requests", "read_bytes", "write_bytes")]
            imported += 1
        else:
            found = run.stderr.strip()
            good = (run.returncode == 2 and not expected and len(found.splitlines()) == 1
                    and f"there is no {module} data" in found and not os.path.exists(output))
        wrong += not good
        print("ok  " if good else "FAIL", os.path.basename(log), module, found, expected)
print(f"{len(logs)} logs, {imported} traces, {wrong} wrong")
sys.exit(wrong > 0 or len(logs) != 18 or imported != 5)
PYTHON
}
check "the package's logs are imported or refused as they should be" compare_logs
verdict
