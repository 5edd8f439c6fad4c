"""Two writers each own one half of every block of a file; a reader sees no half that is torn.

usage: halves.py write|read|check FILE HALF BLOCKS SIZE ROUNDS
A half in round r holds one byte value, r + 1, all through; it only ever grows.
"""
import os
import sys

verb, path = sys.argv[1:3]
half, blocks, size, rounds = map(int, sys.argv[3:])
length = size // 2


def read_half(file, block, side):
    data = os.pread(file, length, block * size + side * length)
    if len(data) != length or data != data[:1] * length:
        sys.exit(f"block {block}, half {side}: {len(data)} bytes of values {sorted(set(data))}")
    return data[0]


file = os.open(path, os.O_RDWR)
if verb == "write":
    for turn in range(rounds):
        for block in range(blocks):
            data = bytes([turn + 1]) * length
            if os.pwrite(file, data, block * size + half * length) != length:
                sys.exit("a short write")
            if read_half(file, block, half) != turn + 1:
                sys.exit(f"block {block}: my own write is not there")
elif verb == "read":
    last = {}
    for _ in range(rounds):
        for block in range(blocks):
            for side in (0, 1):
                # Stripe borders may lie in a half, and parts of one call have no order between stripes;
                # so only a half within one stripe is compared as a whole.
                start = block * size + side * length
                if start // 65536 != (start + length - 1) // 65536:
                    continue
                value = read_half(file, block, side)
                if value < last.get((block, side), 0):
                    sys.exit(f"block {block}, half {side}: {value} after {last[(block, side)]}")
                last[(block, side)] = value
else:
    for block in range(blocks):
        for side in (0, 1):
            if (value := read_half(file, block, side)) != rounds:
                sys.exit(f"block {block}, half {side}: {value} and not {rounds}")
