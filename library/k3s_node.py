#!/usr/bin/python
"""Ansible module: a node of the cluster, as the API has it: labels, taints, in service or out of it, gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.k3s_nodes import (
    KUBECTL,
    condition,
    cordon_patch,
    cordoned_by_us,
    is_cordoned,
    metadata_patch,
    parse_taint,
    release_patch,
)

DOCUMENTATION = r"""
module: k3s_node
short_description: Keep a node's labels and taints, take it out of service and put it back, or forget it
description:
  - Runs on a server and asks the API with its C(kubectl).
  - Labels and taints are kept as listed. Those of an earlier list are taken back, those that others set are left alone;
    annotations of the node say which are ours.
  - C(scheduling=drained) cordons and drains a node, C(released) undoes it. A node that somebody else cordoned is drained all the
    same, stays cordoned afterwards, and the result says so.
  - A drain that does not succeed puts the node back into service and fails with the pods that stayed.
  - A node that is not in the API is an error, unless it shall be absent, or in check mode, where it would have been made.
options:
  name: {description: Name of the Node., type: str, required: true}
  state:
    description: Whether the Node is kept. V(absent) deletes it, with its password and a server's place in etcd.
    type: str
    choices: [present, absent]
    default: present
  unless_ready:
    description: With C(state=absent), keep a Node that is Ready, and fail. For a host that was installed anew.
    type: bool
    default: false
  labels: {description: Labels to keep., type: dict, default: {}}
  taints:
    description: Taints to keep, each C(key=value:Effect) or C(key:Effect).
    type: list
    elements: str
    default: []
  scheduling:
    description: Whether pods may come to it. With it, labels and taints are left as they are.
    type: str
    choices: [drained, released]
  reason: {description: Why it is drained; kept in an annotation., type: str, default: Groundwork}
  drain_timeout: {description: Seconds until a drain is given up., type: int, default: 600}
  drain_options:
    description: Further options of C(kubectl drain).
    type: list
    elements: str
    default: ["--delete-emptydir-data"]
author: Groundwork maintainers
"""

EXAMPLES = r"""
- name: Keep the labels of the node
  k3s_node:
    name: gpu07
    labels: {nvidia.com/gpu.present: "true"}
    taints: ["nvidia.com/gpu=present:NoSchedule"]
  delegate_to: cp1

- name: Take the node out of service
  k3s_node:
    name: gpu07
    scheduling: drained
    reason: upgrade to v1.36.3+k3s1
  delegate_to: cp1
"""

RETURN = r"""
notes:
  description: What was left as it is, and why.
  returned: success
  type: list
  elements: str
"""


#: How often a change is tried again: the controllers of the cluster change a node, too, above all when it is new.
ATTEMPTS = 5
REMEDY = "Remedy: `k3s kubectl get --raw=/readyz` on this server tells whether the API is well; then run the play again."

Node = dict[str, Any]
Patch = dict[str, Any]


class Api:
    """The API, as `kubectl` on this server reaches it."""

    def __init__(self, module: AnsibleModule) -> None:
        """Take the module's parameters."""
        self.module = module
        self.name: str = module.params["name"]

    def call(self, *arguments: str) -> tuple[int, str, str]:
        """Call kubectl."""
        result: tuple[int, str, str] = self.module.run_command([*KUBECTL, *arguments])
        return result

    def must(self, *arguments: str) -> str:
        """Call kubectl; fail with what it says."""
        code, output, error = self.call(*arguments)
        if code != 0:
            self.module.fail_json(msg=f"node {self.name}: the API answered {(error or output).strip()!r}. {REMEDY}")
        return output

    def node(self) -> Node | None:
        """Return the node, None if there is none."""
        told = self.must("get", "node", self.name, "--ignore-not-found", "--output=json")
        node: Node | None = json.loads(told) if told.strip() else None
        return node

    def patch(self, node: Node | None, plan: Callable[[Node], Patch]) -> Patch:
        """Change a node as it was read, by the patch that a plan finds; read again where somebody else changed it meanwhile."""
        for _ in range(ATTEMPTS):
            patch = plan(node) if node else {}
            if node is None or not patch:
                return patch
            metadata = {**patch.get("metadata", {}), "resourceVersion": node["metadata"]["resourceVersion"]}
            body = json.dumps({**patch, "metadata": metadata})
            code, output, error = self.call("patch", "node", self.name, "--type=merge", f"--patch={body}")
            if code == 0:
                return patch
            if "Conflict" not in error + output:
                break
            node = self.node()
        self.module.fail_json(
            msg=f"node {self.name} could not be changed: the API answered {(error or output).strip()!r}. {REMEDY}"
        )
        raise AssertionError  # fail_json does not return


