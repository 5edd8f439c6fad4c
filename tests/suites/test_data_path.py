"""System calls and copies that one request costs the forwarder, by its own counts. docs/data-path.md
says what they are."""
import json
import os
import re
import time

import pytest
from conftest import REPO, free_port, stop
from session import Session

KIB, MIB, REQUESTS = 1024, 1024 * 1024, 40
COLUMNS = ("waits", "receives", "receives_empty", "sends", "storage", "copies")
# A connection of another thread than the loop's: epoll waits that end hand-overs.
HAND_OVERS = 6
# The least and the most of each column.
ONE, FEW, SOME, MANY = (1, 1), (0, 4), (0, 0.2), (0, 40)
LIMITS = {
    ("Unix", 4 * KIB, "write"): (FEW, ONE, SOME, ONE, ONE, (4, 4)),
    ("Unix", 4 * KIB, "read"): (FEW, ONE, SOME, ONE, ONE, (3, 3)),
    ("Unix", 64 * KIB, "write"): (FEW, (2, 4), (0, 2), ONE, ONE, (3, 3.01)),
    ("Unix", 64 * KIB, "read"): (FEW, ONE, SOME, (1, 2), ONE, (3, 3)),
    ("Unix", MIB, "write"): (MANY, (2, 32), (0, 32), ONE, ONE, (3, 3)),
    ("Unix", MIB, "read"): (MANY, ONE, SOME, (1, 32), ONE, (1, 1.01)),
    ("TCP", 4 * KIB, "write"): (FEW, ONE, SOME, ONE, ONE, (4, 4)),
    ("TCP", 4 * KIB, "read"): (FEW, ONE, SOME, ONE, ONE, (3, 3)),
    ("TCP", 64 * KIB, "write"): (FEW, (2, 6), (0, 4), ONE, ONE, (3, 3.01)),
    ("TCP", 64 * KIB, "read"): (FEW, ONE, SOME, (1, 4), ONE, (3, 3)),
    ("TCP", MIB, "write"): (MANY, (2, 32), (0, 32), ONE, ONE, (3, 3)),
    ("TCP", MIB, "read"): (MANY, ONE, SOME, (1, 32), ONE, (1, 1.01)),}


def counts(session):
    """The forwarder's counts, and how often they were looked at. A thread of connections tells what it
    has done once a pass, so they are looked at until all that clients received is told as sent."""
    while True:
        received = Session.received_bytes
        found = json.loads(session.status())["system"]
        session.looks += 1
        if found["sent_bytes"] == received:
            return found | {"looks": session.looks}
        # Who may not speak for others gets the same text for 200 ms.
        time.sleep(0.21)
        assert session.looks < 100, f"{found['sent_bytes']} bytes are told as sent, {received} came"


def cost(session, handle, size, kind):
    """What one request costs, the requests for the status taken off."""
    data = os.urandom(size)

    def one():
        if kind == "write":
            session.write(handle, 0, data)
        else:
            session.read(handle, 0, size)
    one()  # the file is there and in the page cache
    start = counts(session)
    alone = counts(session)
    for _ in range(REQUESTS):
        one()
    end = counts(session)

    def each(key):
        look = (alone[key] - start[key]) / (alone["looks"] - start["looks"])
        return (end[key] - alone[key] - look * (end["looks"] - alone["looks"])) / REQUESTS
    moved = each("received_bytes" if kind == "write" else "sent_bytes")
    assert size <= moved <= size + 400, f"{moved} bytes for a payload of {size}"
    storage = each(f"storage_{kind}s")
    # By the peer's socket call and ours, inside of the forwarder, and by the call to the file.
    # Pages go from the file to the socket without the last two.
    copies = 2 + each("copied_bytes") / size + storage - (1 + storage) * each("spliced_bytes") / size
    return [copies if column == "copies" else storage if column == "storage" else each(column)
            for column in COLUMNS]


@pytest.fixture(scope="module", params=[1, 2], ids=["the loop's thread", "another thread"])
def forwarder(request, work):
    """Addresses of a forwarder, and the epoll waits that hand-overs end: its connections are served by
    the thread of its loop, or by another one."""
    with work.part() as part:
        addresses = {"Unix": f"unix:{part / 'socket'}", "TCP": f"tcp:127.0.0.1:{free_port()}"}
        config = part.toml("forwarder.toml", export=part.folder("data"), listen=list(addresses.values()),
                           insecure=True, reactors=request.param)
        process = part.serve(config, part / "serve.log")
        Session.received_bytes = 0
        if request.param == 2:
            # The loop's own thread has this one, so the next are another thread's.
            idle = Session(addresses["Unix"], 1)
            idle.greet()
        yield addresses, HAND_OVERS * (request.param - 1)
        stop(process)


@pytest.mark.parametrize("path, size, kind", LIMITS)
def test_cost(forwarder, path, size, kind):
    addresses, hand_overs = forwarder
    session = Session(addresses[path], 1000 + len(path) * 10 + size // KIB)
    session.greet()
    found = cost(session, session.create(f"{path} {size}"), size, kind)
    session.bye()
    limits = list(LIMITS[path, size, kind])
    limits[0] = (limits[0][0], limits[0][1] + hand_overs)
    wrong = [f"{column} {cost:.2f}, not {least:g} to {most:g}"
             for column, cost, (least, most) in zip(COLUMNS, found, limits)
             if not least - 0.005 <= cost <= most + 0.005]
    assert not wrong
    print("".join(f" {column} {cost:.2f}" for column, cost in zip(COLUMNS, found)), end=" ")


def test_the_page_says_the_same():
    """Each row of the table of docs/data-path.md is a row here, with the same ends."""
    rows = {}
    for line in (REPO / "docs/data-path.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found = re.fullmatch(r"(\d+) (KiB|MiB) (read|write)", cells[1]) if len(cells) == 8 else None
        if found:
            ends = [[float(end) for end in cell.split(" to ")] for cell in cells[2:]]
            size = int(found[1]) * (KIB if found[2] == "KiB" else MIB)
            rows[cells[0], size, found[3]] = tuple((ends[0], ends[-1]) for ends in ends)
    assert rows == LIMITS
