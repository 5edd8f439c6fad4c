"""Makes a file longer, maps it, stores into the mapping and syncs it: mapping.py FILE LENGTH."""
import mmap
import os
import sys

path, length = sys.argv[1], int(sys.argv[2])
file = os.open(path, os.O_RDWR)
os.ftruncate(file, length)
mapping = mmap.mmap(file, length)
for at in range(0, length, 1 << 19):
    mapping[at:at + 6] = b"stored"
mapping.flush()
mapping.close()
os.fsync(file)
