"""Versions of packages and programs, taken apart."""

from __future__ import annotations

import re


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers in a version, for comparison."""
    return tuple(map(int, re.findall(r"\d+", version)))


def upstream(version: str) -> str:
    """Return the upstream version of a package, without epoch and Debian revision: 580.95.05 of 1:580.95.05-0ubuntu1."""
    return version.split(":", 1)[-1].rsplit("-", 1)[0]
