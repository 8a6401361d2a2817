"""Turn the variables of the role cuda_toolkit into what its modules are asked for, refusing what would not work."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import ansible.module_utils

# ansible.cfg makes module_utils/ known to modules; a filter, which runs on the controller, has to find it itself.
ansible.module_utils.__path__.append(str(Path(__file__).parents[1] / "module_utils"))
cuda_wishes = importlib.import_module("ansible.module_utils.cuda_wishes")

DOCUMENTATION = r"""
name: cuda_toolkit_plan
short_description: Turn the variables of the role cuda_toolkit into what its modules are asked for
description:
  - Judges the variables together, and completes each toolkit with its address, checksums and packages.
positional: sources, facts
options:
  _input:
    description: The variables C(cuda_toolkit_*), and C(nvidia_driver_source) and C(nvidia_driver_mirror*) where they are set.
    type: dict
    required: true
  sources:
    description:
      - C(locks), the folder of the lock files; C(staging), the folder on the host; C(runfiles), version -> C(file) and C(md5).
    type: dict
    required: true
  facts:
    description: Ansible's facts of the host.
    type: dict
    required: true
"""

EXAMPLES = r"""
plan: "{{ settings | cuda_toolkit_plan(__cuda_toolkit_sources, ansible_facts) }}"
"""

RETURN = r"""
_value:
  description:
    - C(faults), all that is wrong, in sentences. With any, there is nothing else.
    - C(toolkits) and C(cudnn), for the module cuda_toolkits; C(wheels), each with C(name), C(lock) and C(archive).
    - C(compilers), packages; C(packages) and C(parts), for the module held_packages.
    - C(repository), for the module apt_source, without the key; none where no package is asked for.
  type: dict
"""


class FilterModule:
    """The filter of this file, by name."""

    def filters(self) -> dict[str, Any]:
        """Return it."""
        return {"cuda_toolkit_plan": cuda_wishes.plan}
