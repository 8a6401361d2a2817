"""A host whose NVIDIA driver changes, and how it is spoken to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ansible.module_utils.apt_packages import Run
from ansible.module_utils.driver_record import STORE


class DriverError(Exception):
    """The driver was not changed, or is again as it was; the message has cause and remedy."""


@dataclass
class Host:
    """The host and how it is spoken to.

    kernels: those that must have modules which DKMS builds; signed_kernels: those that must have signed ones of packages.
    """

    root: Path
    run: Run
    kernels: list[str]
    signed_kernels: list[str] = field(default_factory=list)
    lock_timeout: int = 60
    log: Callable[[str], None] = lambda _: None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def store(self) -> Path:
        """Where packages and modules of the sets are kept."""
        path: Path = self.root / STORE
        return path

    @property
    def debs(self) -> Path:
        """The packages."""
        return self.store / "debs"

    @property
    def kept(self) -> Path:
        """The modules, a tree of DKMS for each package with their source."""
        return self.store / "modules"

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure and log a step of the work."""
        started = time.monotonic()
        self.log(f"begin: {name}")
        try:
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - started, 1)
            self.log(f"end: {name}, {self.seconds[name]} s")


def read_file(root: Path, path: str) -> str | None:
    """Return the text of a file of the host, or None if there is none."""
    file = root / path.lstrip("/")
    return file.read_text() if file.exists() else None
