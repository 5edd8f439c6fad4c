#!/bin/bash
# pjdfstest: every POSIX case that passes on the plain directory passes on the mount.
. "$(dirname "$0")/../lib.sh"
need_fuse
[ "$(id -u)" = 0 ] || skip "pjdfstest changes users and needs root"
pjdfstest=$("$REPO/tools/need" --path pjdfstest) || skip "pjdfstest is not built: run tools/need pjdfstest"
made=()
for user in nobody tests pjdfstest; do
  id "$user" > /dev/null 2>&1 && continue
  useradd --system --user-group --no-create-home --shell /usr/sbin/nologin "$user"
  made+=("$user")
done
forget_users() {
  # Some settings of userdel take the group away too, others leave it.
  for user in "${made[@]}"; do { userdel "$user"; groupdel "$user"; } > /dev/null 2>&1 || true; done
}
trap 'code=$?; forget_users; (exit $code); leave' EXIT

# Not asked for: birth times (the mount has no statx), flags and access lists of other systems.
cat > "$WORK/pjdfstest.toml" <<'TOML'
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
secondary_fs = "/dev/shm"
[settings]
naptime = 0.02
[dummy_auth]
entries = [["nobody", "nogroup"], ["tests", "tests"]]
TOML
# cases DIR FILE: runs all cases in that directory; FILE gets the names of those that passed, sorted.
cases() {
  mkdir -p "$1"; chmod 755 "$WORK" "$1"
  "$pjdfstest" -c "$WORK/pjdfstest.toml" -p "$1" > "$2.out" 2>&1 < /dev/null || true
  sed -E 's/\x1b\[[0-9;]*m//g' "$2.out" | awk '$2 == "ok" && NF == 2 { print $1 }' | sort > "$2"
}
cases "$PLAIN/pjd" "$WORK/wanted"
# Left out: the C library tells LINK_MAX by the type of the file system, and knows none for FUSE.
sed -i '/^link::link_count_max$/d' "$WORK/wanted"
passing=$(wc -l < "$WORK/wanted")
note "$passing cases pass on the plain directory"
check "most cases pass on the plain directory" test "$passing" -gt 300
counts=(4); [ "$MODE" = quick ] || counts=(1 4)
for count in "${counts[@]}"; do
  up "$count"
  cases "$MNT/pjd" "$WORK/got"
  missing=$(comm -23 "$WORK/wanted" "$WORK/got")
  check "$count forwarders: the same $passing cases pass" test -z "$missing"
  for name in $missing; do grep -A4 "^$name " "$WORK/got.out" | sed 's/^/    /'; done | head -n 80
  down
done
verdict
