# PostgreSQL: a database is made, changed by several clients, killed in the midst, recovered and checked.
. "$REPO/tests/applications/start"
bin=$(ls -d /usr/lib/postgresql/*/bin 2> /dev/null | sort -V | tail -n 1)
[ -n "$bin" ] || skip "PostgreSQL is missing: install postgresql and postgresql-contrib"
clients=4 turns=50
[ "$MODE" = quick ] || { clients=8 turns=1000; }
# The server refuses to be root.
if [ "$(id -u)" = 0 ]; then
  as=(unshare --user --map-user=65534 --map-group=65534)
  "${as[@]}" true 2> /dev/null || skip "no right to make user namespaces"
else
  as=()
fi
log=$SCRATCH/server.log
export PGHOST=$SCRATCH PGUSER=tide PGDATABASE=postgres
server() { "${as[@]}" "$bin/pg_ctl" -D data -l "$log" -w -t 120 "$@" > "$SCRATCH/said" 2>&1 || { cat "$SCRATCH/said" "$log"; exit 1; }; }
ask() { "${as[@]}" "$bin/psql" -XAtqc "$1"; }
"${as[@]}" "$bin/initdb" -D data -U tide --auth=trust --data-checksums --locale=C > "$SCRATCH/said" || { cat "$SCRATCH/said"; exit 1; }
cat >> data/postgresql.conf <<END
listen_addresses = ''
unix_socket_directories = '$SCRATCH'
shared_buffers = 8MB
max_wal_size = 64MB
END
server start
"${as[@]}" "$bin/pgbench" -i -q -s 2 2> /dev/null
"${as[@]}" "$bin/pgbench" -c "$clients" -t "$turns" -n > "$SCRATCH/bench" 2>&1 || cat "$SCRATCH/bench"
grep 'actually processed' "$SCRATCH/bench"
grep -i 'failed transactions: [1-9]' "$SCRATCH/bench" || true
# Killed while clients work, all of its processes at once. What was told to be committed is there.
count='select count(*) from pgbench_history'
before=$(ask "$count")
"${as[@]}" "$bin/pgbench" -c "$clients" -T 120 -n > "$SCRATCH/killed" 2>&1 &
working=$!
for _ in $(seq 600); do [ "$(ask "$count")" -lt $((before + turns)) ] || break; sleep 0.1; done
postmaster=$(head -n 1 data/postmaster.pid)
killed="$postmaster $(ps -o pid= --ppid "$postmaster" | xargs)"
# Some of them may have ended meanwhile.
kill -9 $killed 2> /dev/null || true
wait $working || true
for _ in $(seq 600); do [ -n "$(ps -o stat= -p "$killed" | grep -v Z || true)" ] || break; sleep 0.1; done
told=$(sed -n 's/.*actually processed: \([0-9]*\).*/\1/p' "$SCRATCH/killed")
[ "$told" -gt 0 ] && echo "killed in the midst" || cat "$SCRATCH/killed"
rm -f data/postmaster.pid "$SCRATCH"/.s.PGSQL*
server start
grep -c 'redo done' "$log"
ask 'checkpoint'
ask "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history),
  (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches),
  ($count) >= $before + $told, (select count(*) from pgbench_accounts)"
ask 'create extension amcheck'
"${as[@]}" "$bin/pg_amcheck" --heapallindexed --rootdescend postgres
ask 'vacuum full'
ask 'reindex database postgres'
ask 'select count(*) from pgbench_accounts'
"${as[@]}" "$bin/pg_dump" > dump.sql
grep -c '^[0-9]' dump.sql | awk '{ print ($1 > 200000) }'
server stop
"${as[@]}" "$bin/pg_checksums" -D data | grep 'Bad checksums'
# All of it has times and random numbers.
rm -r data dump.sql
