"""The channel between nodes (docs/protocol.md, "Between nodes"), written a second time in Python alone: the
handshake Noise_NKpsk0_25519_AESGCM_SHA256 and its records, and how a ticket is asked for. Slow, and its times depend on its keys: for suites
that attack a forwarder, and for nothing else.
"""
import base64
import hashlib
import hmac
import os
import pathlib
import struct

PRIME = 2**255 - 19
ASKS, ANSWERS, REFUSES, CONFIRMS, ASKS_TICKET, GIVES_TICKET = 1, 2, 3, 4, 5, 6
OFF, INTEGRITY, ON = 0, 1, 2


class Unproved(Exception):
    """The other end refused, or does not prove who it is."""


def multiply(scalar, point):
    """X25519 (RFC 7748)."""
    k = int.from_bytes(scalar, "little") & ~7 & (1 << 255) - 1 | 1 << 254
    x = int.from_bytes(point, "little") & (1 << 255) - 1
    (a, b), (c, d) = (1, 0), (x, 1)
    swapped = 0
    for at in reversed(range(255)):
        bit = k >> at & 1
        if bit != swapped:
            a, b, c, d, swapped = c, d, a, b, bit
        plus, minus = a + b, a - b
        cross, other = (c - d) * plus, (c + d) * minus
        square, less = plus * plus, minus * minus
        span = square - less
        c, d = (cross + other) ** 2 % PRIME, x * (cross - other) ** 2 % PRIME
        a, b = square * less % PRIME, span * (square + 121665 * span) % PRIME
    if swapped:
        a, b = c, d
    return (a * pow(b, PRIME - 2, PRIME) % PRIME).to_bytes(32, "little")


def public_of(private):
    return multiply(private, (9).to_bytes(32, "little"))


def tables():
    """The S-box of AES, and its four tables of one round."""
    powers, logs, value = [0] * 256, [0] * 256, 1
    for at in range(255):
        powers[at], logs[value] = value, at
        value ^= value << 1 ^ (0x11b if value & 0x80 else 0)
        value &= 0xff
    box = []
    for byte in range(256):
        inverse = powers[-logs[byte] % 255] if byte else 0
        turned = inverse
        for _ in range(4):
            inverse = inverse << 1 & 0xff | inverse >> 7
            turned ^= inverse
        box.append(turned ^ 0x63)
    twice = [byte << 1 ^ (0x11b if byte & 0x80 else 0) for byte in box]
    first = [twice[n] << 24 | box[n] << 16 | box[n] << 8 | twice[n] ^ box[n] for n in range(256)]
    turn = [[(word >> 8 * by | word << 32 - 8 * by) & 0xffffffff for word in first] for by in range(4)]
    return box, turn


BOX, ROUND = tables()


