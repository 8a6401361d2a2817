#!/usr/bin/python
"""Refuse what is in the way of NVIDIA's container toolkit, and tell what it has to reckon with."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.apt_packages import installed
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.container_toolkit import faults, k3s_is_blind, old_engines
from ansible.module_utils.gpu_catalog import CONTAINER_TOOLKIT_PACKAGES

DOCUMENTATION = r"""
module: container_toolkit_info
short_description: Refuse what is in the way of NVIDIA's container toolkit, and tell what it has to reckon with
description:
  - Reads the list of packages, the files of apt and the configuration that K3s made; changes nothing.
  - Refuses packages that the toolkit replaced (nvidia-docker2, nvidia-container-runtime) and repositories that NVIDIA gave up.
author: Groundwork maintainers
"""

EXAMPLES = r"""
- name: See what there is
  container_toolkit_info:
  register: __toolkit
"""

RETURN = r"""
old_engines:
  description: Installed container engines that can't read CDI specs of version 0.7.
  returned: success
  type: list
  elements: str
  sample: [podman 4.3.1+ds1-8]
packages:
  description: The packages of the toolkit, which are one release.
  returned: success
  type: list
  elements: str
k3s_is_blind:
  description: Whether K3s was started before it could find NVIDIA's runtime.
  returned: success
  type: bool
"""

#: The directory under which the host is read; tests put a made-up tree in its place.
ROOT = Path("/")


def main() -> None:
    """Read, judge, tell."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    packages = {name: package.version for name, package in installed(module.run_command).items()}
    if found := faults(ROOT, packages):
        module.fail_json(f"Nothing was changed. Correct first: {'; '.join(found)}.")
    module.exit_json(
        old_engines=old_engines(packages), packages=list(CONTAINER_TOOLKIT_PACKAGES), k3s_is_blind=k3s_is_blind(ROOT)
    )


if __name__ == "__main__":
    main()
