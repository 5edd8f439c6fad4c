#!/bin/bash
# Wrong input gives one line on stderr that says what to do, and exit code 2.
. "$(dirname "$0")/../lib.sh"
need_fuse

# refused WHAT PATTERN COMMAND...: exit code 2, one line on stderr, which matches the pattern.
refused() {
  local what=$1 pattern=$2 code=0; shift 2
  timeout 20 "$@" > "$WORK/out" 2> "$WORK/err" < /dev/null || code=$?
  check "$what: exit code 2 (was $code)" test $code = 2
  check "$what: one line on stderr" test "$(wc -l < "$WORK/err")" = 1
  check "$what: it says $pattern" grep -Eq "$pattern" "$WORK/err"
  sed 's/^/    /' "$WORK/err"
}

up 1
config=$RUN/forwarder.0.toml other=$WORK/other.toml
refused "a port in use" "forwarder.0.sock|in use" "$TIDEGATE" serve --config "$config"
python3 - > "$WORK/port" <<'PY' &
import socket, time
taken = socket.create_server(("127.0.0.1", 0)); print(taken.getsockname()[1], flush=True); time.sleep(60)
PY
remember $!
for _ in $(seq 50); do [ -s "$WORK/port" ] && break; sleep 0.1; done
port=$(cat "$WORK/port")
# Every listening address of the configuration becomes the taken port.
sed -E "s#\"(unix:)?$RUN/forwarder.0.sock\"#\"tcp:127.0.0.1:$port\"#" "$config" > "$other"
refused "a busy TCP port" ":$port" "$TIDEGATE" serve --config "$other"

{ cat "$config"; echo 'no_such_key = 1'; } > "$other"
line=$(wc -l < "$other")
refused "an unknown key" "other.toml:$line.*no_such_key" "$TIDEGATE" serve --config "$other"
{ echo 'wrong = ['; cat "$config"; } > "$other"
refused "a broken configuration" "other.toml:[0-9]+" "$TIDEGATE" serve --config "$other"
refused "a configuration that is not there" "nowhere.toml" "$TIDEGATE" serve --config "$WORK/nowhere.toml"
sed "s#\"$DATA\"#\"$DATA/missing\"#" "$config" > "$other"
refused "a missing directory" "$DATA/missing" "$TIDEGATE" serve --config "$other"
refused "up over a missing directory" "$WORK/none" \
  "$TIDEGATE" up "$WORK/none" --mount "$MNT" --state-dir "$WORK/state" --foreground
refused "an unknown policy" "no-such-policy.*fifo" \
  "$TIDEGATE" up "$DATA" --mount "$MNT" --state-dir "$WORK/state" --policy no-such-policy --foreground
refused "an unknown command" "no-such-command" "$TIDEGATE" no-such-command
refused "an unknown option" "no-such-option" "$TIDEGATE" up "$DATA" --no-such-option

echo "another secret" > "$WORK/secret"; chmod 600 "$WORK/secret"
refused "a wrong secret" "secret" \
  "$TIDEGATE" stat --forwarders "unix:$RUN/forwarder.0.sock" --secret-file "$WORK/secret"
check "the forwarder still serves" test -d "$MNT/."
down
refused "run without forwarders" "tidegate (up|serve)" \
  env -u TIDEGATE_STATE_DIR HOME="$WORK" XDG_RUNTIME_DIR="$WORK" "$TIDEGATE" run -- true
verdict
