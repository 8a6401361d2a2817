#!/usr/bin/python
"""Fit wanted limits to what the host can give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host_limits import make_plan, overrides, read_host

DOCUMENTATION = r"""
module: host_limits_info
short_description: Fit wanted limits to what the host can give
description:
  - Reads the size of the journal's file system, of C(/dev/shm), its line in fstab, and C(fs.nr_open); changes nothing.
  - Refuses illegal limits, all in one message that names the variables of the role host_limits.
  - Refuses drop-ins of journald and systemd that are read after the role's own and would take back what it sets.
options:
  journal_max_use:
    description: Most that the journal may use, such as V(10G).
    type: str
    required: true
  journal_keep_free:
    description: What the journal leaves free, such as V(4G).
    type: str
    required: true
  journal_disk_share:
    description: Most of both, in percent of the file system that holds C(/var/log/journal).
    type: int
    required: true
  shm_min:
    description: Least size of C(/dev/shm), such as V(2G).
    type: str
    required: true
  nofile_soft:
    description: Soft limit of open files.
    type: int
    required: true
  nofile_hard:
    description: Hard limit of open files.
    type: int
    required: true
  memlock:
    description: Locked memory of logins, a size or V(unlimited).
    type: str
  pending_nr_open:
    description: What C(fs.nr_open) an earlier task gives the kernel. It counts in check mode, where that task did nothing.
    type: int
    default: 0
author: Groundwork maintainers
"""

EXAMPLES = r"""
- name: Fit the limits to the host
  host_limits_info:
    journal_max_use: 10G
    journal_keep_free: 4G
    journal_disk_share: 15
    shm_min: 2G
    nofile_soft: 65536
    nofile_hard: 524288
  register: __limits
"""

RETURN = r"""
plan:
  description: What to write.
  returned: success
  type: dict
  contains:
    journal_max_use: {description: SystemMaxUse in whole MiB, type: str, sample: 10240M}
    journal_keep_free: {description: SystemKeepFree in whole MiB, type: str, sample: 4096M}
    shm_mount:
      description: C(state) and C(opts) for ansible.posix.mount; null if C(/dev/shm) is large enough, now and at boot.
      type: dict
    memlock: {description: Locked memory in KiB or V(unlimited); null if it was not given, type: raw}
    manager_outdated:
      description: Whether systemd gives services other limits on open files than the wanted ones, and has to read its files.
      type: bool
"""

#: The directory under which the host is read; tests put a made-up tree in its place.
ROOT = Path("/")


def main() -> None:
    """Run the module."""
    size = {"type": "str", "required": True}
    number = {"type": "int", "required": True}
    module = AnsibleModule(
        argument_spec={
            "journal_max_use": size,
            "journal_keep_free": size,
            "journal_disk_share": number,
            "shm_min": size,
            "nofile_soft": number,
            "nofile_hard": number,
            "memlock": {"type": "str"},
            "pending_nr_open": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    wanted, host = module.params, read_host(ROOT)
    if module.check_mode:
        host = replace(host, nr_open=max(host.nr_open, wanted["pending_nr_open"]))
    plan, faults = make_plan(wanted, host)
    nofile = {"DefaultLimitNOFILE": f"{wanted['nofile_soft']}:{wanted['nofile_hard']}"}
    journal = {
        "Storage": "persistent",
        "SystemMaxUse": plan["journal_max_use"],
        "SystemKeepFree": plan["journal_keep_free"],
    }
    faults += overrides(ROOT, {"system.conf": nofile, "journald.conf": journal})
    if faults:
        module.fail_json(f"Nothing was changed. Correct first: {'; '.join(faults)}.")
    properties = ["--property=DefaultLimitNOFILESoft", "--property=DefaultLimitNOFILE"]
    shown = module.run_command(["systemctl", "show", *properties])[1].split()
    given = {f"DefaultLimitNOFILESoft={wanted['nofile_soft']}", f"DefaultLimitNOFILE={wanted['nofile_hard']}"}
    plan["manager_outdated"] = set(shown) != given
    module.exit_json(plan=plan)


if __name__ == "__main__":
    main()
