#!/usr/bin/python
"""Ansible module: whether a host wants a reboot, and whether it would come back from it."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.boot_target import UnknownTargetError, boot_target, problems
from ansible.module_utils.initramfs import find_builder
from ansible.module_utils.reboot_state import GOOD_STATES, Now, boot_faults, reasons, record

DOCUMENTATION = r"""
module: reboot_readiness
short_description: Tell whether a host wants a reboot, and whether it would come back from it
description:
  - Reads the flags of a wanted reboot, C(/run/reboot-required) and the files in C(/run/groundwork/reboot-required.d).
  - On a flagged host it finds the kernel that boots next, from GRUB's configuration and environment or from systemd-boot, and
    checks that kernel's image, initramfs and modules, and that GRUB waits for nobody. Where the NVIDIA driver is in use, that
    kernel must have it too.
  - After a reboot it compares the host with what C(playbooks/reboot.yml) wrote down before.
  - Changes nothing. Needs root, since images of kernels are not readable for everybody.
options:
  kernel:
    description: Version of the kernel that boots next, for hosts whose boot loader can't be read.
    type: str
author: Groundwork maintainers
"""

EXAMPLES = r"""
- name: Ask the host whether it wants a reboot
  reboot_readiness:
  register: __readiness
"""

RETURN = r"""
flagged: {description: Whether the host wants a reboot., returned: success, type: bool}
reasons:
  description: Why it does.
  returned: success
  type: list
  elements: str
  sample: ["packages: linux-image-6.1.0-57-amd64", "nouveau_blacklist: nouveau is loaded and in use"]
boot_id: {description: Id of the present boot., returned: success, type: str}
running_kernel: {description: Version of the running kernel., returned: success, type: str}
next_kernel: {description: Version of the kernel that boots next; null if nobody can tell., returned: flagged, type: str}
next_from: {description: What says so., returned: flagged, type: str, sample: "/boot/grub/grub.cfg, entry 'Debian GNU/Linux'"}
problems:
  description: What speaks against a reboot, each with its remedy. Only a flagged host is examined.
  returned: success
  type: list
  elements: str
state: {description: What C(systemctl is-system-running) says., returned: success, type: str, sample: running}
failed_units:
  description: Units that failed.
  returned: success
  type: list
  elements: str
failed_before:
  description: Units that had failed before the host was drained; those that failed now, if it is not drained yet.
  returned: success
  type: list
  elements: str
interrupted:
  description: Whether the host was drained for a reboot that was never finished.
  returned: success
  type: bool
rebooted: {description: Whether it was booted since it was drained., returned: success, type: bool}
boot_faults:
  description: How that boot differs from what was expected.
  returned: success
  type: list
  elements: str
"""

#: The directory under which the host is read; tests put a made-up tree in its place.
ROOT = Path("/")


def run_if_there(module: AnsibleModule, command: list[str]) -> tuple[int, str, str] | None:
    """Run a program that not every host has."""
    path = module.get_bin_path(command[0])
    return module.run_command([path, *command[1:]], errors="surrogate_then_replace") if path else None


def read_now(module: AnsibleModule) -> Now:
    """Read the host as it runs."""
    kernel = ROOT / "proc/sys/kernel"
    state = run_if_there(module, ["systemctl", "is-system-running"])
    failed = run_if_there(module, ["systemctl", "list-units", "--state=failed", "--plain", "--no-legend", "--full", "--no-pager"])
    return Now(
        boot_id=(kernel / "random/boot_id").read_text().strip(),
        kernel=(kernel / "osrelease").read_text().strip(),
        state=state[1].strip() if state else "absent",
        failed_units=[line.split()[0] for line in (failed[1] if failed else "").splitlines() if line.strip()],
    )


def main() -> None:
    """Read, judge, tell."""
    module = AnsibleModule(argument_spec={"kernel": {"type": "str"}}, supports_check_mode=True)
    now, flags, found = read_now(module), reasons(ROOT), []
    try:
        before = record(ROOT)
    except ValueError as error:
        module.fail_json(msg=f"{error}.")
    result = {
        "flagged": bool(flags),
        "reasons": flags,
        "boot_id": now.boot_id,
        "running_kernel": now.kernel,
        "state": now.state,
        "failed_units": now.failed_units,
        # What failed in a reboot that was never finished has not failed before it.
        "failed_before": before["failed_units"] if before else now.failed_units,
        "interrupted": before is not None,
        "rebooted": before is not None and before["boot_id"] != now.boot_id,
        "boot_faults": boot_faults(before, now, flags) if before else [],
    }
    if flags:

        def run(command: list[str]) -> tuple[int, str, str] | None:
            return run_if_there(module, command)

        if now.state not in GOOD_STATES:
            found.append(
                f"systemd's state is {now.state!r}, where running or degraded was expected; "
                f"let the boot or shutdown in progress end (`systemctl list-jobs` shows what it waits for)"
            )
        try:
            target = boot_target(ROOT, module.params["kernel"], run)
            result.update(next_kernel=target.kernel, next_from=target.source)
            found += problems(ROOT, target, now.kernel, run, find_builder(module, ROOT))
        except UnknownTargetError as error:
            result.update(next_kernel=None, next_from=None)
            found.append(str(error))
    module.exit_json(changed=False, problems=found, **result)


if __name__ == "__main__":
    main()
