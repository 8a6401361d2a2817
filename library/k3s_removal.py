#!/usr/bin/python
"""Ansible module: take K3s from a host, whole, and nothing else."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.k3s_remains import DIRECTORIES, FILES, INTERFACES, PARENTS, VOLUMES, mounts, without_rules

DOCUMENTATION = r"""
module: k3s_removal
short_description: Take K3s from a host, whole, and nothing else
description:
  - Stops the service and the containers, unmounts what the kubelet mounted, removes files, interfaces and packet filter rules.
  - Refuses, before anything is touched, while a file system of somebody else is mounted below the directories, or volumes
    of pods are in C(/var/lib/rancher/k3s/storage). Upstream's uninstall script would delete what is on them.
  - The node must be out of the cluster before; C(playbooks/k3s_remove.yml) sees to it.
options:
  volumes:
    description: Whether the volumes of pods are removed, too.
    type: bool
    default: false
author: Groundwork maintainers
"""

EXAMPLES = r"""
- name: Remove K3s
  k3s_removal:
"""

RETURN = r"""
removed: {description: Files and directories that were removed., returned: success, type: list, elements: str}
"""

#: The directory under which the host is read; tests put a made-up tree in its place.
ROOT = Path("/")
UNITS = ("k3s.service", "k3s-agent.service")
PATIENCE = 10.0


def under(path: str) -> Path:
    """Return a path of the host."""
    return ROOT / path.lstrip("/")


def processes() -> list[int]:
    """Return the processes of pods: those in the cgroups that the kubelet makes, and the shims of K3s' containerd."""
    found = []
    for entry in under("/proc").glob("[0-9]*"):
        try:
            groups = (entry / "cgroup").read_text()
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it ended
            continue
        shim = Path(os.fsdecode(command[0])).name.startswith("containerd-shim") and b"/run/k3s/containerd" in b" ".join(command)
        if "kubepods" in groups or shim:
            found.append(int(entry.name))
    return found


def stop_pods() -> None:
    """End the processes of pods: they outlive the service (KillMode=process)."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + PATIENCE
        for process in processes():
            try:
                os.kill(process, number)
            except ProcessLookupError:
                continue
        while processes() and time.monotonic() < end:
            time.sleep(0.2)


def remove_network(module: AnsibleModule) -> None:
    """Remove interfaces and packet filter rules of the cluster's network."""
    for name in INTERFACES:
        if under(f"/sys/class/net/{name}").exists():
            module.run_command(["ip", "link", "delete", name], check_rc=True)
    for family in ("iptables", "ip6tables"):
        save = module.get_bin_path(f"{family}-save")
        if save:
            rules = module.run_command([save], check_rc=True)[1]
            others = without_rules(rules)
            if others != rules:
                module.run_command([module.get_bin_path(f"{family}-restore")], data=others, check_rc=True)


def plan(module: AnsibleModule) -> tuple[list[str], list[str]]:
    """Return what is there to remove and to unmount; fail where somebody would lose something."""
    own, foreign = mounts(under("/proc/mounts").read_text())
    volumes = sorted(path.name for path in under(VOLUMES).glob("*")) if under(VOLUMES).is_dir() else []
    lost = [f"the mount {mount}" for mount in foreign]
    if volumes and not module.params["volumes"]:
        lost.append(f"the volumes of pods in {VOLUMES}: {', '.join(volumes)}")
    if lost:
        module.fail_json(
            msg=f"K3s was not removed, since {'; '.join(lost)} would be destroyed. Remedy: unmount what is mounted; copy the "
            "volumes away, or give them up with k3s_remove_volumes: true."
        )
    present = [path for path in (*FILES, *DIRECTORIES) if os.path.lexists(under(path))]
    return present, own


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={"volumes": {"type": "bool", "default": False}}, supports_check_mode=True)
    present, own = plan(module)
    result: dict[str, Any] = {
        "changed": bool(present),
        "removed": present,
        "diff": {"before": "".join(f"{path}\n" for path in present), "after": ""},
    }
    if present and not module.check_mode:
        for unit in UNITS:
            if under(f"/etc/systemd/system/{unit}").exists():
                module.run_command(["systemctl", "disable", "--now", unit], check_rc=True)
        stop_pods()
        for point in own:
            module.run_command(["umount", "--lazy", point], check_rc=True)
        remove_network(module)
        plan(module)  # what was mounted meanwhile stops it here
        for path in present:
            if under(path).is_dir() and not under(path).is_symlink():
                shutil.rmtree(under(path))
            else:
                under(path).unlink()
        for path in PARENTS:
            if under(path).is_dir() and not any(under(path).iterdir()):
                under(path).rmdir()
        module.run_command(["systemctl", "daemon-reload"], check_rc=True)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
