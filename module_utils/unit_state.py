"""Decide what a systemd unit needs to run with what is on disk.

A handler restarts a service when a task of the same run changed a file. If that run is interrupted in between, the next one
finds the file as wanted, notifies nobody, and the service keeps its old settings for months. Here the decision is made from
the state: a service is current when it started after every file it reads was last written.
"""

from __future__ import annotations

from pathlib import Path

# What `systemctl show` is asked. Timers and sockets have no main process: the time they became active counts.
PROPERTIES = (
    "LoadState",
    "ActiveState",
    "UnitFileState",
    "NeedDaemonReload",
    "FragmentPath",
    "DropInPaths",
    "Triggers",
    "ExecMainStartTimestampMonotonic",
    "ActiveEnterTimestampMonotonic",
)


def parse_show(text: str) -> dict[str, str]:
    """Return the properties that `systemctl show` printed, one `Name=value` a line."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def started_at(unit: dict[str, str], now: float, monotonic: float) -> float:
    """Return when the unit started, in seconds since the epoch.

    Args:
        unit: its properties; systemd counts in microseconds of the monotonic clock.
        now: the wall clock, in seconds.
        monotonic: the monotonic clock at the same moment, in seconds.
    """
    start = int(unit.get("ExecMainStartTimestampMonotonic") or 0) or int(unit.get("ActiveEnterTimestampMonotonic") or 0)
    return now - (monotonic - start / 1e6)


def newer_files(unit: dict[str, str], reads: list[str], started: float) -> list[str]:
    """Return those files, of the unit itself and of `reads`, that were written after the start. Missing ones don't count."""
    files = [unit.get("FragmentPath", ""), *unit.get("DropInPaths", "").split(), *reads]
    return [name for name in files if name and Path(name).exists() and Path(name).stat().st_mtime > started]
