# Runs fio with four verifying jobs and the given options, and prints what cannot vary.
command -v fio >/dev/null || { echo "fio is not installed"; exit 77; }
fio --name=job --directory=. --size=2m --rw=randwrite --numjobs=4 --ioengine=psync --verify=crc32c \
  --verify_fatal=1 --do_verify=1 --randrepeat=1 --random_generator=tausworthe64 --group_reporting \
  --output-format=json --output="$SCRATCH/report" "$@" || { echo "fio: $?"; cat "$SCRATCH/report"; exit 1; }
python3 - "$SCRATCH/report" <<'PY'
import json, sys
text = open(sys.argv[1]).read()
for job in json.loads(text[text.index("{"):])["jobs"]:
    print("error", job["error"], "errors", job.get("total_err", 0))
    assert job["write"]["io_kbytes"] > 4000 and job["read"]["io_kbytes"] > 4000, job
PY
find . -type f | sort
rm -f job.* shared
