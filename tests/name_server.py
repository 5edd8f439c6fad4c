#!/usr/bin/env python3
"""A name server for tests, on 127.0.0.1:53: run it in a network namespace.

usage: name_server.py NAME=ADDRESS... NAME=PRIORITY,WEIGHT,PORT,TARGET...

Nothing is answered for names that begin with _silent, and for those with _long only by TCP.
"""
import socket
import struct
import sys
import threading

A, SRV = 1, 33
LACKS, CUT_SHORT = 3, 0x200  # NXDOMAIN, and the flag TC
records = {}
for argument in sys.argv[1:]:
    name, value = argument.split("=")
    records.setdefault(name, []).append(value.split(","))


def data(value, kind):
    """A record's data, if it is of that kind."""
    if kind == A and len(value) == 1:
        return socket.inet_aton(value[0])
    if kind == SRV and len(value) == 4:
        labels = [label.encode() for label in value[3].split(".") if label]
        numbers = struct.pack(">3H", *map(int, value[:3]))
        return numbers + b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return None


def answer(question, by_tcp):
    """The answer to a message with one question, if there is to be one."""
    labels, at = [], 12
    while question[at]:
        labels.append(question[at + 1:at + 1 + question[at]].decode().lower())
        at += 1 + question[at]
    name, (kind,) = ".".join(labels), struct.unpack_from(">H", question, at + 1)
    if name.startswith("_silent"):
        return None
    found = [it for it in (data(value, kind) for value in records.get(name, [])) if it]
    flags = 0x8580 | (0 if name in records else LACKS)
    if name.startswith("_long") and not by_tcp:
        flags, found = flags | CUT_SHORT, []
    message = question[:2] + struct.pack(">5H", flags, 1, len(found), 0, 0) + question[12:at + 5]
    for one in found:
        message += struct.pack(">3HLH", 0xc00c, kind, 1, 60, len(one)) + one
    return message


def tcp(listener):
    """Answers by TCP, one question a connection."""
    while True:
        with listener.accept()[0] as connection:
            length, = struct.unpack(">H", connection.recv(2, socket.MSG_WAITALL))
            message = answer(connection.recv(length, socket.MSG_WAITALL), True)
            if message:
                connection.sendall(struct.pack(">H", len(message)) + message)


udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("127.0.0.1", 53))
threading.Thread(target=tcp, args=[socket.create_server(("127.0.0.1", 53))], daemon=True).start()
print("ready", flush=True)
while True:
    asked, asker = udp.recvfrom(512)
    told = answer(asked, False)
    if told:
        udp.sendto(told, asker)
