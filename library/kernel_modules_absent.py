#!/usr/bin/python
"""Unload kernel modules that nothing uses, and say so if that takes a reboot."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kernel_modules import Loaded, parse_modules, plan_removal

DOCUMENTATION = r"""
module: kernel_modules_absent
short_description: Unload kernel modules that nothing uses, and say so if that takes a reboot
description:
  - Unloads those of the modules that are loaded and that nothing uses, with C(modprobe -r).
  - A module in use, or one that does not go, is no error. A graphics driver that shows the console can't be taken from
    under it, and trying may hang. The result then says that a reboot is required, and why.
  - Does not keep modules from being loaded again; that is for modprobe.d.
options:
  names:
    description: The modules.
    type: list
    elements: str
    required: true
  timeout:
    description: Seconds until the removal of a module is given up. A driver that hangs can't be killed; it is left behind.
    type: int
    default: 30
author: Groundwork maintainers
"""

EXAMPLES = r"""
- name: Unload nouveau
  kernel_modules_absent:
    names: [nouveau]
  register: __nouveau
"""

RETURN = r"""
unloaded:
  description: Modules that were unloaded; in check mode, those that would be.
  returned: success
  type: list
  elements: str
reboot_required:
  description: Whether a module stays loaded until the next boot.
  returned: success
  type: bool
reason:
  description: Which one stays, and why; empty if none does.
  returned: success
  type: str
  sample: "nouveau stays loaded until the next boot: it is in use (1 references)"
"""

#: The directory under which the host is read; tests put a made-up tree in its place.
ROOT = Path("/")


def loaded_modules() -> dict[str, Loaded]:
    """Return the loaded modules by name. A kernel without modules has no list of them."""
    file = ROOT / "proc/modules"
    return parse_modules(file.read_text()) if file.exists() else {}


def unload(program: str, name: str, timeout: int) -> str:
    """Unload a module; return why it did not go, or nothing."""
    # -i: what a distribution has modprobe do instead (Debian renames the modules of NVIDIA) is for loading.
    # Neither run_command nor subprocess.run: both wait for ever for a process that hangs inside the kernel.
    process = subprocess.Popen(
        [program, "-r", "-i", name], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        error = process.communicate(timeout=timeout)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        return f"`modprobe -r {name}` did not end within {timeout} s"
    return f"`modprobe -r {name}` failed: {error.strip()}" if process.returncode != 0 else ""


def main() -> None:
    """Plan, unload, look again."""
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "required": True},
            "timeout": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    order, stay = plan_removal(loaded_modules(), module.params["names"])
    if order and not module.check_mode:
        program = module.get_bin_path("modprobe", required=True)
        for name in order:
            if fault := unload(program, name, module.params["timeout"]):
                stay[name] = fault
        for name in loaded_modules():
            if name in order:
                stay.setdefault(name, "it is still, or again, loaded after it was unloaded")
    unloaded = [name for name in order if name not in stay]
    module.exit_json(
        changed=bool(unloaded),
        unloaded=unloaded,
        reboot_required=bool(stay),
        reason="; ".join(f"{name} stays loaded until the next boot: {reason}" for name, reason in stay.items()),
        diff={
            "before": "".join(f"{name}: loaded\n" for name in unloaded),
            "after": "".join(f"{name}: not loaded\n" for name in unloaded),
        },
    )


if __name__ == "__main__":
    main()
