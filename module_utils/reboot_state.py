"""Why a host wants a reboot, and whether it came back from one as it should."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.host_inventory import read_text

FLAG = "run/reboot-required"
REASONS = "run/groundwork/reboot-required.d"
#: What playbooks/reboot.yml writes before it drains a host, and removes once the host is back in service.
RECORD = "var/lib/groundwork/reboot.json"
#: Of systemd once a boot has ended; degraded: some unit has failed.
GOOD_STATES = ("running", "degraded")


@dataclass(frozen=True)
class Now:
    """The host as it runs: the id of its boot, its kernel, what systemd says of itself, and the units that failed."""

    boot_id: str
    kernel: str
    state: str
    failed_units: list[str] = field(default_factory=list)


def reasons(root: Path) -> list[str]:
    """Return why the host wants a reboot, each as "source: reason"; none if it doesn't."""
    directory = root / REASONS
    files = [path for path in directory.iterdir() if not path.name.startswith(".")] if directory.is_dir() else []
    found = [f"{path.name}: {' '.join((read_text(path) or '').split()) or 'gives no reason'}" for path in sorted(files)]
    if (root / FLAG).exists():
        packages = list(dict.fromkeys((read_text(root / f"{FLAG}.pkgs") or "").split()))
        if packages:
            found.insert(0, f"packages: {', '.join(packages)}")
        elif not found:
            found = [f"system: {read_text(root / FLAG) or f'/{FLAG} exists'}"]
    return found


def record(root: Path) -> dict[str, Any] | None:
    """Return what was written before the host was drained: boot_id, kernel, failed_units; None if nothing was.

    Raises:
        ValueError: the record is damaged.
    """
    text = read_text(root / RECORD)
    if text is None:
        return None
    try:
        written = json.loads(text)
        return {
            "boot_id": str(written["boot_id"]),
            "kernel": str(written["kernel"]),
            "failed_units": list(written["failed_units"]),
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"/{RECORD}, the record of an interrupted reboot, is damaged; undrain the host by hand and remove the file"
        ) from error


def boot_faults(before: dict[str, Any], now: Now, flags: list[str]) -> list[str]:
    """Say how the boot differs from what was expected, if the host was booted since the record was written."""
    if before["boot_id"] == now.boot_id:
        return []
    found = []
    if now.kernel != before["kernel"]:
        found.append(f"it runs kernel {now.kernel}, and {before['kernel']} was to boot; see `journalctl -k -b` and the boot menu")
    if now.state not in GOOD_STATES:
        found.append(f"systemd's state is {now.state!r}, where running or degraded was expected; see `systemctl list-jobs`")
    if new := sorted(set(now.failed_units) - set(before["failed_units"])):
        found.append(f"units failed that ran before: {', '.join(new)}; see `systemctl status {' '.join(new)}`")
    if flags:
        found.append(f"it wants a reboot again ({'; '.join(flags)}); what set the flag at boot would do so at each boot")
    return found
