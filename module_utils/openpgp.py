"""Which keys an OpenPGP keyring holds, read without gpg, which not every host has."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator

_ARMOR = re.compile(
    rb"^-----BEGIN PGP \w+ KEY BLOCK-----[ \t]*\r?\n(?:[\w-]+:[^\n]*\n)*[ \t]*\r?\n(.*?)^-----END PGP \w+ KEY BLOCK-----",
    re.MULTILINE | re.DOTALL,
)
# Types of packets, RFC 9580 section 5
_SECRET, _PRIMARY = 5, 6


class KeyringError(Exception):
    """Why the data is no keyring that apt can use."""


def dearmor(data: bytes) -> bytes:
    """Return the binary form of a keyring; one that is binary already stays as it is."""
    if not data.lstrip().startswith(b"-----BEGIN PGP"):
        return data
    blocks = _ARMOR.findall(data)
    if not blocks:
        raise KeyringError("it begins as an armored OpenPGP file and holds no complete key block")
    try:
        # The line that begins with = is a checksum, which the standard tells to ignore.
        return b"".join(base64.b64decode(re.sub(rb"^=.*|\s", b"", block, flags=re.MULTILINE), validate=True) for block in blocks)
    except binascii.Error as error:
        raise KeyringError(f"its armor is damaged ({error})") from error


def fingerprints(keyring: bytes) -> list[str]:
    """Return the fingerprints of the primary keys of a binary keyring, each as 40 capital hexadecimal digits."""
    found = []
    for tag, body in _packets(keyring):
        if tag == _SECRET:
            raise KeyringError("it holds a secret key, which belongs to whoever signs and not on a host")
        if tag != _PRIMARY:
            continue
        if body[:1] != b"\x04":
            version = body[0] if body else "?"
            raise KeyringError(f"it holds a key of version {version}, and only those of version 4 are known to every apt")
        found.append(hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False).hexdigest().upper())
    if not found:
        raise KeyringError("it holds no public key")
    return found


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and body of each packet, RFC 9580 section 4.2."""
    place = 0
    while place < len(data):
        head = data[place]
        if not head & 0x80:
            raise KeyringError("it is neither an armored nor a binary OpenPGP keyring (a keybox of gpg is none either)")
        if head & 0x40:
            tag, (size, place) = head & 0x3F, _new_length(data, place + 1)
        else:
            octets = {0: 1, 1: 2, 2: 4}.get(head & 3, 0)
            tag, size = head >> 2 & 0xF, int.from_bytes(data[place + 1 : place + 1 + octets], "big")
            place += 1 + octets
            if not octets:
                raise KeyringError("it holds a packet of unknown length, which no keyring has")
        if place + size > len(data):
            raise KeyringError("it is cut off")
        yield tag, data[place : place + size]
        place += size


def _new_length(data: bytes, place: int) -> tuple[int, int]:
    """Return the length of a packet in the newer format, and where its body begins."""
    head = data[place : place + 1]
    if head < b"\xc0":  # also where the data ends too early, which the caller sees
        return (head or b"\xff")[0], place + 1
    if head < b"\xe0":
        return ((head[0] - 0xC0) << 8) + int.from_bytes(data[place + 1 : place + 2], "big") + 0xC0, place + 2
    if head == b"\xff":
        return int.from_bytes(data[place + 1 : place + 5], "big"), place + 5
    raise KeyringError("it holds a packet in parts, which no keyring has")
