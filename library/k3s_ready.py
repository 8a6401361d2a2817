#!/usr/bin/python
"""Ansible module: wait until a K3s node is really up, and say why it is not."""

from __future__ import annotations

import json
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.k3s_log import explain
from ansible.module_utils.k3s_nodes import KUBECTL, faults
from ansible.module_utils.unit_state import parse_show, started_at

DOCUMENTATION = r"""
module: k3s_ready
short_description: Wait until a K3s node is really up, and say why it is not
description:
  - An active unit proves little. An agent with a wrong token stays active and asks for ever; a server is active while its etcd
    has no quorum. So this asks the API for the Node of this host, and the servers for C(/readyz).
  - The Node must be Ready, as reported after the service started, by a kubelet of the wanted version; the Node of a server with
    embedded etcd must be a voting member.
  - Runs on the node itself. An agent asks with the credentials of its own kubelet, which may read its own Node.
  - Waits a bounded time, changes nothing. A failure names cause and remedy, as the log of K3s gives them.
options:
  node_name: {description: Name of the Node., type: str, required: true}
  version: {description: 'Version that its kubelet must have, such as v1.36.3+k3s1.', type: str, required: true}
  server: {description: Whether the host is a server., type: bool, required: true}
  etcd: {description: Whether the server is a member of embedded etcd., type: bool, default: false}
  timeout: {description: Seconds until it is given up., type: int, default: 300}
author: Groundwork maintainers
"""

EXAMPLES = r"""
- name: Wait until the agent is up
  k3s_ready:
    node_name: gpu07
    version: v1.36.3+k3s1
    server: false
"""

RETURN = r"""
seconds: {description: How long it waited., returned: success, type: float}
"""

KUBELET = "/var/lib/rancher/k3s/agent/kubelet.kubeconfig"
INTERVAL = 1.0
#: What never mends itself ends the wait early, when it has been seen this many times in a row.
PATIENCE = 5


class Watch:
    """What is known of a host's K3s."""

    def __init__(self, module: AnsibleModule) -> None:
        """Take the module's parameters."""
        self.module = module
        self.unit = "k3s.service" if module.params["server"] else "k3s-agent.service"
        self.kubectl = [*KUBECTL, "--request-timeout=10s"]
        if not module.params["server"]:
            self.kubectl.append(f"--kubeconfig={KUBELET}")

    def ask(self, *arguments: str) -> tuple[str, str]:
        """Call kubectl; return its output, and its complaint if it failed."""
        code, output, error = self.module.run_command([*self.kubectl, *arguments])
        return output, "" if code == 0 else (error or output).strip().splitlines()[-1]

    def faults(self) -> list[str]:
        """Return what the node still lacks."""
        params = self.module.params
        show = ["systemctl", "show", "--property=ActiveState,SubState,Job,ExecMainStartTimestampMonotonic", self.unit]
        unit = parse_show(self.module.run_command(show, check_rc=True)[1])
        self.since = started_at(unit, time.time(), time.monotonic())
        # A job that systemd has not begun yet, too: the process is then still the one before.
        if unit["ActiveState"] != "active" or unit.get("Job", "0") not in ("", "0"):
            return [f"{self.unit} is {unit['ActiveState']} ({unit['SubState']})"]
        if params["server"]:
            _, complaint = self.ask("get", "--raw=/readyz")
            if complaint:
                return [f"its API is not ready: {complaint}"]
        output, complaint = self.ask("get", "node", params["node_name"], "--output=json")
        if complaint:
            return [f"its Node can't be read from the API: {complaint}"]
        found: list[str] = faults(json.loads(output), params["version"], etcd=params["etcd"], since=self.since)
        return found

    def log(self) -> str:
        """Return what the log ends with, since the last start: what was before may be mended."""
        argv = [
            "journalctl",
            "--unit",
            self.unit,
            "--lines=40",
            "--output=cat",
            "--quiet",
            "--no-pager",
            f"--since=@{int(self.since)}",
        ]
        return str(self.module.run_command(argv)[1])


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "node_name": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
            "server": {"type": "bool", "required": True},
            "etcd": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    watch = Watch(module)
    started = time.monotonic()
    told = 0
    while lacking := watch.faults():
        log = watch.log()
        cause = explain(log)
        told = told + 1 if cause and cause[2] else 0
        waited = time.monotonic() - started
        if waited > module.params["timeout"] or told >= PATIENCE:
            why, remedy = (
                cause[:2] if cause else ("its log says nothing that is known", f"`journalctl -u {watch.unit}` on the host")
            )
            tail = "\n".join(log.splitlines()[-5:])
            module.fail_json(
                msg=f"{module.params['node_name']} is not up after {waited:.0f} s: {'; '.join(lacking)}. Cause: {why}. "
                f"Remedy: {remedy}. The log ends with:\n{tail}"
            )
        time.sleep(INTERVAL)
    module.exit_json(changed=False, seconds=round(time.monotonic() - started, 1))


if __name__ == "__main__":
    main()
