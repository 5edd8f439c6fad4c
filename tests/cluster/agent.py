"""Runs system calls on a node for the checks, one after another or several at once.

As a program, `agent.py SOCKET`, it serves; `Agent` is the other end. A call names a function of
`os` or one of those below. Descriptors stay open in the agent, as in any program of that node.
Sockets of the file system reach across network namespaces, so a cut network cuts no agent off.
"""
import ctypes
import fcntl
import mmap
import os
import pickle
import socket
import struct
import sys
import threading
import time

OFD_SETLK, OFD_SETLKW = 37, 38
STATX_SIZE, FORCE_SYNC = 0x200, 0x2000
LIBC = ctypes.CDLL(None, use_errno=True)


def lock(file, kind="ofd", how="write", start=0, length=0, wait=False):
    """Takes or drops a lock; True if it was granted, False if another has it."""
    if kind == "flock":
        how = {"read": fcntl.LOCK_SH, "write": fcntl.LOCK_EX, "none": fcntl.LOCK_UN}[how]
        try:
            fcntl.flock(file, how if wait else how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
    kinds = {"read": fcntl.F_RDLCK, "write": fcntl.F_WRLCK, "none": fcntl.F_UNLCK}
    text = struct.pack("hhqqi4x", kinds[how], os.SEEK_SET, start, length, 0)
    numbers = (OFD_SETLK, OFD_SETLKW) if kind == "ofd" else (fcntl.F_SETLK, fcntl.F_SETLKW)
    try:
        fcntl.fcntl(file, numbers[wait], text)
    except (BlockingIOError, PermissionError):
        return False
    return True


def fresh_size(file):
    """The size by statx with AT_STATX_FORCE_SYNC."""
    buffer = ctypes.create_string_buffer(256)
    if LIBC.statx(file, b"", 0x1000 | FORCE_SYNC, STATX_SIZE, buffer) != 0:
        raise OSError(ctypes.get_errno(), "statx")
    return struct.unpack_from("Q", buffer, 40)[0]


def direct_read(file, length, offset, skew=0):
    """Reads into memory that lies `skew` bytes beside a page."""
    memory = mmap.mmap(-1, length + 8192)
    view = memoryview(memory)[skew:skew + length]
    count = os.preadv(file, [view], offset)
    return bytes(view[:count])


def direct_write(file, data, offset, skew=0):
    memory = mmap.mmap(-1, len(data) + 8192)
    memory[skew:skew + len(data)] = data
    return os.pwritev(file, [memoryview(memory)[skew:skew + len(data)]], offset)


def drop_pages(file):
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def size(file):
    return os.fstat(file).st_size


def path_size(path):
    return os.stat(path).st_size


def links(path):
    return os.stat(path).st_nlink


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


def write_file(path, data, sync=True):
    """Makes or replaces a file; with `sync`, its bytes are stable afterwards."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def write_all(file, data, offset):
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], offset + done)
    return done


def timed(name, *arguments, **named):
    """Result and seconds of another call."""
    started = time.monotonic()
    result = call(name, arguments, named)
    return result, time.monotonic() - started


def call(name, arguments, named):
    function = globals().get(name) or getattr(os, name)
    return function(*arguments, **named)


def take_bytes(connection, length):
    data = b""
    while len(data) < length:
        piece = connection.recv(min(length - len(data), 1 << 20))
        if not piece:
            return None
        data += piece
    return data


def take(connection):
    head = take_bytes(connection, 8)
    body = head and take_bytes(connection, struct.unpack("Q", head)[0])
    return pickle.loads(body) if body else None


def give(connection, thing):
    data = pickle.dumps(thing)
    connection.sendall(struct.pack("Q", len(data)) + data)


def serve(connection):
    while (wanted := take(connection)) is not None:
        try:
            answer = (True, call(*wanted))
        except Exception as error:  # whatever it is, the caller gets it
            answer = (False, error)
        give(connection, answer)


def main():
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(16)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


class Agent:
    """One thread on a node: `agent.pread(file, 10, 0)` is os.pread there. Raises what it raises.

    A call that is not answered in `seconds` raises TimeoutError, and the agent is of no use any more.
    """

    def __init__(self, path, seconds=90):
        self._socket = socket.socket(socket.AF_UNIX)
        end = time.monotonic() + 20
        while True:
            try:
                self._socket.connect(path)
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
        self._socket.settimeout(seconds)

    def __getattr__(self, name):
        def remote(*arguments, **named):
            give(self._socket, (name, arguments, named))
            answer = take(self._socket)
            if answer is None:
                raise ConnectionError("the agent is gone")
            done, result = answer
            if not done:
                raise result
            return result
        return remote


if __name__ == "__main__":
    main()
