#!/bin/bash
# Several nodes over a distributed file system, in namespaces: what docs/semantics.md promises holds.
# CHECKS="append fail_over" runs those checks only, BACKENDS="ceph plain" on those back ends only;
# `tests/cluster/bed list` names them, FORMS the forms of Gluster volumes.
. "$(dirname "$0")/../lib.sh"
need_fuse
BED=$REPO/tests/cluster/bed
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
for form in "${forms[@]}"; do
  check "every check of the cluster, Gluster volumes $form" beds --form "$form"
  rm -rf "$WORK/bed"
done
verdict
