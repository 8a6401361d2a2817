#!/usr/bin/python
"""Ansible module: a host without swap, now and after each boot."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from ansible.module_utils import fstab
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.swap_sources import (
    CLOUD,
    CLOUD_TEXT,
    FSTAB,
    MASKS,
    Plan,
    active_swaps,
    has_systemd,
    known_services,
    make_plan,
    restore_script,
    shown,
)

DOCUMENTATION = r"""
module: swap_removal
short_description: Remove swap from a host, now and for each boot, whatever its source
description:
  - Finds active swap, entries of fstab, systemd's swap units, generated ones too, and services and cloud-init settings that
    make swap; ends all of them in one call.
  - Comments out entries of fstab and leaves every other byte of it as it is; masks units; stops services; turns swap off.
  - Refuses before anything is changed where a line of fstab can't be read, a directory can't be written, or memory can't
    hold what is swapped out.
  - If a step fails, the steps before it are undone. A backup with a script that undoes the whole run is kept.
  - What comes after the last step is told and not undone, swap that something else turned on and files that stay.
options:
  deactivate:
    description: Turn off running swap. V(false) only keeps it from coming back, for containers, which share their machine's.
    type: bool
    default: true
  reserve:
    description: Memory that must stay available after the swapped-out pages have come back, such as V(512M).
    type: str
    default: 512M
  delete_files:
    description: Delete swap files, such as C(/swapfile), that are out of use. Only regular files with mkswap's signature.
    type: bool
    default: false
  backup_dir:
    description: Where each run that changes something makes a directory of its own.
    type: path
    default: /var/backups/groundwork/swap_removal
"""

EXAMPLES = r"""
- name: Remove swap
  swap_removal:
    reserve: 2G
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode, in order.
  returned: success, and a failure after the last step
  type: list
  elements: str
backup:
  description: The directory with the replaced files and C(restore.sh); null if nothing was changed.
  returned: success, and a failure after the last step
  type: str
notes:
  description: Swap that stays until the next boot, and settings elsewhere that ask for swap.
  returned: success
  type: list
  elements: str
