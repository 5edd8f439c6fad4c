# A folder of 2,000 files: made, listed, renamed, read and removed, also while it is being listed.
mkdir d; cd d
for i in $(seq 2000); do echo "$i" > "file-$i"; done
ls | wc -l; ls -f | sort | sha256sum
cat file-1 file-999 file-2000
cat -- * | sort -n | sha256sum
python3 - <<'PY'
import os
seen = set()
for entry in os.scandir("."):
    assert entry.name not in seen, entry.name
    seen.add(entry.name)
    if entry.name.endswith("7"):
        os.unlink(entry.name)
    elif entry.name.endswith("9") and entry.name.startswith("file-"):
        os.rename(entry.name, "renamed." + entry.name)
print(len([n for n in seen if n.startswith("file-")]), len(os.listdir(".")))
with os.scandir(".") as some:
    first = next(some).is_file()
print(first)
PY
ls | sort | sha256sum
find . -name '*5' -exec rm {} +
ls | wc -l
cd ..; rm -rf d; ls -A
