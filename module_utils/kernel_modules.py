"""Decide which kernel modules can be unloaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Loaded:
    """A loaded module: how often it is used, and by which other modules."""

    name: str
    references: int
    users: frozenset[str]


def parse_modules(text: str) -> dict[str, Loaded]:
    """Return the lines of /proc/modules by name: `nouveau 2457600 1 - Live 0x0` or `drm 700416 2 nouveau,ttm, Live 0x0`."""
    modules = {}
    for line in text.splitlines():
        name, _, references, users = line.split()[:4]
        # A kernel that can't unload modules has "-" for both: in use for ever.
        count = int(references) if references.isdigit() else 1
        modules[name] = Loaded(name, count, frozenset(user for user in users.strip("-").split(",") if user))
    return modules


def plan_removal(loaded: dict[str, Loaded], names: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the modules to unload, users before what they use, and why each of the others can't be.

    Args:
        loaded: what parse_modules returned.
        names: the modules that must not be loaded, dashes or underscores.
    """
    left = [name for name in dict.fromkeys(name.replace("-", "_") for name in names) if name in loaded]
    order: list[str] = []
    while free := [name for name in left if loaded[name].references == len(loaded[name].users.intersection(order))]:
        order += free
        left = [name for name in left if name not in free]
    return order, {name: in_use(loaded[name]) for name in left}


def in_use(module: Loaded) -> str:
    """Say what holds a module."""
    by = f" by {', '.join(sorted(module.users))}" if module.users else ""
    return f"it is in use{by} ({module.references} references)"