"""

#: The directory under which everything is read and written; tests put a made-up tree in its place.
ROOT = Path("/")


class StepError(Exception):
    """A command that failed, with its reason."""


def run(module: AnsibleModule, *command: str) -> None:
    """Run a command that must succeed."""
    code, _, error = module.run_command(list(command))
    if code != 0:
        raise StepError(f"`{' '.join(command)}` failed: {error.strip()}")


def running_services(module: AnsibleModule) -> set[str]:
    """Those services that make swap and run now."""
    names = known_services(ROOT)
    if not (names and module.params["deactivate"] and has_systemd(ROOT)):
        return set()
    states = module.run_command(["systemctl", "is-active", *names])[1].split()
    return {names[number] for number, state in enumerate(states) if state in ("active", "activating", "reloading")}


def diff(plan: Plan) -> list[dict[str, str]]:
    """The change of fstab, then all actions."""
    actions = "".join(f"{action}\n" for action in plan.actions())
    entries = {f"/{FSTAB}": (plan.fstab_before, plan.fstab_after), "actions": ("", actions)}
    return [
        {"before_header": header, "after_header": header, "before": shown(before), "after": shown(after)}
        for header, (before, after) in entries.items()
        if before != after
    ]


def keep(file: Path, backup: Path) -> None:
    """Copy a file, or a link as such, with all that belongs to it."""
    owner = file.lstat()
    os.chown(shutil.copy2(file, backup, follow_symlinks=False), owner.st_uid, owner.st_gid, follow_symlinks=False)


def make_backup(module: AnsibleModule, plan: Plan) -> Path:
    """Make the directory of this run, with what the run replaces and the script that undoes the run, or none at all."""
    parent = ROOT / module.params["backup_dir"].lstrip("/")
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    backup = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime()), dir=parent))
    try:
        if plan.comment:
            shutil.copy2(ROOT / FSTAB, backup / "fstab")
        for path in plan.displace:
            keep(ROOT / path.lstrip("/"), backup)
        script = backup / "restore.sh"
        script.touch(mode=0o700)
        script.write_text(restore_script(plan, ROOT, backup), errors="surrogateescape")
    except OSError:
        shutil.rmtree(backup)
        raise
    return backup


def turn_off(module: AnsibleModule, plan: Plan) -> None:
    """Turn off each swap, then stop the services, then turn off what those made in between.

    Services come second, since zramswap removes the module of all zram devices and fails while another one is in use.
    """
    on = {swap.path for swap in active_swaps(ROOT)}
    for swap, _ in plan.turn_off:
        if swap.path in on:
            run(module, "swapoff", swap.path)
    for name in plan.stop:
        run(module, "systemctl", "stop", name)
    if plan.stop:
        for swap in active_swaps(ROOT):
            run(module, "swapoff", swap.path)


def write(module: AnsibleModule, plan: Plan) -> None:
    """Write what keeps swap away at the next boot."""
    if plan.comment:
        fstab.write(ROOT / FSTAB, plan.fstab_after)
    for path in plan.displace:
        (ROOT / path.lstrip("/")).unlink()
    for name in plan.mask:
        (ROOT / MASKS).mkdir(parents=True, exist_ok=True)
        (ROOT / MASKS / name).symlink_to("/dev/null")
    if plan.cloud:
        (ROOT / CLOUD).write_text(CLOUD_TEXT)
    if plan.reload:
        run(module, "systemctl", "daemon-reload")


def apply(module: AnsibleModule, plan: Plan) -> Path:
    """Carry the plan out, or leave the host as it was; return the backup."""
    try:
        backup = make_backup(module, plan)
    except OSError as error:
        module.fail_json(f"Nothing was changed, since no backup could be made: {error}.")
    try:
        turn_off(module, plan)
        write(module, plan)
    except (StepError, OSError) as error:
        code, _, reason = module.run_command(["sh", str(backup / "restore.sh")])
        if code != 0:
            module.fail_json(f"{error}. Not all steps before it could be undone: {reason.strip()}. Repeat {backup}/restore.sh.")
        shutil.rmtree(backup)
        module.fail_json(f"{error}. The steps before it were undone, so the host is as it was.")
    return backup


def delete(plan: Plan) -> list[str]:
    """Delete swap files; return what was in the way of those that stay."""
    left = []
    for file in plan.delete:
        try:
            (ROOT / file.path.lstrip("/")).unlink()
        except OSError as error:
            left.append(f"{file.path}: {error.strerror}")
    return left


def main() -> None:
    """Take stock, plan, act."""
    module = AnsibleModule(
        argument_spec={
            "deactivate": {"type": "bool", "default": True},
            "reserve": {"type": "str", "default": "512M"},
            "delete_files": {"type": "bool", "default": False},
            "backup_dir": {"type": "path", "default": "/var/backups/groundwork/swap_removal"},
        },
        supports_check_mode=True,
    )
    plan = make_plan(ROOT, module.params, running_services(module))
    if plan.faults:
        module.fail_json(f"Nothing was changed. Correct first: {'; '.join(plan.faults)}.")
    actions = plan.actions()
    result = {"changed": bool(actions), "actions": actions, "backup": None, "notes": plan.notes, "diff": diff(plan)}
    if actions and not module.check_mode:
        result["backup"] = str(apply(module, plan))
        on = ", ".join(swap.path for swap in active_swaps(ROOT))
        if module.params["deactivate"] and on:
            module.fail_json(f"Something turned swap on again during the run: {on}. Find out what, and repeat.", **result)
        if left := delete(plan):
            reasons = shown("; ".join(left))
            module.fail_json(f"All was done, but files that are out of use could not be deleted: {reasons}.", **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
