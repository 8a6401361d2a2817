"""The lines of fstab(5), read as libmount reads them, and changes that leave every other byte as it is.

Text is decoded with surrogateescape, so that a file in any encoding survives being read and written.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# The file is split at these only: Python's own idea of blanks and line ends has more of them.
_BLANKS = " \t"
_NUMBER = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(rb"\\([0-7]{3})")


class Entry(NamedTuple):
    """A line that mounts something or turns swap on; fields are decoded, options are None if there are none."""

    line: int
    source: str
    target: str
    fstype: str
    options: str | None


class Fault(NamedTuple):
    """A line that is neither entry, comment nor blank."""

    line: int
    text: str


def decode(field: str) -> str:
    r"""Undo the octal escapes of a field, such as \040 for a blank. /proc/swaps has the same."""
    raw = _OCTAL.sub(lambda match: bytes([int(match[1], 8) & 255]), os.fsencode(field))
    return os.fsdecode(raw)


def parse(text: str) -> Iterator[Entry | Fault]:
    """Yield what each line says; blank lines and comments say nothing."""
    for number, line in enumerate(text.split("\n"), 1):
        body = line[:-1] if line.endswith("\r") else line
        fields = re.split(f"[{_BLANKS}]+", body.strip(_BLANKS))
        if fields[0].startswith("#") or fields == [""]:
            continue
        if len(fields) < 3 or not all(_NUMBER.fullmatch(field) for field in fields[4:6]):  # noqa: PLR2004 - of fstab(5)
            yield Fault(number, body)
        else:
            source, target, fstype, *rest = map(decode, fields)
            yield Entry(number, source, target, fstype, rest[0] if rest else None)


def comment_out(text: str, lines: set[int], prefix: str) -> str:
    """Put a prefix before the lines with these numbers."""
    return "\n".join(prefix + line if number in lines else line for number, line in enumerate(text.split("\n"), 1))


def read(path: Path) -> str | None:
    """The text of the file, None if there is none."""
    return os.fsdecode(path.read_bytes()) if path.exists() else None


def write(path: Path, text: str) -> None:
    """Replace the file in one step; a link stays and its target is replaced, with the mode and owner that it has."""
    target = Path(os.path.realpath(path))
    status = target.stat()
    handle, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(os.fsencode(text))
            file.flush()
            os.fsync(file.fileno())
        shutil.copystat(target, draft)
        os.utime(draft)
        os.chown(draft, status.st_uid, status.st_gid)
        Path(draft).replace(target)
    except OSError:
        Path(draft).unlink()
        raise
