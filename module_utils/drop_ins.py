"""The directories in which systemd and its programs look for drop-ins."""

from __future__ import annotations

from pathlib import Path

#: Of two files with the same name, the one in the earlier directory counts (sysctl.d(5), system.conf(5)).
PARENTS = ("etc", "run", "usr/local/lib", "usr/lib", "lib")


def drop_ins(root: Path, folder: str) -> list[Path]:
    """The drop-ins that count of a folder such as sysctl.d or systemd/system.conf.d, in the order in which they are read."""
    found: dict[str, Path] = {}
    for parent in reversed(PARENTS):
        for file in (root / parent / folder).glob("[!.]*.conf"):
            if file.exists() and not file.is_dir():
                found[file.name] = file
    return [found[name] for name in sorted(found)]
