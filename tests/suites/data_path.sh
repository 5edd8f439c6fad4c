#!/bin/bash
# System calls and copies that one request costs the forwarder, by its own counts, against the table of docs/data-path.md.
. "$(dirname "$0")/../lib.sh"
[ -x "$TIDEGATE" ] || die "$TIDEGATE is missing: cargo build --release -p tidegate-cli"
port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
mkdir -p "$DATA" "$RUN"
# serve REACTORS: starts a forwarder with that many.
serve() {
  cat > "$WORK/forwarder.toml" <<TOML
export = "$DATA"
listen = ["unix:$WORK/socket", "tcp:127.0.0.1:$port"]
insecure = true
pid_file = "$RUN/forwarder.0.pid"
reactors = $1
TOML
  "$TIDEGATE" serve --config "$WORK/forwarder.toml" \
    > "$WORK/serve.log" 2>&1 < /dev/null &
  SERVER=$!
  remember $SERVER
  for _ in $(seq 300); do [ -S "$WORK/socket" ] && [ -s "$RUN/forwarder.0.pid" ] && break; sleep 0.1; done
}

cat > "$WORK/count.py" <<'PY'
import json, time, os, re, sys
sys.path.insert(0, sys.argv[1] + "/tests")
from session import Session
KIB, REQUESTS = 1024, 40
# Of a network thread's connections: epoll waits that end hand-overs.
HAND_OVERS = int(sys.argv[4])
PATHS = {"Unix": sys.argv[2], "TCP": sys.argv[3]}
COLUMNS = ("waits", "receives", "receives_empty", "sends", "storage", "copies")


def counts(session):
    # A network thread tells what it has done once a pass: of the last one a moment later.
    time.sleep(0.05)
    return json.loads(session.status())["system"]


def cost(session, handle, size, write):
    """What one request costs, the request for the status taken off."""
    data = os.urandom(size)
    def one():
        session.write(handle, 0, data) if write else session.read(handle, 0, size)
    one()  # the file is there and in the page cache
    start = counts(session)
    alone = counts(session)
    for _ in range(REQUESTS):
        one()
    end = counts(session)
    def each(key):
        return (end[key] - alone[key] - (alone[key] - start[key])) / REQUESTS
    moved = each("received_bytes") if write else each("sent_bytes")
    assert size <= moved <= size + 400, f"{moved} bytes for a payload of {size}"
    storage = each("storage_writes" if write else "storage_reads")
    # By the peer's socket call and ours, inside of the forwarder, and by the call to the file.
    # Pages go from the file to the socket without the last two.
    copies = 2 + each("copied_bytes") / size + storage - (1 + storage) * each("spliced_bytes") / size
    return dict(waits=each("waits"), receives=each("receives"), receives_empty=each("receives_empty"),
                sends=each("sends"), storage=storage, copies=copies)


def table(path):
    """The rows of the document: (path, request) to a range for each column."""
    rows = {}
    for line in open(path, encoding="utf-8"):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        found = re.fullmatch(r"(\d+) (KiB|MiB) (read|write)", cells[1]) if len(cells) > 7 else None
        if not found:
            continue
        size = int(found[1]) * (KIB if found[2] == "KiB" else KIB * KIB)
        ends = [[float(end) for end in cell.split(" to ")] for cell in cells[2:8]]
        rows[cells[0], size, found[3] == "write"] = [(ends[0], ends[-1]) for ends in ends]
    return rows


rows, wrong = table(sys.argv[1] + "/docs/data-path.md"), 0
if len(rows) < 8:
    sys.exit(f"docs/data-path.md has {len(rows)} rows, 8 are expected")
if HAND_OVERS:
    # The core's own thread has this one, so the next is a network thread's.
    idle = Session(PATHS["Unix"], 1)
    idle.greet()
for (path, size, write), ranges in rows.items():
    session = Session(PATHS[path], 1000 + len(path) * 10 + size // KIB)
    session.greet()
    found = cost(session, session.create(f"{path} {size}"), size, write)
    session.bye()
    for column, (least, most) in zip(COLUMNS, ranges):
        most += HAND_OVERS if column == "waits" else 0
        if not least - 0.005 <= found[column] <= most + 0.005:
            wrong += 1
            print(f"  {path} {size} {'write' if write else 'read'}: {column} {found[column]:.2f}, "
                  f"the table says {least:g} to {most:g}")
    print(f"    {path:5}{size:8} {'write' if write else 'read ':6}" +
          "".join(f" {column} {found[column]:.2f}" for column in COLUMNS))
sys.exit(wrong != 0)
PY
serve 1
check "the table of docs/data-path.md is what is counted" \
  python3 "$WORK/count.py" "$REPO" "unix:$WORK/socket" "tcp:127.0.0.1:$port" 0
kill -TERM $SERVER; wait $SERVER || true
serve 2
check "a connection of a network thread adds hand-overs and nothing else" \
  python3 "$WORK/count.py" "$REPO" "unix:$WORK/socket" "tcp:127.0.0.1:$port" 6
verdict
