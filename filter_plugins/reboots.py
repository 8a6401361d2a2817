"""Filters of playbooks/reboot.yml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

DOCUMENTATION = r"""
name: reboot_setting_faults
short_description: Find wrong variables of controlled reboots
description:
  - Checks the groundwork_reboot variables of all hosts of a play, before any host is asked anything.
positional: hosts, directory
options:
  _input:
    description: The variables of all hosts (C(hostvars)).
    type: dict
    required: true
  hosts:
    description: The hosts of the play.
    type: list
    elements: str
    required: true
  directory:
    description: What the paths of hooks are relative to.
    type: str
    required: true
"""

EXAMPLES = r"""
faults: "{{ hostvars | reboot_setting_faults(ansible_play_hosts, playbook_dir) }}"
"""

RETURN = r"""
_value:
  description: One sentence for each fault, with the host and the variable.
  type: list
  elements: str
"""

_LEAST_TIMEOUT = 60


def _is_batch(value: object) -> bool:
    """Tell whether a value is what serial takes for one batch: a number from 1 on, or 1% to 100%."""
    return not isinstance(value, bool) and bool(re.fullmatch(r"[1-9]\d*|([1-9]\d?|100)%", str(value)))


def _host_faults(variables: Mapping[str, Any], directory: Path) -> Iterator[str]:
    mode = variables.get("groundwork_reboot", "prompt")
    if mode not in ("auto", "never", "prompt"):
        yield f"groundwork_reboot is {mode!r}; write auto, never or prompt"
    serial = variables.get("groundwork_reboot_serial", 1)
    batches = serial if isinstance(serial, list) else [serial]
    if not batches or not all(_is_batch(batch) for batch in batches):
        yield f"groundwork_reboot_serial is {serial!r}; write a number of hosts, a percentage such as 20%, or a list of these"
    timeout = variables.get("groundwork_reboot_timeout", 1200)
    if isinstance(timeout, bool) or not str(timeout).isdecimal() or int(timeout) < _LEAST_TIMEOUT:
        yield f"groundwork_reboot_timeout is {timeout!r}; write seconds, {_LEAST_TIMEOUT} at least"
    kernel = variables.get("groundwork_reboot_kernel")
    if kernel is not None and not re.fullmatch(r"\d[\w.+~-]*", str(kernel)):
        yield f"groundwork_reboot_kernel is {kernel!r}; write a version as `uname -r` shows it, such as 6.1.0-57-amd64"
    for name in ("groundwork_reboot_drain", "groundwork_reboot_undrain"):
        hooks = variables.get(name, [])
        if not isinstance(hooks, list) or not all(isinstance(hook, str) for hook in hooks):
            yield f"{name} is {hooks!r}; write a list of task files"
        elif missing := [hook for hook in hooks if not (directory / hook).is_file()]:
            yield f"{name} names {', '.join(missing)}, and there is no such file (paths are relative to {directory})"


def reboot_setting_faults(variables: Mapping[str, Mapping[str, Any]], hosts: Iterable[str], directory: str) -> list[str]:
    """Return what is wrong with the variables of reboots, for all hosts of a play."""
    hosts = list(hosts)
    faults = [f"{host}: {fault}" for host in hosts for fault in _host_faults(variables[host], Path(directory))]
    sizes = {host: variables[host].get("groundwork_reboot_serial", 1) for host in hosts}
    if len({str(size) for size in sizes.values()}) > 1:
        told = ", ".join(f"{size} on {host}" for host, size in sizes.items())
        faults.append(f"groundwork_reboot_serial cuts the whole play into batches and must be the same everywhere: it is {told}")
    return faults


class FilterModule:
    """The filters as Ansible finds them."""

    def filters(self) -> dict[str, Any]:
        """Return them by name."""
        return {"reboot_setting_faults": reboot_setting_faults}
