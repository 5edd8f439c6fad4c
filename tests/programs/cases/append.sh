# O_APPEND: four processes append records to one file at once; every record is there, whole, once.
python3 "$SRC/py/append.py"
for i in 1 2 3 4; do
  ( for n in $(seq 60); do echo "shell $i $n" >> log; done ) &
done
wait
sort log | uniq -c | awk '$1 != 1' ; wc -l < log
sort log | sha256sum
rm log
