# RocksDB: its benchmark fills a store with its own checks on, is killed in the midst, and its tools check what is there.
. "$REPO/tests/applications/start"
has db_bench rocksdb-tools
has ldb rocksdb-tools
count=3000
[ "$MODE" = quick ] || count=200000
common=(--db=store --wal_dir=store --num=$count --value_size=200 --write_buffer_size=262144 --verify_checksum=true
  --paranoid_checks=true --seed=1 --threads=1 --compression_type=none --stats_interval=0)
db_bench --benchmarks=fillseq,overwrite,readrandom "${common[@]}" --sync=0 2>&1 | grep -o '([0-9]* of [0-9]* found)'
db_bench --benchmarks=overwrite --sync=1 --use_existing_db=1 "${common[@]}" --num=200 > /dev/null 2>&1 && echo synced
# Killed in the midst of its writes: beyond what opening the store makes, it has filled tables.
newest() { find store -name '*.sst' | sort | tail -n 1 | sed 's/.*store.0*//; s/.sst//'; }
enough=$(($(newest) + 20))
db_bench --benchmarks=overwrite --use_existing_db=1 "${common[@]}" --num=100000000 > /dev/null 2>&1 &
for _ in $(seq 600); do [ "$(newest)" -lt $enough ] || break; sleep 0.1; done
[ "$(newest)" -ge $enough ] || echo "it writes nothing"
{ kill -9 $!; wait; } 2> /dev/null || true
ldb --db=store checkconsistency
db_bench --benchmarks=readseq,verifychecksum,compact,verifychecksum --use_existing_db=1 "${common[@]}" > "$SCRATCH/said" 2>&1 && echo read
grep -i -e corrupt -e error "$SCRATCH/said" || true
ldb --db=store scan | wc -l | awk -v least=$count '{ print ($1 >= least) }'
for table in store/*.sst; do sst_dump --file="$table" --command=verify 2>&1; done | grep -i -e corrupt -e fail || true
ldb --db=store dump --count_only | grep -c '^Keys in range'
rm -r store
