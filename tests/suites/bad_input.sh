#!/bin/bash
# Wrong input gives one line on stderr that says what to do, and exit code 2.
. "$(dirname "$0")/../lib.sh"
need_fuse

# refused WHAT PATTERN COMMAND...: exit code 2, one line on stderr, which matches the pattern.
refused() {
  local what=$1 pattern=$2 code=0; shift 2
  timeout 10 "$@" > "$WORK/out" 2> "$WORK/err" < /dev/null || code=$?
  check "$what: exit code 2 (was $code)" test $code = 2
  check "$what: one line on stderr" test "$(wc -l < "$WORK/err")" = 1
  check "$what: it says $pattern" grep -Eq "$pattern" "$WORK/err"
  sed 's/^/    /' "$WORK/err"
}

served=$WORK/served
mkdir -p "$served"
free_port() { python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
serve=("$TIDEGATE" serve --export "$served" --forwarder 0 --seats 1)

up 1
config=$RUN/forwarder.0.toml other=$WORK/other.toml

note "configuration"
{ echo 'no_such_key = 1'; cat "$config"; } > "$other"
refused "an unknown key" "other.toml:1.*no_such_key" "$TIDEGATE" serve --config "$other"
{ cat "$config"; echo '[no_such_section]'; echo 'a = 1'; } > "$other"
refused "an unknown section" "other.toml.*no_such_section" "$TIDEGATE" serve --config "$other"
{ cat "$config"; echo 'wrong = ['; } > "$other"
refused "a broken configuration" "other.toml:[0-9]+" "$TIDEGATE" serve --config "$other"
refused "a configuration that is not there" "nowhere.toml" "$TIDEGATE" serve --config "$WORK/nowhere.toml"
refused "an unknown policy" "no-such-policy.*fifo" "${serve[@]}" --listen "unix:$WORK/s" --policy no-such-policy
refused "TCP without a secret" "secret_file" "${serve[@]}" --listen tcp:127.0.0.1:1

note "directories"
refused "a missing directory" "$WORK/none" \
  "$TIDEGATE" serve --export "$WORK/none" --forwarder 0 --seats 1 --listen "unix:$WORK/s"
refused "up over a missing directory" "$WORK/none" \
  "$TIDEGATE" up "$WORK/none" --mount "$MNT" --state-dir "$WORK/state" --foreground
echo > "$WORK/file"
refused "a file as the directory" "$WORK/file" \
  "$TIDEGATE" serve --export "$WORK/file" --forwarder 0 --seats 1 --listen "unix:$WORK/s"

note "cost models"
echo 'speed = 1' > "$WORK/cost"
{ cat "$config"; echo '[scheduler]'; echo "cost_file = '$WORK/cost'"; } > "$other"
grep -q '^\[scheduler\]' "$config" && sed "s|^\[scheduler\]|&\ncost_file = '$WORK/cost'|" "$config" > "$other"
refused "a broken cost model" "other.toml:[0-9]+: cost_file .*line 1: .*speed" "$TIDEGATE" serve --config "$other"
refused "calibrate in a file" "$WORK/file.*not a directory" "$TIDEGATE" calibrate "$WORK/file"
refused "calibrate in a directory that is not there" "$WORK/none" "$TIDEGATE" calibrate "$WORK/none"
refused "calibrate in too little" "1MiB" "$TIDEGATE" calibrate "$served" --size 4096
refused "calibrate over another file" "no cost model" "$TIDEGATE" calibrate "$served" --output "$config"

note "addresses"
refused "a socket in use" "forwarder.0.sock" "$TIDEGATE" serve --config "$config"
python3 -c 'import socket, time
s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1], flush=True); time.sleep(60)' \
  > "$WORK/port" &
remember $!
for _ in $(seq 50); do [ -s "$WORK/port" ] && break; sleep 0.1; done
port=$(cat "$WORK/port")
refused "a busy port" ":$port" "${serve[@]}" --listen "tcp:127.0.0.1:$port" --insecure

note "secrets"
for name in right wrong; do
  head -c 48 /dev/urandom | base64 -w0 > "$WORK/$name.secret"; chmod 600 "$WORK/$name.secret"
done
port=$(free_port)
"$TIDEGATE" serve --export "$served" --forwarder 0 --seats 1 --listen "tcp:127.0.0.1:$port" \
  --secret-file "$WORK/right.secret" > "$WORK/tcp.log" 2>&1 < /dev/null &
tcp=$!
remember $tcp
for _ in $(seq 100); do (: < "/dev/tcp/127.0.0.1/$port") 2>/dev/null && break; sleep 0.1; done
check "the right secret is taken" timeout 20 "$TIDEGATE" stat --forwarders "tcp:127.0.0.1:$port" \
  --secret-file "$WORK/right.secret"
refused "a wrong secret" "secret" \
  "$TIDEGATE" stat --forwarders "tcp:127.0.0.1:$port" --secret-file "$WORK/wrong.secret"
refused "no secret" "secret" "$TIDEGATE" stat --forwarders "tcp:127.0.0.1:$port"
refused "a secret file that is not there" "no.secret" \
  "$TIDEGATE" stat --forwarders "tcp:127.0.0.1:$port" --secret-file "$WORK/no.secret"
check "the forwarder outlives wrong secrets" alive $tcp
kill -TERM $tcp; code=0; wait $tcp || code=$?
check "SIGTERM: a forwarder on TCP ends with 0 (was $code)" test $code = 0
check "the mount still serves" cp "$config" "$MNT/copied"

note "without forwarders"
down
nowhere=(env -u TIDEGATE_STATE_DIR -u TIDEGATE_FORWARDERS "HOME=$WORK/home" "XDG_RUNTIME_DIR=$WORK/home")
refused "run without forwarders" "tidegate up" "${nowhere[@]}" "$TIDEGATE" run -- true
refused "stat without forwarders" "tidegate up" "${nowhere[@]}" "$TIDEGATE" stat
code=0; "$TIDEGATE" no-such-command > "$WORK/out" 2>&1 || code=$?
check "an unknown command: exit code 2 (was $code)" test $code = 2
verdict