class AesGcm:
    """AES-256-GCM with nonces of 12 bytes."""

    def __init__(self, key):
        words, turn = list(struct.unpack(">8I", key)), 1
        while len(words) < 60:
            word = words[-1]
            if len(words) % 8 == 0:
                word = self.substitute((word << 8 | word >> 24) & 0xffffffff) ^ turn << 24
                turn = turn << 1 ^ (0x11b if turn & 0x80 else 0)
            elif len(words) % 8 == 4:
                word = self.substitute(word)
            words.append(words[-8] ^ word)
        self.words = words
        # Of each bit of a factor: what it makes of the hash's key.
        value, halves = int.from_bytes(self.block(bytes(16)), "big"), []
        for _ in range(128):
            halves.append(value)
            value = value >> 1 ^ (0xe1 << 120 if value & 1 else 0)
        self.products = []
        for at in range(16):
            row = [0] * 256
            for byte in range(1, 256):
                low = byte & -byte
                row[byte] = row[byte ^ low] ^ halves[8 * at + 8 - low.bit_length()]
            self.products.append(row)

    @staticmethod
    def substitute(word):
        return BOX[word >> 24] << 24 | BOX[word >> 16 & 255] << 16 | BOX[word >> 8 & 255] << 8 | BOX[word & 255]

    def block(self, data):
        """One block, encrypted."""
        w, (t0, t1, t2, t3) = self.words, ROUND
        a, b, c, d = (x ^ w[n] for n, x in enumerate(struct.unpack(">4I", data)))
        for n in range(4, 56, 4):
            a, b, c, d = (
                t0[a >> 24] ^ t1[b >> 16 & 255] ^ t2[c >> 8 & 255] ^ t3[d & 255] ^ w[n],
                t0[b >> 24] ^ t1[c >> 16 & 255] ^ t2[d >> 8 & 255] ^ t3[a & 255] ^ w[n + 1],
                t0[c >> 24] ^ t1[d >> 16 & 255] ^ t2[a >> 8 & 255] ^ t3[b & 255] ^ w[n + 2],
                t0[d >> 24] ^ t1[a >> 16 & 255] ^ t2[b >> 8 & 255] ^ t3[c & 255] ^ w[n + 3])
        mixed = ((a, b, c, d), (b, c, d, a), (c, d, a, b), (d, a, b, c))
        return struct.pack(">4I", *(
            (BOX[p >> 24] << 24 | BOX[q >> 16 & 255] << 16 | BOX[r >> 8 & 255] << 8 | BOX[s & 255]) ^ w[56 + n]
            for n, (p, q, r, s) in enumerate(mixed)))

    def crypt(self, nonce, text):
        blocks = (self.block(nonce + struct.pack(">I", at + 2)) for at in range((len(text) + 15) // 16))
        stream = b"".join(blocks)[:len(text)]
        return (int.from_bytes(stream, "big") ^ int.from_bytes(text, "big")).to_bytes(len(text), "big")

    def tag(self, nonce, coded, more):
        pad = lambda data: data + bytes(-len(data) % 16)
        hashed = 0
        data = pad(more) + pad(coded) + struct.pack(">QQ", 8 * len(more), 8 * len(coded))
        for at in range(0, len(data), 16):
            hashed ^= int.from_bytes(data[at:at + 16], "big")
            product = 0
            for row, byte in zip(self.products, hashed.to_bytes(16, "big")):
                product ^= row[byte]
            hashed = product
        mask = int.from_bytes(self.block(nonce + b"\0\0\0\1"), "big")
        return (hashed ^ mask).to_bytes(16, "big")

    def seal(self, number, text, more=b""):
        nonce = struct.pack(">IQ", 0, number)
        coded = self.crypt(nonce, text)
        return coded + self.tag(nonce, coded, more)

    def open(self, number, sealed, more=b""):
        nonce, coded = struct.pack(">IQ", 0, number), sealed[:-16]
        if self.tag(nonce, coded, more) != sealed[-16:]:
            raise Unproved("a wrong tag")
        return self.crypt(nonce, coded)


class Secret:
    """What a client proves itself with: a grant, its key, and the forwarders' public key."""

    def __init__(self, grant, key, forwarders):
        self.grant, self.key, self.forwarders = grant, key, forwarders

    @staticmethod
    def read(path):
        """A derived secret, or the site's."""
        text = pathlib.Path(path).read_bytes().rstrip()
        if not text.startswith(b"tidegate-derived-secret"):
            grant = b"role=site\n"
            private = hmac.digest(text, b"tidegate forwarder 1\0", "sha256")
            return Secret(grant, hmac.digest(text, b"tidegate grant 1\0" + grant, "sha256"), public_of(private))
        _, forwarders, key, grant = text.split(b"\n", 3)
        of_line = lambda line: base64.b64decode(line.split(b"=", 1)[1])
        return Secret(grant + b"\n", of_line(key), of_line(forwarders))

    def saying(self, old, new):
        """The same keys with another text of the grant."""
        return Secret(self.grant.replace(old, new), self.key, self.forwarders)


class Handshake:
    """The client's side."""

    def __init__(self, secret, least=OFF):
        self.hash = self.chain = b"Noise_NKpsk0_25519_AESGCM_SHA256"
        self.private, self.number = os.urandom(32), 0
        content = hashlib.sha256(secret.forwarders).digest()[:8] + bytes([least]) + secret.grant
        for known in (b"TGC1\x01" + content, secret.forwarders):
            self.mix_hash(known)
        self.chain, mixed, key = self.derive(secret.key, 3)
        self.mix_hash(mixed)
        self.cipher = AesGcm(key)
        own = public_of(self.private)
        self.mix_hash(own)
        self.mix_key(own)
        self.mix_key(multiply(self.private, secret.forwarders))
        tag = self.cipher.seal(0, b"", self.hash)
        self.mix_hash(tag)
        content += own + tag
        self.greeting = b"TGC1\x01" + bytes([ASKS]) + struct.pack("<H", len(content)) + content

    def finish(self, answer):
        """Takes the forwarder's greeting. The protection of the connection, and the keys of both ways."""
        version, kind, content = answer[4], answer[5], answer[8:]
        if kind != ANSWERS or version != 1:
            raise Unproved(f"refused: {answer[5:].hex()}")
        self.mix_hash(content[:32])
        self.mix_key(content[:32])
        self.mix_key(multiply(self.private, content[:32]))
        way = self.cipher.open(0, content[32:], self.hash)[0]
        self.chain, again = self.derive(b"", 2)
        return way, self.chain, again

    def mix_hash(self, data):
        self.hash = hashlib.sha256(self.hash + data).digest()

    def mix_key(self, data):
        self.chain, key = self.derive(data, 2)
        self.cipher = AesGcm(key)

    def derive(self, data, count):
        key, made, last = hmac.digest(self.chain, data, "sha256"), [], b""
        for number in range(1, count + 1):
            last = hmac.digest(key, last + bytes([number]), "sha256")
            made.append(last)
        return made


class Asking(Handshake):
    """The client's side where it asks for a ticket: a credential of munge, and the key that it carries."""

    def __init__(self, credential, key):
        self.hash = self.chain = b"Noise_NNpsk0_25519_AESGCM_SHA256"
        self.private = os.urandom(32)
        self.mix_hash(b"TGC1\x01" + bytes([ASKS_TICKET]) + credential)
        self.chain, mixed, key = self.derive(key, 3)
        self.mix_hash(mixed)
        self.cipher = AesGcm(key)
        own = public_of(self.private)
        self.mix_hash(own)
        self.mix_key(own)
        tag = self.cipher.seal(0, b"", self.hash)
        self.mix_hash(tag)
        content = credential + own + tag
        self.greeting = b"TGC1\x01" + bytes([ASKS_TICKET]) + struct.pack("<H", len(content)) + content

    def finish(self, answer):
        """Takes the forwarder's greeting. The ticket's life in ms, and its text."""
        kind, content = answer[5], answer[8:]
        if kind != GIVES_TICKET:
            raise Unproved(f"refused: {answer[5:].hex()}")
        self.mix_hash(content[:32])
        self.mix_key(content[:32])
        self.mix_key(multiply(self.private, content[:32]))
        given = self.cipher.open(0, content[32:], self.hash)
        return struct.unpack("<Q", given[:8])[0], given[8:]


class Channel:
    """A socket whose bytes go in records. Keeps what was sent as it went over the network."""

    def __init__(self, plain, secret, least=OFF):
        self.socket, self.content = plain, bytearray()
        handshake = Handshake(secret, least)
        self.sent = [handshake.greeting]
        plain.sendall(handshake.greeting)
        head = self.take(8)
        answer = head + self.take(struct.unpack("<H", head[6:8])[0])
        self.way, ours, theirs = handshake.finish(answer)
        self.ours, self.theirs = AesGcm(ours), AesGcm(theirs)
        self.sent_records = self.received_records = 0
        if self.way == OFF:
            content = hmac.digest(ours, b"tidegate confirms 1", "sha256")
            self.sent.append(b"TGC1\x01" + bytes([CONFIRMS]) + struct.pack("<H", len(content)) + content)
            plain.sendall(self.sent[-1])

    def take(self, length):
        data = bytearray()
        while len(data) < length:
            piece = self.socket.recv(length - len(data))
            if not piece:
                raise ConnectionError("the forwarder closed the connection")
            data += piece
        return bytes(data)

    def record(self, text):
        """The next record with this text."""
        if self.way == OFF:
            return text
        if self.way == ON:
            sealed = self.ours.seal(self.sent_records, text)
        else:
            sealed = text + self.ours.seal(self.sent_records, b"", text)
        self.sent_records += 1
        return struct.pack("<I", len(sealed)) + sealed

    def sendall(self, data):
        for at in range(0, len(data), 1 << 16):
            self.sent.append(self.record(bytes(data[at:at + (1 << 16)])))
            self.socket.sendall(self.sent[-1])

    def sendmsg(self, pieces):
        data = b"".join(bytes(piece) for piece in pieces)
        self.sendall(data)
        return len(data)

    def recv_into(self, view):
        if self.way == OFF:
            return self.socket.recv_into(view)
        if not self.content:
            sealed = self.take(struct.unpack("<I", self.take(4))[0])
            if self.way == ON:
                self.content += self.theirs.open(self.received_records, sealed)
            else:
                self.theirs.open(self.received_records, sealed[-16:], sealed[:-16])
                self.content += sealed[:-16]
            self.received_records += 1
        count = min(len(view), len(self.content))
        view[:count] = self.content[:count]
        del self.content[:count]
        return count

    def settimeout(self, seconds):
        self.socket.settimeout(seconds)

    def shutdown(self, how):
        self.socket.shutdown(how)

    def close(self):
        self.socket.close()
