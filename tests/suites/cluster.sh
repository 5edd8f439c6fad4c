#!/bin/bash
# Several nodes over a distributed file system, in namespaces: what docs/semantics.md promises holds.
# CHECKS="append fail_over" runs those checks only, BACKENDS="ceph plain" on those back ends only;
# `tests/cluster/bed list` names them, FORMS the forms of Gluster volumes.
. "$(dirname "$0")/../lib.sh"
need_fuse
BED=$REPO/tests/cluster/bed
# Programs of users work below it.
chmod 755 "$WORK"
[ "$(id -u)" = 0 ] || skip "nodes are namespaces with networks and mounts, which need root"
for wanted in ip:iproute2 nsenter:util-linux setpriv:util-linux ceph-mon:ceph-mon ceph-osd:ceph-osd \
    ceph-mds:ceph-mds ceph-fuse:ceph-fuse ceph:ceph-common etcd:etcd-server etcdctl:etcd-client; do
  command -v "${wanted%:*}" > /dev/null || skip "${wanted%:*} is missing: run tools/need test"
done
unshare --net --mount --pid --fork true 2> /dev/null || skip "no right to make namespaces"
read -ra names <<< "${CHECKS:-}"
read -ra backends <<< "${BACKENDS:-}"
options=() forms=(rep3)
for backend in "${backends[@]}"; do options+=(--backend "$backend"); done
if [ "$MODE" = long ]; then
  command -v glusterd > /dev/null || skip "glusterd is missing: run tools/need test-long"
  options+=(--long)
  read -ra forms <<< "${FORMS:-rep3}"
fi

# beds OPTIONS...: the bed is remembered, so that all of it ends with this suite.
beds() {
  TIDEGATE=$TIDEGATE "$BED" check --work "$WORK/bed" "${options[@]}" "$@" "${names[@]}" < /dev/null &
  local pid=$!
  remember $pid
  wait $pid
}
# side_by_side: two beds of plain folders are up at once, and each does only what it is told itself.
side_by_side() {
  local name seen left=0 names=("$$-one" "$$-two")
  for name in "${names[@]}"; do
    mkfifo "$WORK/$name"
    TIDEGATE=$TIDEGATE "$BED" up --name "$name" --backend plain --io 2 --compute 1 <> "$WORK/$name" \
      > "$WORK/$name.out" 2>&1 &
    remember $!
  done
  for name in "${names[@]}"; do
    for _ in $(seq 600); do grep -q '^logs and' "$WORK/$name.out" && break; sleep 0.1; done
    # shellcheck disable=SC2016 # the node's shell knows the folder
    "$BED" do --name "$name" at cn0 "echo $name"' > $TIDE/mine' || left=1
  done
  for name in "${names[@]}"; do
    # shellcheck disable=SC2016
    seen=$("$BED" do --name "$name" at cn0 'cat $TIDE/mine; ls $TIDE')
    [ "$seen" = "$name"$'\n'mine ] || { echo "$name: $seen"; left=1; }
    # Bounded: nobody reads where the bed did not come up.
    timeout 10 bash -c 'echo end > "$0"' "$WORK/$name" || left=1
  done
  wait
  for name in "${names[@]}"; do [ ! -e "/run/tidegate-beds/$name" ] || left=1; done
  [ $left = 0 ] || tail -n 5 "$WORK/$$"-*.out
  return $left
}
# A storage that does not come up: the bed says so, and the next one comes up.
after_a_failure() {
  mkdir -p "$WORK/broken"
  printf '#!/bin/sh\necho "planted: no object store" >&2\nexit 1\n' > "$WORK/broken/ceph-osd"
  chmod 755 "$WORK/broken/ceph-osd"
  PATH=$WORK/broken:$PATH TIDEGATE=$TIDEGATE "$BED" check --work "$WORK/failing" --backend ceph \
    --backend plain append < /dev/null > "$WORK/failing.out" 2>&1 &
  remember $!
  wait $!
  [ $? = 1 ] && grep -q "FAIL ceph: the cluster did not come up: .*planted" "$WORK/failing.out" \
    && grep -q "ok   plain: append" "$WORK/failing.out" || { cat "$WORK/failing.out"; return 1; }
}
if [ "${#names[@]}" = 0 ]; then
  check "two beds side by side" side_by_side
  check "a bed after one that did not come up" after_a_failure
fi

for form in "${forms[@]}"; do
  check "every check of the cluster, Gluster volumes $form" beds --form "$form"
  rm -rf "$WORK/bed"
done
verdict
