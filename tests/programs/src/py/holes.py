"""Exercises SEEK_DATA, SEEK_HOLE and posix_fallocate on a file with two islands of data."""
import errno, os

BLOCK = 1 << 20
fd = os.open("sparse", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 12 * BLOCK)
os.pwrite(fd, b"a" * BLOCK, 2 * BLOCK)
os.pwrite(fd, b"b" * (BLOCK + 4096), 7 * BLOCK)
os.fsync(fd)


def islands():
    """The pairs of offsets between which there is data."""
    found, offset = [], 0
    while True:
        try:
            start = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            return found, errno.errorcode[error.errno]
        offset = os.lseek(fd, start, os.SEEK_HOLE)
        found.append((start, offset))


print(islands())
print(os.lseek(fd, 0, os.SEEK_HOLE), os.lseek(fd, 2 * BLOCK + 5, os.SEEK_DATA))
print(os.lseek(fd, 11 * BLOCK, os.SEEK_HOLE), os.lseek(fd, 0, os.SEEK_END))
for offset in (12 * BLOCK, 20 * BLOCK):
    try:
        os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        print(errno.errorcode[error.errno])
os.pwrite(fd, b"c", 5 * BLOCK)
os.fsync(fd)
print(islands())
os.ftruncate(fd, 4 * BLOCK)
os.ftruncate(fd, 8 * BLOCK)
print(islands(), set(os.pread(fd, 1000, 5 * BLOCK)))
os.posix_fallocate(fd, 7 * BLOCK, 2 * BLOCK)
print(os.fstat(fd).st_size, set(os.pread(fd, 1000, 8 * BLOCK)))
