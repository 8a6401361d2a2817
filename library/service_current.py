#!/usr/bin/python
"""Ansible module: run a systemd unit with what is on disk, whoever changed it and when."""

from __future__ import annotations

import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.unit_state import PROPERTIES, newer_files, parse_show, started_at

DOCUMENTATION = r"""
module: service_current
short_description: Start a systemd unit, and restart it when a file it reads is newer than its start
description:
  - Enables and starts a unit, and restarts it only if one of the files it reads was written after it started, or if systemd
    had not read its unit files since they changed. The unit file and its drop-ins always count.
  - Takes the place of a restart handler where an interrupted run must not leave a service with old settings.
  - systemd is reloaded only when it says that its unit files changed, since a reload can take the GPUs from containers.
    Those of the unit that a timer or a socket starts count too, since nobody else asks for them.
  - A masked unit is an error, unless it shall be neither started nor enabled. Unmasking is left to whoever masked it.
options:
  name:
    description: The unit, with its suffix.
    type: str
    required: true
  reads:
    description: Files that the program reads at start only. One that does not exist does not count.
    type: list
    elements: path
    default: []
  pending:
    description: Files that an earlier task would have written; in check mode they count as newer than the start.
    type: list
    elements: path
    default: []
  enabled:
    description: Whether the unit starts at boot. Units without an [Install] section (static) are left as they are.
    type: bool
    default: true
  state:
    description: Whether the unit runs.
    type: str
    choices: [started, stopped]
    default: started
  wait:
    description: Whether to wait until the unit has started or stopped. Without, a later task has to ask whether it did.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Run the exporter with its present settings
  service_current:
    name: prometheus-node-exporter.service
    reads: [/etc/default/prometheus-node-exporter]
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode, each with its reason.
  returned: success
  type: list
  elements: str
"""


def show(module: AnsibleModule, name: str) -> dict[str, str]:
    """Ask systemd about the unit."""
    command = ["systemctl", "show", name, f"--property={','.join(PROPERTIES)}"]
    properties: dict[str, str] = parse_show(module.run_command(command, check_rc=True)[1])
    return properties


def systemctl(module: AnsibleModule, *arguments: str) -> None:
    """Run systemctl; a unit that fails to start is explained by the end of its log."""
    code, _, error = module.run_command(["systemctl", *arguments])
    if code != 0:
        log = module.run_command(["journalctl", "--unit", arguments[-1], "--lines=15", "--no-pager", "--output=cat"])[1]
        module.fail_json(msg=f"`systemctl {' '.join(arguments)}` failed: {error.strip()}\nThe end of its log:\n{log}")


def plan(module: AnsibleModule, unit: dict[str, str], reload: bool) -> list[tuple[str, str]]:
    """Return the systemctl commands that are needed, each with its reason; `reload`: systemd did not know its files."""
    name, running = module.params["name"], unit["ActiveState"] in ("active", "activating", "reloading")
    steps = []
    if module.params["enabled"] and unit["UnitFileState"] == "disabled":
        steps.append(("enable", "it would not start at boot"))
    if not module.params["enabled"] and unit["UnitFileState"] == "enabled":
        steps.append(("disable", "it would start at boot"))
    if module.params["state"] == "stopped":
        return [*steps, ("stop", f"it is {unit['ActiveState']}")] if running else steps
    if unit["ActiveState"] == "failed":
        steps.append(("reset-failed", "systemd refuses a start after too many failed ones"))
    if not running:
        return [*steps, ("start", f"it is {unit['ActiveState']}")]
    newer = newer_files(unit, module.params["reads"], started_at(unit, time.time(), time.monotonic()))
    if module.check_mode:
        read = {*module.params["reads"], unit["FragmentPath"], *unit["DropInPaths"].split()}
        newer += [path for path in module.params["pending"] if path in read and path not in newer]
    if newer:
        steps.append(("restart", f"{', '.join(newer)} changed after {name} started"))
    elif reload:  # it may have started after the change and with the old files, or a drop-in was removed
        steps.append(("restart", "it runs with unit files that have changed"))
    return steps


def main() -> None:
    """Compare, plan, act."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "reads": {"type": "list", "elements": "path", "default": []},
            "pending": {"type": "list", "elements": "path", "default": []},
            "enabled": {"type": "bool", "default": True},
            "state": {"type": "str", "choices": ["started", "stopped"], "default": "started"},
            "wait": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    name, actions = module.params["name"], []
    unit = show(module, name)
    reload = unit["NeedDaemonReload"] == "yes"
    triggered = [show(module, other) for other in unit.get("Triggers", "").split()]
    unread = any(item["NeedDaemonReload"] == "yes" for item in (unit, *triggered))
    if unread or (unit["LoadState"] == "not-found" and not module.check_mode):
        if not module.check_mode:
            systemctl(module, "daemon-reload")
            unit = show(module, name)
        actions.append("daemon-reload: unit files changed")
    if unit["LoadState"] == "not-found":
        if not module.check_mode:
            module.fail_json(msg=f"{name} does not exist: no package or task brought its unit file")
        unit["UnitFileState"] = "disabled"  # as it will be once an earlier task has brought it
    if unit["LoadState"] == "masked" and (module.params["enabled"] or module.params["state"] == "started"):
        module.fail_json(
            msg=f"{name} is masked, so somebody decided that it must not run; `systemctl unmask {name}` takes that back"
        )
    steps = plan(module, unit, reload)
    if steps and not module.check_mode:
        # Files from the future, written while the host's clock was ahead, would be newer than each start to come.
        for path in newer_files(unit, module.params["reads"], time.time()):
            os.utime(path)
    for command, reason in steps:
        if not module.check_mode:
            jobs = command in {"start", "restart", "stop"}
            systemctl(module, *(["--no-block"] if jobs and not module.params["wait"] else []), command, name)
        actions.append(f"{command}: {reason}")
    module.exit_json(changed=bool(actions), actions=actions)


if __name__ == "__main__":
    main()
