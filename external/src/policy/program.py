#!/usr/bin/python3
"""Runs a test's own process of a policy: started as a Python would be, with the program's file as that
of the policy. The names below are what such programs use."""

import os  # noqa: F401
import struct
import sys
import time  # noqa: F401

asked = b""


def receive():
    """The next message's content."""
    head = sys.stdin.buffer.read(5)
    if len(head) < 5:
        sys.exit(0)
    _, length = struct.unpack("<BI", head)
    return sys.stdin.buffer.read(length)


def send(kind, content=b""):
    """Sends a message."""
    sys.stdout.buffer.write(struct.pack("<BI", kind, len(content)) + content)
    sys.stdout.buffer.flush()


def number(content):
    """A number in 7-bit groups, and what follows."""
    value, shift = 0, 0
    while True:
        byte, content = content[0], content[1:]
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, content


def answer(up, down):
    """Answers the period that was asked, of 64 pages."""
    _, rest = number(asked)
    _, rest = number(rest[1:])
    send(17, struct.pack("<QQQ", number(rest)[0], up, down))


receive()
with open(sys.argv[-2]) as program:
    exec(program.read())  # noqa: S102
