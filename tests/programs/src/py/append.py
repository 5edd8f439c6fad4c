"""Four processes append records of different sizes to one file; every one is there, whole, once."""
import os

RECORDS, WRITERS = 150, 4
children = []
for writer in range(WRITERS):
    child = os.fork()
    if child == 0:
        file = os.open("records", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for number in range(RECORDS):
            text = f"{writer} {number} " + "." * (number * 37 % 5000)
            os.write(file, text.encode() + b"\n")
        os._exit(0)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
lines = open("records").read().splitlines()
seen = {}
for line in lines:
    writer, number, dots = line.split(" ")
    assert dots == "." * (int(number) * 37 % 5000), line
    assert int(number) == seen.get(writer, -1) + 1, line
    seen[writer] = int(number)
print(len(lines), seen == {str(writer): RECORDS - 1 for writer in range(WRITERS)})
os.unlink("records")

file = os.open("appended", os.O_RDWR | os.O_CREAT | os.O_APPEND)
os.write(file, b"one")
os.lseek(file, 0, os.SEEK_SET)
os.write(file, b"two")
print(os.lseek(file, 0, os.SEEK_CUR), os.pread(file, 10, 0))
other = os.open("appended", os.O_WRONLY | os.O_APPEND)
os.write(other, b"three")
os.write(file, b"four")
os.ftruncate(file, 2)
os.write(other, b"five")
print(os.pread(file, 20, 0))
