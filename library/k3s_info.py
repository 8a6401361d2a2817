#!/usr/bin/python
"""Ansible module: what K3s is on a host."""

from __future__ import annotations

import re
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: k3s_info
short_description: Tell what K3s is on a host
description:
  - Reads the version of the program, whether the host has data of a server or of an agent, and what that server joined.
  - Changes nothing and asks no API.
options: {}
author: Groundwork maintainers
"""

EXAMPLES = r"""
- name: See what is there
  k3s_info:
  register: __k3s
"""

RETURN = r"""
version: {description: 'Version of the program, such as v1.36.3+k3s1; empty if there is none.', returned: success, type: str}
server: {description: Whether the host has data of a server., returned: success, type: bool}
node: {description: Whether the host is a node already., returned: success, type: bool}
running: {description: Whether its service is active., returned: success, type: bool}
joined: {description: Address that its configuration joins; empty if none., returned: success, type: str}
ca_hash:
  description: SHA-256 of the cluster's CA, as K3s computes it for its tokens; empty where none is known.
  returned: success
  type: str
cgroup: {description: Version of its cgroups., returned: success, type: int, sample: 2}
"""

#: The directory under which the host is read; tests put a made-up tree in its place.
ROOT = Path("/")


def text(path: str) -> str:
    """Return the content of a file, nothing if there is none."""
    file = ROOT / path
    return file.read_text() if file.is_file() else ""


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    program = ROOT / "usr/local/bin/k3s"
    told = module.run_command([str(program), "--version"])[1] if program.exists() else ""
    version = re.search(r"\bv\d+\.\d+\.\d+\S*", told)
    joined = re.search(r"^server: *[\"']?([^\"'\s]+)", text("etc/rancher/k3s/config.yaml"), re.MULTILINE)
    # A server knows it from its start on, an agent from what it was given.
    tokens = text("var/lib/rancher/k3s/server/token") or text("etc/rancher/k3s/token")
    known = re.match(r"K10([0-9a-f]{64})::", tokens)
    module.exit_json(
        changed=False,
        version=version.group() if version else "",
        server=(ROOT / "var/lib/rancher/k3s/server/db").is_dir(),
        node=(ROOT / "etc/rancher/node/password").is_file(),
        # The exit code is 0 if one of them is.
        running=module.run_command(["systemctl", "is-active", "--quiet", "k3s.service", "k3s-agent.service"])[0] == 0,
        joined=joined[1] if joined else "",
        # Of a secret only what is public.
        ca_hash=known[1] if known else "",
        cgroup=2 if (ROOT / "sys/fs/cgroup/cgroup.controllers").is_file() else 1,
    )


if __name__ == "__main__":
    main()
