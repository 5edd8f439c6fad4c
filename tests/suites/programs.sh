#!/bin/bash
# Unmodified programs over four forwarders do what they do on a plain directory: every case.
. "$(dirname "$0")/../lib.sh"
need_fuse
up 4
check "every case over 4 forwarders" compare default
down
if [ "$MODE" = long ]; then
  up 1
  check "every case over 1 forwarder" compare single
  down
fi
verdict
