# Redis: each change is synced to its log, the server is killed in the midst, and the log is read, checked and rewritten.
. "$REPO/tests/applications/start"
has redis-server redis-server
has redis-cli redis-tools
keys=500
[ "$MODE" = quick ] || keys=20000
socket=$SCRATCH/redis
begin() {
  redis-server --port 0 --unixsocket "$socket" --dir "$PWD" --appendonly yes --appendfsync always --daemonize no \
    --save '' > "$SCRATCH/log" 2>&1 &
  server=$!
  for _ in $(seq 600); do
    [ "$(redis-cli -s "$socket" ping 2> /dev/null)" != PONG ] || return 0
    sleep 0.1
  done
  cat "$SCRATCH/log"; exit 1
}
ask() { redis-cli -s "$socket" "$@"; }
begin
for number in $(seq $keys); do echo "SET key:$number value-$number"; echo "INCR count"; done | ask | sort | uniq -c | sort -rn | sed -n 1p
ask get count
# Killed while a client writes: what was answered is there.
for number in $(seq 30000); do echo "INCR told"; done | ask > "$SCRATCH/told" 2> /dev/null &
client=$!
for _ in $(seq 600); do [ ! -s "$SCRATCH/told" ] || break; sleep 0.1; done
# The shell may say that it was killed as soon as it was.
{ kill -9 $server; wait $server; wait $client; } 2> /dev/null || true
told=$(grep -E '^[0-9]+$' "$SCRATCH/told" | tail -n 1)
begin
[ "$(ask get told)" -ge "$told" ] && echo "what was told is there"
ask bgrewriteaof
for _ in $(seq 600); do ask info persistence | grep -q 'aof_rewrite_in_progress:0' && break; sleep 0.1; done
ask info persistence | grep -a 'aof_last_bgrewrite_status\|aof_last_write_status'
ask save
ask dbsize
ask shutdown nosave || true
wait $server || true
redis-check-rdb dump.rdb | grep -ao 'RDB looks OK'
redis-check-aof appendonlydir/*.manifest | grep -a 'is valid' | sed 's/.*All/All/' | sort -u
rm -r appendonlydir dump.rdb
