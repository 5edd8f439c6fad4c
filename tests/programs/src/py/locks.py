"""Exercises advisory locks between processes: flock, fcntl ranges, descriptions, waiting, release."""
import errno, fcntl, os, struct, time


def answer(call, *arguments):
    try:
        call(*arguments)
        return "granted"
    except OSError as error:
        return errno.errorcode[error.errno].replace("EACCES", "EAGAIN")


def in_child(action):
    """Runs action in a forked child and prints what it returned."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, str(action()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write_end)
    print(os.read(read_end, 1000).decode())
    os.close(read_end)


def try_range(kind, start, length):
    file = open("file", "r+b")
    return answer(fcntl.lockf, file, kind | fcntl.LOCK_NB, length, start)


def try_flock(kind):
    return answer(fcntl.flock, open("file", "r+b"), kind | fcntl.LOCK_NB)


def who(start, length):
    file = open("file", "r+b")
    query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    kind, _, at, size, pid = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, query))
    return kind, at, size, pid == os.getppid()


file = open("file", "w+b")
file.write(b"x" * 1000)
file.flush()
print("ranges")
fcntl.lockf(file, fcntl.LOCK_EX, 100, 50)
in_child(lambda: try_range(fcntl.LOCK_EX, 149, 1))
in_child(lambda: try_range(fcntl.LOCK_SH, 50, 1))
in_child(lambda: try_range(fcntl.LOCK_EX, 150, 10))
in_child(lambda: who(0, 1000))
in_child(lambda: who(200, 10))
fcntl.lockf(file, fcntl.LOCK_UN, 20, 90)  # splits the range
in_child(lambda: who(0, 1000))
in_child(lambda: try_range(fcntl.LOCK_EX, 95, 10))
in_child(lambda: try_range(fcntl.LOCK_EX, 110, 1))
fcntl.lockf(file, fcntl.LOCK_SH, 0, 0)  # to the end of time, shared
in_child(lambda: try_range(fcntl.LOCK_SH, 5000, 10))
in_child(lambda: try_range(fcntl.LOCK_EX, 1 << 40, 10))
open("file").close()  # closing any descriptor of the file drops the process's range locks
in_child(lambda: try_range(fcntl.LOCK_EX, 0, 0))
print("flock")
fcntl.flock(file, fcntl.LOCK_SH)
in_child(lambda: try_flock(fcntl.LOCK_SH))
in_child(lambda: try_flock(fcntl.LOCK_EX))
in_child(lambda: answer(fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB))  # shares our description
in_child(lambda: try_flock(fcntl.LOCK_SH))
in_child(lambda: try_range(fcntl.LOCK_EX, 0, 10))  # the two kinds do not see each other
fcntl.flock(file, fcntl.LOCK_UN)
in_child(lambda: try_flock(fcntl.LOCK_EX))
print("description locks")
request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 10, 10, 0)
fcntl.fcntl(file, 37, request)  # F_OFD_SETLK
print(try_range(fcntl.LOCK_EX, 15, 1))  # the same process, another description
release = struct.pack("hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
fcntl.fcntl(file, 37, release)
print(try_range(fcntl.LOCK_EX, 15, 1))

print("waiting")
for name, lock in (("range", lambda f, how: fcntl.lockf(f, how, 10, 0)), ("flock", fcntl.flock)):
    held = open("file", "r+b")
    lock(held, fcntl.LOCK_EX)
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        own = open("file", "r+b")
        os.write(tells, b"?")
        lock(own, fcntl.LOCK_EX)
        os.write(tells, struct.pack("d", time.monotonic()))
        os._exit(0)
    os.read(told, 1)
    time.sleep(0.5)
    released = time.monotonic()
    lock(held, fcntl.LOCK_UN)
    (locked,) = struct.unpack("d", os.read(told, 8))
    print(name, locked >= released, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

print("a holder that dies")
ready, go = os.pipe()
child = os.fork()
if child == 0:
    own = open("file", "r+b")
    fcntl.lockf(own, fcntl.LOCK_EX, 10, 0)
    fcntl.flock(own, fcntl.LOCK_EX)
    os.write(go, b"1")
    time.sleep(30)
os.read(ready, 1)
print(try_range(fcntl.LOCK_EX, 0, 1), try_flock(fcntl.LOCK_EX))
os.kill(child, 9)
os.waitpid(child, 0)
time.sleep(0.2)
print(try_range(fcntl.LOCK_EX, 0, 1), try_flock(fcntl.LOCK_EX))

print("a counter under a lock")
with open("counter", "w") as counter:
    counter.write("0")
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        for _ in range(25):
            with open("counter", "r+") as counter:
                fcntl.lockf(counter, fcntl.LOCK_EX)
                value = int(counter.read())
                counter.seek(0)
                counter.write(str(value + 1))
                counter.flush()
        os._exit(0)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
print(open("counter").read())
