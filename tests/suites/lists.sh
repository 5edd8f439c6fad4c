#!/bin/bash
# Clients' lists of forwarders: what does not fit the export is told in one line; one address that is
# alive is enough; one that is down keeps nobody from starting. Policy and rules that were set at run
# time are kept for the export: over a restart, and for a forwarder that was away. A list may be in DNS,
# for which forwarders, clients and a name server have a network and an /etc/resolv.conf of their own.
. "$(dirname "$0")/../lib.sh"
need_fuse
mkdir -p "$DATA" "$MNT" "$WORK/other" "$WORK/empty"
SECRET=$WORK/secret OUT=$WORK/out ERR=$WORK/err
head -c 32 /dev/urandom | base64 > "$SECRET"; chmod 600 "$SECRET"
free_port() { python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# forwarder NAME EXPORT INDEX SEATS ADDRESS...: starts one; its process id is in PID[NAME].
declare -A PID
forwarder() {
  local name=$1 export=$2 index=$3 seats=$4 listen; shift 4
  listen=$(printf '"%s", ' "$@")
  printf 'export = "%s"\nforwarder = %s\nseats = %s\nlisten = [%s]\nsecret_file = "%s"\nlease_ms = 1000\ngrace_ms = 0\n' \
    "$export" "$index" "$seats" "${listen%, }" "$SECRET" > "$WORK/$name.toml"
  again "$name"
}
# again NAME: starts it once more.
again() {
  local name=$1
  "$TIDEGATE" serve --config "$WORK/$name.toml" > "$WORK/$name.log" 2>&1 < /dev/null &
  PID[$name]=$!; remember $!
  for _ in $(seq 100); do grep -q serving "$WORK/$name.log" && return 0; sleep 0.05; done
  cat "$WORK/$name.log"; die "forwarder $name does not serve"
}
stop() { kill -TERM "${PID[$1]}"; wait "${PID[$1]}" || true; }
list() { local IFS=,; echo "$*"; }
# ask ADDRESS...: the policy's line of each forwarder of the list.
ask() { timeout 20 "$TIDEGATE" policy get --secret-file "$SECRET" --forwarders "$(list "$@")" > "$OUT" 2> "$ERR"; }
# agrees COUNT ADDRESS...: the list is taken, and has so many forwarders that answer.
agrees() {
  local count=$1; shift
  ask "$@" || { cat "$ERR"; return 1; }
  [ "$(grep -c '^forwarder [0-9]*: [a-z]' "$OUT")" = "$count" ] || { cat "$OUT"; return 1; }
}
# refused WORDS ADDRESS...: exit code 2, and one line with these words.
refused() {
  local words=$1 code=0; shift
  ask "$@" || code=$?
  [ $code = 2 ] && [ "$(wc -l < "$ERR")" = 1 ] && grep -qE "$words" "$ERR" && return 0
  echo "code $code: $(cat "$ERR")"; return 1
}

A=unix:$WORK/a.sock T0=tcp:127.0.0.1:$(free_port)
B=unix:$WORK/b.sock T1=tcp:127.0.0.1:$(free_port)
F=unix:$WORK/foreign.sock
note "a list of another length, order, or export"
forwarder a "$DATA" 0 2 "$A" "$T0"
forwarder b "$DATA" 1 2 "$B" "$T1"
forwarder foreign "$WORK/other" 1 2 "$F"
check "in order" agrees 2 "$A" "$B"
check "in another order" agrees 2 "$B" "$A"
check "over TCP, in another order" agrees 2 "$T1" "$T0"
check "one address of two" agrees 2 "$A"
check "the other one, over TCP" agrees 2 "$T1"
check "one forwarder at two addresses" refused "$A and $T0 are one forwarder, 0 of 2; name each" "$A" "$T0"
check "one address twice" refused "$A is named twice" "$A" "$A"
check "a forwarder of another export" refused "$F serves another export .*; name forwarders of one" "$A" "$F"
check "too many" refused "3 addresses are named, and the export has 2.*none.sock" "$A" "$B" "unix:$WORK/none.sock"
warned() { agrees "$@" && [ "$(wc -l < "$ERR")" = 1 ] && grep -q 'none.sock is named and left out .*No such file.*correct the list' "$ERR"; }
check "a wrong address beside a right one" warned 2 "$A" "unix:$WORK/none.sock"
check "in the place of the other one" warned 2 "unix:$WORK/none.sock" "$A"
check "no forwarder at all" refused "none.sock: No such file" "unix:$WORK/none.sock"
printf '# both\n%s\n\n%s # the second\n' "$B" "$A" > "$WORK/list"
check "a file, in any order" agrees 2 "@$WORK/list"
check "a file that is not there" refused "$WORK/nowhere: No such file" "@$WORK/nowhere"
head -c 32 /dev/urandom | base64 > "$WORK/wrong"; chmod 600 "$WORK/wrong"
ok=$SECRET; SECRET=$WORK/wrong
check "a wrong secret" refused "$T0 refused .*is $WORK/wrong its secret" "$T0" "$T1"
SECRET=$ok

note "one that is down"
stop b
"$TIDEGATE" mount "$MNT" --secret-file "$SECRET" --forwarders "$(list "$T0" "$T1")" 2> "$ERR" || cat "$ERR"
check "a mount starts beside it" mounted "$MNT"
check "and works" sh -c "head -c 3000000 /dev/urandom > $WORK/sent && cp $WORK/sent $MNT/file && cmp $WORK/sent $MNT/file"
again b
check "its seat comes back to it" sh -c "cmp $WORK/sent $MNT/file && cp $WORK/sent $MNT/more && cmp $WORK/sent $DATA/more"
"$TIDEGATE" umount "$MNT"
stop b
check "from one address, its place is known" agrees 1 "$A"
"$TIDEGATE" mount "$MNT" --secret-file "$SECRET" --forwarders "$T0" 2> "$ERR" || cat "$ERR"
check "a mount by one address of two, the other down" cmp "$WORK/sent" "$MNT/file"
again b
check "the other one comes" sh -c "cp $WORK/sent $MNT/third && cmp $WORK/sent $DATA/third"
"$TIDEGATE" umount "$MNT"

note "policy and rules are kept for the export"
policy() { "$TIDEGATE" policy "$@" --secret-file "$SECRET" --forwarders "$(list "$A" "$B")"; }
share() { "$TIDEGATE" share "$@" --secret-file "$SECRET" --forwarders "$(list "$A" "$B")"; }
# follows NAME COUNT: so many forwarders come to follow the policy, within some seconds.
follows() {
  for _ in $(seq 50); do policy get > "$OUT" 2>&1; [ "$(grep -cE "^forwarder [01]: $1( |$)" "$OUT")" = "$2" ] && return 0; sleep 0.1; done
  cat "$OUT"; return 1
}
policy set window window_ms=333 > "$OUT"
check "both follow" follows window 2
stop b; again b
check "after a restart too" follows window 2
check "with its options" test "$(grep -c 'window_ms=333' "$OUT")" = 2
check "and say so" grep -q 'policy window from .*policy.toml' "$WORK/b.log"
stop b
policy set sjf > "$OUT" 2> "$ERR" || true
check "one that is down is told" grep -q 'takes what is kept for the export' "$ERR"
again b
check "and takes it when it starts" follows sjf 2
kill -STOP "${PID[b]}"
policy set wfq > "$OUT" 2> "$ERR" || true
share set job weight=3 > "$OUT" 2> "$ERR" || true
kill -CONT "${PID[b]}"
share remove job > "$OUT" 2> "$ERR" || true
check "one that missed a change takes it" follows wfq 2
policy set fifo --temporary > "$OUT"
stop b; again b
check "what is temporary is gone" follows wfq 1
"$TIDEGATE" stat --check --secret-file "$SECRET" --forwarders "$A" > "$OUT" 2>&1 && code=0 || code=$?
check "and stat --check tells that policies differ" \
  sh -c "test $code = 1 && grep -q 'different policies: .*forwarder 0: fifo.*forwarder 1: wfq' $OUT"
policy reset > "$OUT"
check "reset goes back to the configurations" follows fifo 2
check "and removes the file" test ! -e "$DATA/.tidegate/policy.toml"
share set job weight=3 > "$OUT"
stop b; again b
share > "$OUT" 2> "$ERR"
check "rules are kept" sh -c "grep -q 'app *job' $OUT && ! grep -q 'other rules' $ERR"
echo 'policy = "none such"' > "$DATA/.tidegate/policy.toml"
stop b
"$TIDEGATE" serve --config "$WORK/b.toml" > "$OUT" 2>&1 && code=0 || code=$?
check "a kept policy that makes no sense is told at the start" \
  sh -c "test $code = 2 && grep -q 'policy.toml.*none such.*remove that file' $OUT"

rm "$DATA/.tidegate/policy.toml"
again b

note "two forwarders with one index"
forwarder twin "$DATA" 1 2 "unix:$WORK/twin.sock"
asked() { timeout 30 "$TIDEGATE" "$@" --secret-file "$SECRET" > "$OUT" 2>&1 && code=0 || code=$?; }
told() { for _ in $(seq 50); do asked stat --check --forwarders "$A"; grep -qE "$1" "$OUT" && [ $code = 1 ] && return 0; sleep 0.2; done; cat "$OUT"; return 1; }
check "stat --check tells it, from one address" told "forwarder 1 .*another process says that it is forwarder 1 too, at .*correct"
asked drain 1 --forwarders "unix:$WORK/twin.sock"
check "drain by the address of either is refused" sh -c "test $code = 1 && grep -q 'is not drained: another process' $OUT"
stop twin

for name in a b foreign; do stop $name; done

note "a list in DNS"
unable=
unshare --net --mount true 2> /dev/null || unable="no right to make namespaces, so no list in DNS was tried"
command -v ip > /dev/null || unable="ip is missing, so no list in DNS was tried: run tools/need test"
[ -z "$unable" ] || { [ "$FAILURES" = 0 ] || verdict; skip "$unable"; }
printf 'nameserver 127.0.0.1\nsearch test\noptions timeout:1 attempts:1\n' > "$WORK/resolv.conf"
# Copies of mounts of other suites would keep these alive after they are unmounted.
unshare --net --mount --propagation private sh -c '
    awk "\$3 ~ /^fuse/ { print \$2 }" /proc/mounts | xargs -r umount --lazy
    ip link set lo up && { [ ! -e /etc/resolv.conf ] || mount --bind "$0/resolv.conf" /etc/resolv.conf; } && exec "$@"' \
  "$WORK" "$REPO/tests/name_server.py" io0.test=127.0.0.1 io1.test=127.0.0.1 \
  _tidegate._tcp.test=10,0,4600,io0.test _tidegate._tcp.test=0,5,4601,io1.test \
  _long._tcp.test=0,5,4600,io0.test _long._tcp.test=0,5,4601,io1.test _none._tcp.test=0,0,0,. _bare._tcp.test=127.0.0.1 \
  > "$WORK/names.out" 2>&1 < /dev/null &
NAMES=$!; remember $NAMES
for _ in $(seq 100); do grep -qx ready "$WORK/names.out" && break; alive $NAMES || break; sleep 0.05; done
grep -qx ready "$WORK/names.out" || { cat "$WORK/names.out"; die "the name server does not serve"; }
# within COMMAND...: beside the name server.
within() { nsenter --target "$NAMES" --net --mount -- "$@"; }
printf '#!/bin/sh\nexec nsenter --target %s --net --mount -- "%s" "$@"\n' "$NAMES" "$TIDEGATE" > "$WORK/within"
chmod 755 "$WORK/within"; TIDEGATE=$WORK/within
mkdir "$WORK/named"
forwarder c "$WORK/named" 0 2 tcp:127.0.0.1:4600
forwarder d "$WORK/named" 1 2 tcp:127.0.0.1:4601
S=@_tidegate._tcp.test
check "both by the records of a name" agrees 2 "$S"
check "with a search domain" agrees 2 @_tidegate._tcp
check "more than fits into UDP" agrees 2 @_long._tcp.test
echo "$S # all" > "$WORK/list"
check "from a file" agrees 2 "@$WORK/list"
printf 'forwarders = ["%s"]\nsecret_file = "%s"\n' "$S" "$SECRET" > "$WORK/client.toml"
both() { timeout 20 env "${@:2}" "$TIDEGATE" policy get $1 > "$OUT" 2>&1 && [ "$(grep -c '^forwarder [01]: fifo' "$OUT")" = 2 ] || { cat "$OUT"; return 1; }; }
check "from client.toml" both "--client $WORK/client.toml"
check "from the variable" both "--secret-file $SECRET" "TIDEGATE_FORWARDERS=$S"
"$TIDEGATE" mount "$MNT" --foreground --secret-file "$SECRET" --forwarders "$S" > "$OUT" 2>&1 &
MOUNT=$!; remember $MOUNT
there() { for _ in $(seq 200); do within grep -q " $MNT fuse" /proc/self/mounts && return 0; alive $MOUNT || break; sleep 0.05; done; cat "$OUT"; return 1; }
check "a mount" there
check "and works" within sh -c "cp $WORK/sent $MNT/file && cmp $WORK/sent $MNT/file && cmp $WORK/sent $WORK/named/file"
"$TIDEGATE" umount "$MNT"; wait $MOUNT || true
check "no such name" refused '^tidegate: forwarders: @_other._tcp.test: DNS has no such name; publish' @_other._tcp.test
check "a name without such records" refused '@_bare._tcp.test: the name has no SRV record in DNS; publish' @_bare._tcp.test
check "a name that is there for nobody" refused '@_none._tcp.test: .* target "\."' @_none._tcp.test
check "beside an address" refused "$S stands beside others" "$S" tcp:io0.test:4600
check "a name server that keeps silent" refused '@_silent._tcp.test: no name server gives an answer .*timed out' @_silent._tcp.test
kill -STOP "$NAMES"
check "and one that hangs" refused "$S: no name server gives an answer .*timed out" "$S"
kill -CONT "$NAMES"
for name in c d; do stop $name; done
verdict
