"""What forwarders' traces say of collective operations.

usage: traced.py FOLDER FILE=APP[:COLLECTIVES[:CLIENTS]]...

FILE is a path in the export, still there. Every request of it has to count for the application APP.
Those of a collective have to carry one operation number and one stamp; there have to be that many
COLLECTIVES, at least one of them with requests of that many CLIENTS.
"""

import glob
import os
import struct
import sys

MASK = (1 << 64) - 1


def app_id(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 & MASK
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ value >> 33


def requests(folder):
    """Yields (file, app, operation, stamp, client) of each request."""
    for path in sorted(glob.glob(os.path.join(folder, "*.trace"))):
        zero = 0
        data = open(path, "rb").read()
        for at in range(0, len(data) - 95, 96):
            block = data[at : at + 96]
            if block[0] == ord("T"):
                (zero,) = struct.unpack_from("<Q", block, 16)
            elif block[0] == 1:
                issue, app, operation, file = struct.unpack_from("<qQQQ", block, 16)
                (client,) = struct.unpack_from("<I", block, 88)
                yield file, app, operation, issue + zero, client


def check(seen, path, app, collectives, clients):
    mine = [it for it in seen if it[0] == os.stat(path).st_ino]
    assert mine, f"{path}: no request was recorded"
    others = {it[1] for it in mine} - {app_id(app)}
    assert not others, f"{path}: requests count for {[hex(it) for it in others]}, not for {app}"
    # Numbers of collectives begin where those of single calls never come to.
    groups = {}
    for _, _, operation, stamp, client in mine:
        if operation >> 63:
            groups.setdefault(operation, []).append((stamp, client))
    assert collectives in (None, len(groups)), f"{path}: {len(groups)} collectives"
    for operation, members in groups.items():
        stamps = {stamp for stamp, _ in members}
        assert len(stamps) == 1, f"{path}: operation {operation:x} has stamps {sorted(stamps)}"
    most = max((len({client for _, client in it}) for it in groups.values()), default=0)
    assert most >= clients, f"{path}: no collective has requests of {clients} clients"


def main():
    seen = list(requests(sys.argv[1]))
    for claim in sys.argv[2:]:
        path, _, what = claim.partition("=")
        app, *numbers = what.split(":")
        collectives = int(numbers[0]) if numbers and numbers[0] else None
        check(seen, path, app, collectives, int(numbers[1]) if len(numbers) > 1 else 1)
    print(f"{len(seen)} requests")


main()
