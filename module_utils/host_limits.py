"""What a host can give of the limits it is asked for."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ansible.module_utils.drop_ins import drop_ins
from ansible.module_utils.fstab import Entry, parse, read

MIB = 1024**2
_SHM = "dev/shm"
DROP_IN = "90-groundwork.conf"
_UNITS = {"": 1, "K": 1024, "M": MIB, "G": 1024**3, "T": 1024**4}


@dataclass(frozen=True)
class Host:
    """What bounds the limits: sizes in bytes, the kernel's fs.nr_open, and the fstab options of /dev/shm, if any."""

    journal_disk: int
    shm: int
    memory: int
    nr_open: int
    shm_options: str | None


class Mount(NamedTuple):
    """How to mount /dev/shm: the state and options of ansible.posix.mount."""

    state: str
    opts: str


def read_host(root: Path) -> Host:
    """Read the bounds of the host whose root directory is given."""
    meminfo = (root / "proc/meminfo").read_text()
    journal = root / "var/log/journal"
    while not journal.exists():
        journal = journal.parent
    return Host(
        journal_disk=_disk_size(journal),
        shm=_disk_size(root / _SHM),
        memory=int(meminfo.split("MemTotal:")[1].split()[0]) * 1024,
        nr_open=int((root / "proc/sys/fs/nr_open").read_text()),
        shm_options=shm_options(read(root / "etc/fstab") or ""),
    )


def _disk_size(path: Path) -> int:
    """Size in bytes of the file system that holds a path."""
    status = os.statvfs(path)
    return status.f_blocks * status.f_frsize


def shm_options(fstab: str) -> str | None:
    """Options of /dev/shm in the text of fstab, or None without a line for it."""
    entries = [line for line in parse(fstab) if isinstance(line, Entry)]
    return next((entry.options for entry in entries if entry.target == f"/{_SHM}"), None)


def size(text: str) -> int:
    """Bytes of a size such as 512M or 10G (powers of 1024); ValueError for anything else."""
    match = re.fullmatch(r"(\d+)([KMGT]?)", text.strip().upper())
    if not match or not int(match[1]):
        raise ValueError(f"{text!r} is no size; write a whole number with K, M, G or T, such as 512M or 10G")
    return int(match[1]) * _UNITS[match[2]]


def whole_mib(bytes_: int) -> str:
    """A size in whole MiB, as journald and tmpfs read it."""
    return f"{max(1, bytes_ // MIB)}M"


def tmpfs_size(options: str, memory: int) -> int:
    """Bytes of a tmpfs mounted with these options; the kernel's default is half of the memory."""
    given = re.search(r"(?:^|,)size=(\d+)([kmgt%]?)", options, re.IGNORECASE)
    number, unit = (int(given[1]), given[2].upper()) if given else (50, "%")
    return memory * number // 100 if unit == "%" else number * _UNITS[unit]


def shm_mount(minimum: int, host: Host) -> Mount | None:
    """What to do about /dev/shm so that it has a minimal size now and at boot; None if it has."""
    if host.shm_options is None:
        # systemd mounts it nosuid and nodev, and a remount would drop what the line does not name.
        kept, declared = ["nosuid", "nodev"], minimum
    else:
        kept = [option for option in host.shm_options.split(",") if not option.lower().startswith("size=")]
        declared = tmpfs_size(host.shm_options, host.memory)
    if min(host.shm, declared) >= minimum:
        return None
    if host.shm_options is not None and declared >= minimum:
        # Someone else asks for enough: their line only has to take effect.
        return Mount("remounted", host.shm_options)
    return Mount("mounted", ",".join([*kept, f"size={whole_mib(max(minimum, host.shm) + MIB - 1)}"]))


def overrides(root: Path, settings: dict[str, dict[str, str]]) -> list[str]:
    """Say which drop-ins would take back what the role's own ones set.

    Args:
        root: the host's root directory.
        settings: systemd's configuration (such as journald.conf) -> key -> the value that the role wants.
    """
    faults = []
    for config, wanted in settings.items():
        later = [file for file in drop_ins(root, f"systemd/{config}.d") if file.name > DROP_IN]
        lines = [(file, line.partition("=")) for file in later for line in file.read_text(errors="replace").splitlines()]
        # Only the last line with a key counts. An empty value takes back as well.
        last = {key.strip(): (file, value.strip()) for file, (key, equals, value) in lines if equals}
        faults += [
            f"/{last[key][0].relative_to(root)} is read after {DROP_IN} and sets {key} to {last[key][1]!r} where {value!r} is "
            f"wanted; remove that line, or give it that value"
            for key, value in wanted.items()
            if key in last and last[key][1] != value
        ]
    return faults


def make_plan(wanted: dict[str, Any], host: Host) -> tuple[dict[str, Any], list[str]]:
    """Fit the wanted limits (the options of host_limits_info) to a host; the second part names all illegal ones."""
    faults: list[str] = []

    def read_size(name: str) -> int:
        try:
            return size(wanted[name])
        except ValueError as error:
            faults.append(f"host_limits_{name}: {error}")
            return 0

    share, soft, hard, memlock = (wanted[name] for name in ("journal_disk_share", "nofile_soft", "nofile_hard", "memlock"))
    disk_share = host.journal_disk * share // 100
    shm = shm_mount(read_size("shm_min"), host)
    plan = {
        "journal_max_use": whole_mib(min(read_size("journal_max_use"), disk_share)),
        "journal_keep_free": whole_mib(min(read_size("journal_keep_free"), disk_share)),
        "shm_mount": shm._asdict() if shm else None,
        # limits.conf counts in KiB.
        "memlock": memlock if memlock in (None, "unlimited") else read_size("memlock") // 1024,
    }
    if share not in range(1, 101):
        faults.append(f"host_limits_journal_disk_share: {share} is no percentage; write 1 to 100")
    if not 1 <= soft <= hard:
        faults.append(f"host_limits_nofile_soft: {soft} must be at least 1 and at most host_limits_nofile_hard ({hard})")
    if hard > host.nr_open:
        why = f"{hard} is above the kernel's fs.nr_open ({host.nr_open}), and no service could start"
        faults.append(f"host_limits_nofile_hard: {why}; lower it, or raise fs.nr_open with the role sysctl_tuning first")
    return plan, faults
