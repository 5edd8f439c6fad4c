"""One session with a forwarder, in Python alone: the frames of crates/wire, written down a second time.

For suites that need many sessions, or count what one request costs. Blocking, one request at a time
unless the caller sends several; every wait has an end.
"""
import socket
import struct
import zlib

HEADER = struct.Struct("<4sBBHQHHIIIQQQI")
VERSION = 9
HELLO, BYE, PING, STATUS, CREATE, GETATTR, READ, WRITE = 1, 2, 3, 4, 17, 32, 80, 81
HINTS = bytes(88)
FLAG_REPLY, FLAG_ROW, FLAG_HINTS = 1, 4, 16
TIMEOUT_S = 60


class Refused(Exception):
    """The forwarder answered with a status that is not 0."""

    def __init__(self, op, status):
        super().__init__(f"operation {op} was answered {status}")
        self.status = status


class Session:
    """A client with one connection: `where` is unix:/PATH or tcp:HOST:PORT (without a secret)."""

    received_bytes = 0  # by all sessions of this program

    def __init__(self, where, client, payload_max=1 << 20):
        kind, _, rest = where.partition(":")
        if kind == "unix":
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(TIMEOUT_S)
            self.socket.connect(rest)
        else:
            host, _, port = rest.rpartition(":")
            self.socket = socket.create_connection((host, int(port)), TIMEOUT_S)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client, self.payload_max = client, payload_max
        self.ids, self.sequence, self.looks = 0, 0, 0

    def greet(self):
        """Says hello and learns the root."""
        self.send_hello()
        self.take_hello()

    def send_hello(self):
        name = b"session.py"
        parallel = 2
        hello = struct.pack("<BQQBBBQIBIIII", VERSION, self.client, 1, 0, 0, 0, 1, self.payload_max, parallel, self.payload_max,
                            0, 0, len(name))
        self.send(HELLO, hello + name)

    def take_hello(self):
        self.root = self.take()[0][-80:-64]

    def send(self, op, body=b"", payload=b"", reply_slot=False):
        """Sends a request without waiting for its answer; header, body and payload in one call."""
        self.ids += 1
        flags = FLAG_HINTS if op in (READ, WRITE) else 0
        if reply_slot:
            self.sequence += 1
            flags |= FLAG_ROW
        if op in (READ, WRITE):
            body = HINTS + body
        counter = self.sequence if reply_slot else 0
        head = HEADER.pack(b"TGW1", VERSION, op, flags, self.ids, 0, 0, len(body), len(payload), 0,
                           counter, 0, 0, zlib.crc32(body))
        head += struct.pack("<I", zlib.crc32(head))
        pieces = [memoryview(head + body), memoryview(payload)]
        while pieces:
            sent = self.socket.sendmsg(pieces)
            while pieces and sent >= len(pieces[0]):
                sent -= len(pieces.pop(0))
            if pieces:
                pieces[0] = pieces[0][sent:]

    def take(self):
        """The next answer: body and payload."""
        head = self._take(64)
        (magic, version, op, flags, number, _, _, body_len, payload_len, status,
         _, _, _, body_crc) = HEADER.unpack(head[:60])
        if magic != b"TGW1" or version != VERSION or flags != FLAG_REPLY:
            raise ValueError(f"not a reply: {head.hex()}")
        if struct.unpack("<I", head[60:])[0] != zlib.crc32(head[:60]):
            raise ValueError("a header with a wrong checksum")
        body, payload = self._take(body_len), self._take(payload_len)
        if zlib.crc32(body) != body_crc:
            raise ValueError("a body with a wrong checksum")
        if status:
            raise Refused(op, status)
        return body, payload

    def call(self, op, body=b"", payload=b"", reply_slot=False):
        self.send(op, body, payload, reply_slot)
        return self.take()

    def create(self, name):
        """Makes a file in the root, or finds it; its handle."""
        name = name.encode()
        body = self.root + bytes([len(name)]) + name + struct.pack("<IB", 0o644, 0)
        return self.call(CREATE, body, reply_slot=True)[0][:16]

    def write(self, handle, offset, data):
        body = handle + struct.pack("<HQQ", 1, offset, len(data))
        written = struct.unpack("<Q", self.call(WRITE, body, data, reply_slot=True)[0])[0]
        if written != len(data):
            raise ValueError(f"{written} of {len(data)} bytes were written at {offset}")

    def read(self, handle, offset, length):
        return self.call(READ, handle + struct.pack("<HQQ", 1, offset, length))[1]

    def status(self):
        """What `tidegate stat --json` is made of, as text."""
        return self.call(STATUS)[0][4:].decode()

    def bye(self):
        self.call(BYE)
        self.socket.close()

    def _take(self, length):
        data = bytearray(length)
        view, have = memoryview(data), 0
        while have < length:
            count = self.socket.recv_into(view[have:])
            if count == 0:
                raise ConnectionError("the forwarder closed the connection")
            have += count
        Session.received_bytes += length
        return bytes(data)
