# rsync: archive copy, update of changed files only, deletion, in-place and append modes, hard links.
command -v rsync >/dev/null || { echo "rsync is not installed"; exit 77; }
rsync -aH "$FIXTURE/" copy/
diff -r --no-dereference "$FIXTURE/" copy && echo "first copy is alike"
head -c 3000000 "$BYTES" > copy/size-1048576
touch -d 2019-03-04T05:06:07 copy/size-1048576
rm copy/size-4096; mkdir copy/extra; echo more > copy/extra/file
rsync -aHi --delete "$FIXTURE/" copy/ | sort
rsync -aHc --delete "$FIXTURE/" copy/
diff -r --no-dereference "$FIXTURE/" copy && echo "second copy is alike"
mkdir work
head -c 5000001 "$BYTES" > work/data; touch -d 2018-01-01 work/data
rsync -a work/data place
printf changed | dd of=work/data bs=1 seek=1234567 conv=notrunc status=none
rsync -a --inplace --no-whole-file work/data place
cmp work/data place && echo "in place is alike"
head -c 777777 "$BYTES" >> work/data
rsync -a --append-verify work/data place
cmp work/data place && echo "append is alike"
rsync -a --partial --remove-source-files work/ moved/
find work moved | sort
touch -d 2018-01-01 copy place moved/* moved