def forget(module: AnsibleModule, api: Api, node: Node | None) -> dict[str, Any]:
    """Delete the node."""
    if node is None:
        return {"changed": False}
    if module.params["unless_ready"] and condition(node, "Ready").get("status") == "True":
        addresses = ", ".join(each["address"] for each in node["status"].get("addresses", [])) or "no address"
        module.fail_json(
            msg=f"node {api.name} is in the cluster and Ready ({addresses}), and this host is not that node: it has no data of "
            "K3s. Remedy: give this host another name (k3s_config: node-name), or stop the other one."
        )
    if not module.check_mode:
        api.must("delete", "node", api.name, "--ignore-not-found", "--timeout=60s")
    return {"changed": True, "diff": {"before": f"node {api.name}\n", "after": ""}}


def drain(module: AnsibleModule, api: Api) -> None:
    """Move the pods away; put the node back and fail if that does not succeed."""
    timeout = module.params["drain_timeout"]
    code, output, error = api.call(
        "drain", api.name, "--ignore-daemonsets", f"--timeout={timeout}s", *module.params["drain_options"]
    )
    if code == 0:
        return
    patch = api.patch(api.node(), release_patch)
    told = "\n".join((error or output).strip().splitlines()[-6:])
    module.fail_json(
        msg=f"node {api.name} could not be drained within {timeout} s"
        f"{' and was put back into service' if patch else ''}; nothing else was done to it. kubectl says:\n{told}\n"
        "Remedy: move the pods that it names, or let the disruption budget allow it; then run the play again."
    )


def change(module: AnsibleModule, api: Api, node: Node) -> dict[str, Any]:
    """Bring the node to what is wanted."""
    params, notes = module.params, []

    def plan(node: Node) -> Patch:
        wanted: Patch
        if params["scheduling"] is None:
            wanted = metadata_patch(node, params["labels"], params["taints"])
        else:
            wanted = cordon_patch(node, params["reason"]) if params["scheduling"] == "drained" else release_patch(node)
        return wanted

    if params["scheduling"] and is_cordoned(node) and not cordoned_by_us(node):
        notes.append(f"{api.name} was cordoned by somebody else and stays so")
    patch = plan(node) if module.check_mode else api.patch(node, plan)
    # Again after an interrupted run, too: an empty node is drained in a moment.
    if params["scheduling"] == "drained" and not module.check_mode:
        drain(module, api)
    return {
        "changed": bool(patch),
        "notes": notes,
        "diff": {"before": "", "after": f"{json.dumps(patch, indent=2)}\n" if patch else ""},
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "unless_ready": {"type": "bool", "default": False},
            "labels": {"type": "dict", "default": {}},
            "taints": {"type": "list", "elements": "str", "default": []},
            "scheduling": {"type": "str", "choices": ["drained", "released"]},
            "reason": {"type": "str", "default": "Groundwork"},
            "drain_timeout": {"type": "int", "default": 600},
            "drain_options": {"type": "list", "elements": "str", "default": ["--delete-emptydir-data"]},
        },
        supports_check_mode=True,
    )
    for taint in module.params["taints"]:
        try:
            parse_taint(taint)
        except ValueError as error:
            module.fail_json(msg=f"node {module.params['name']}: {error}")
    api = Api(module)
    node = api.node()
    if module.params["state"] == "absent":
        module.exit_json(notes=[], **forget(module, api, node))
    if node is None and module.check_mode:
        module.exit_json(changed=True, notes=[f"{api.name} is not in the API yet"])
    if node is None:
        module.fail_json(msg=f"there is no node {api.name} in the API. Remedy: run the role k3s on that host first.")
    else:
        module.exit_json(**change(module, api, node))


if __name__ == "__main__":
    main()
