"""What K3s leaves on a host, what of it is its own, and what belongs to somebody who would miss it."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Directories of K3s, its kubelet and its network. `k3s-uninstall.sh` of upstream deletes across the mounts below them.
DIRECTORIES = (
    "/etc/rancher/k3s",
    "/etc/rancher/node",
    "/run/flannel",
    "/run/k3s",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/lib/rancher/k3s",
)
FILES = (
    "/etc/systemd/system/k3s.service",
    "/etc/systemd/system/k3s.service.env",
    "/etc/systemd/system/k3s-agent.service",
    "/etc/systemd/system/k3s-agent.service.env",
    "/usr/local/bin/k3s",
    "/usr/local/bin/kubectl",
    "/usr/local/bin/crictl",
    "/usr/local/bin/ctr",
)
# Removed when nothing else of Rancher's is in them.
PARENTS = ("/etc/rancher", "/var/lib/rancher")
INTERFACES = ("cni0", "flannel.1", "flannel-v6.1", "kube-ipvs0", "flannel-wg", "flannel-wg-v6")
# Where the provisioner of K3s keeps the volumes of pods.
VOLUMES = "/var/lib/rancher/k3s/storage"

#: File systems that the kubelet and containerd mount by themselves and that hold nothing of anybody.
EPHEMERAL = {"tmpfs", "overlay", "nsfs", "shm", "proc", "sysfs", "cgroup2", "cgroup", "mqueue", "devpts", "fuse.fuse-overlayfs"}


def unescape(text: str) -> str:
    r"""Return a path of /proc/mounts with its octal escapes read, such as \040 for a space."""
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), text)


def mounts(table: str, directories: Iterable[str] = DIRECTORIES) -> tuple[list[str], list[str]]:
    """Return the mounts below the directories: those of K3s itself, deepest first, and those of somebody else, described.

    Args:
        table: the text of /proc/mounts.
        directories: where to look; a directory that is a mount point itself, on a disk of its own, is somebody's, too.
    """
    own, foreign = [], []
    for line in table.splitlines():
        source, point, kind = (unescape(field) for field in line.split()[:3])
        if not any(point == top or point.startswith(f"{top}/") for top in directories):
            continue
        if kind in EPHEMERAL:
            own.append(point)
        else:
            foreign.append(f"{point} ({kind} of {source})")
    return sorted(own, key=lambda point: (-point.count("/"), point)), foreign


def without_rules(saved: str) -> str:
    """Return the output of `iptables-save` without the chains and rules of Kubernetes, for `iptables-restore`."""
    return "".join(line for line in saved.splitlines(keepends=True) if not re.search(r"\b(KUBE-|CNI-|FLANNEL-|flannel)", line))
