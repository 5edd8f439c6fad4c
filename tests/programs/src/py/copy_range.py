"""Exercises copy_file_range, sendfile and splice between files, within one, and at odd offsets."""
import errno, hashlib, os


def digest(name):
    return hashlib.sha256(open(name, "rb").read()).hexdigest()[:16]


def copy_all(source, target, count, *offsets):
    """copy_file_range until count bytes went over; the kernel may copy less at once."""
    done, (from_, to) = 0, offsets
    while done < count:
        moved = os.copy_file_range(source, target, count - done, from_ + done, to + done)
        if moved == 0:
            break
        done += moved
    return done


with open("source", "wb") as file:
    file.write(open(os.environ["BYTES"], "rb").read(5_000_011))
source = os.open("source", os.O_RDWR)
target = os.open("target", os.O_RDWR | os.O_CREAT)
print(copy_all(source, target, 5_000_011, 0, 0), digest("source") == digest("target"))
print(copy_all(source, target, 1_500_001, 33, 4_999_000), os.fstat(target).st_size, digest("target"))
print(copy_all(source, target, 100, 5_000_000, 7), digest("target"))
print(copy_all(source, source, 1_000_000, 0, 2_000_000), digest("source"))
print(os.copy_file_range(source, target, 10, 6_000_000, 0))
try:
    os.copy_file_range(source, source, 1000, 0, 500)
except OSError as error:
    print(errno.errorcode[error.errno])
os.lseek(source, 100, os.SEEK_SET)
moved = os.copy_file_range(source, target, 1000)
print(moved, os.lseek(source, 0, os.SEEK_CUR), os.lseek(target, 0, os.SEEK_CUR))
sent = os.open("sent", os.O_RDWR | os.O_CREAT)
done = 0
while done < 3_000_000:
    done += os.sendfile(sent, source, 1000 + done, 3_000_000 - done)
print(digest("sent"))
read_end, write_end = os.pipe()
spliced = os.open("spliced", os.O_RDWR | os.O_CREAT)
at = 0
while at < 700_001:
    count = os.splice(source, write_end, min(65536, 700_001 - at), offset_src=at)
    while count > 0:
        moved = os.splice(read_end, spliced, count, offset_dst=at)
        count, at = count - moved, at + moved
print(os.fstat(spliced).st_size, digest("spliced"))
