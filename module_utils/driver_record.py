"""What Groundwork knows of a host's NVIDIA driver: the set in use, the one before it, and a change that has not ended.

/var/lib/groundwork/driver.json is the record; the packages and modules that it names lie in /var/lib/groundwork/nvidia_driver,
so that the way back needs neither network nor compiler. All of it is state, not cache: apt-get clean leaves it alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils import files

RECORD = "var/lib/groundwork/driver.json"
STORE = "var/lib/groundwork/nvidia_driver"
FORMAT = 1


@dataclass
class DriverSet:
    """A driver as a whole.

    version: of NVIDIA, such as 535.309.01; empty for no driver.
    packages: every package that has to do with it, with its version; None for a driver's that is not installed with this set.
    holds: those that are held.
    auto: those that came along with others, and not since somebody asked for them.
    config: the files of apt that keep the set as it is, by path, with their content; None for one that is absent.
    sources: the sources of kernel modules in DKMS' words, name and version.
    modules: the files of the main kernel module, such as nvidia-current; what modinfo is asked for.
    debs: the file of each package in the store, with its sha256.
    wish: what the set was made from; a run with the same wish finds its work done.
    """

    version: str = ""
    packages: dict[str, str | None] = field(default_factory=dict)
    holds: list[str] = field(default_factory=list)
    auto: list[str] = field(default_factory=list)
    config: dict[str, str | None] = field(default_factory=dict)
    sources: list[list[str]] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    debs: dict[str, dict[str, str]] = field(default_factory=dict)
    wish: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Name the set as messages do."""
        return f"driver {self.version}" if self.version else "no driver"


@dataclass
class Record:
    """What is in the record.

    transaction: the sets `before` and `after` of a change that has begun and not ended.
    back: whether that is a way back.
    rejected: the version that somebody went back from, and when; it is not installed again unless somebody says so.
    """

    current: DriverSet | None = None
    previous: DriverSet | None = None
    transaction: dict[str, DriverSet] | None = None
    back: bool = False
    rejected: dict[str, str] | None = None

    @property
    def wanted(self) -> dict[str, str]:
        """What the rest of Groundwork compares a host with."""
        return {"version": self.current.version if self.current else ""}


class DamagedRecordError(Exception):
    """The record can't be read; the message says what to do."""


def read(root: Path) -> Record:
    """Return the record of a host; an empty one where there is none.

    Raises:
        DamagedRecordError: there is one, and it is not understood.
    """
    path = root / RECORD
    if not path.exists():
        return Record()
    try:
        data = json.loads(path.read_text())
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}, expected {FORMAT}")
        return Record(
            current=_set(data["current"]),
            previous=_set(data["previous"]),
            transaction={key: DriverSet(**begun[key]) for key in ("before", "after")} if (begun := data["transaction"]) else None,
            back=data.get("back", False),
            rejected=data["rejected"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedRecordError(
            f"/{RECORD} is damaged ({error}). Move it away, and the next run takes the installed driver as the first one; "
            f"the way back to the one before is lost"
        ) from error


def _set(data: dict[str, Any] | None) -> DriverSet | None:
    return DriverSet(**data) if data else None


def write(root: Path, record: Record) -> None:
    """Replace the record in one step, on the disk when this returns."""
    text = json.dumps({"format": FORMAT, "wanted": record.wanted, **asdict(record)}, indent=1, sort_keys=True)
    # No secrets are in it, and facts are gathered without privileges too.
    files.replace(root / RECORD, text, 0o644, durable=True)
