"""What a host has of NVIDIA's container toolkit, and what is in its way."""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path

from ansible.module_utils import apt_sources
from ansible.module_utils.versions import numbers, upstream

#: Where files go that are replaced.
BACKUPS = "/var/backups/groundwork/nvidia_container_toolkit"
#: What the toolkit replaced. nvidia-docker2 also owns /etc/docker/daemon.json, which only a removal without purge leaves there.
OBSOLETE = ("nvidia-docker2", "nvidia-container-runtime", "nvidia-container-runtime-hook")
#: Repositories of those packages, and the toolkit's own ones for single distributions, which get nothing new.
OBSOLETE_SOURCE = re.compile(
    r"nvidia\.github\.io/(nvidia-docker|nvidia-container-runtime|libnvidia-container/(?!(stable|experimental)/deb))"
)
#: The first versions that read CDI specs of version 0.7, by package.
READ_0_7 = {"podman": (5, 1), "containerd": (1, 7, 16), "containerd.io": (1, 7, 16), "docker.io": (26, 1), "docker-ce": (26, 1)}


def old_engines(packages: dict[str, str]) -> list[str]:
    """Return the container engines that can't read CDI specs of version 0.7, each with its version."""
    return [
        f"{name} {packages[name]}"
        for name, first in READ_0_7.items()
        if name in packages and numbers(upstream(packages[name])) < first
    ]


def obsolete_sources(root: Path) -> list[str]:
    """Return the files of apt in which an obsolete repository is active."""
    found = {file: apt_sources.entries(file, file.read_text(errors="replace")) for file in apt_sources.source_files(root)}
    return [
        f"/{file.relative_to(root)}"
        for file, entries in found.items()
        if any(OBSOLETE_SOURCE.search(uri) for entry in entries for uri in entry.uris)
    ]


def faults(root: Path, packages: dict[str, str]) -> list[str]:
    """Return what must be taken away before the toolkit can be installed, each with the remedy."""
    found = [
        f"{name} {packages[name]} is installed, which the toolkit replaced; run `apt-get remove {name}`, without --purge"
        for name in OBSOLETE
        if name in packages
    ]
    return found + [
        f"{path} names a repository that NVIDIA gave up (nvidia-docker, nvidia-container-runtime, or libnvidia-container for a "
        "single distribution), which can stop apt altogether; delete the file, or the line"
        for path in obsolete_sources(root)
    ]


def table_value(text: str, table: str, key: str) -> str | None:
    """Return a text of a table of a TOML file; None if it is not set. Python 3.9 has no reader of TOML."""
    current = ""
    for line in text.splitlines():
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            current = header[1].strip()
        elif current == table and (match := re.match(rf"""\s*{re.escape(key)}\s*=\s*["']([^"']*)["']""", line)):
            return match[1]
    return None


def backup_folder(root: Path) -> Path:
    """Make a directory for what is replaced now."""
    parent = root / BACKUPS.lstrip("/")
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime()), dir=parent))


def k3s_is_blind(root: Path) -> bool:
    """Tell whether K3s runs, or ran, without having found NVIDIA's runtime, for which it searches at its start only."""
    generated = root / "var/lib/rancher/k3s/agent/etc/containerd/config.toml"
    return generated.exists() and "nvidia-container-runtime" not in generated.read_text(errors="replace")
