#!/usr/bin/python
"""Ansible module: the facts that decide what a GPU host needs."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from ansible.module_utils import host_inventory, nvidia_state, pci, reachability
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: groundwork_facts
short_description: Gather the facts that decide what a GPU host needs
description:
  - Reads GPUs, driver, kernel, memory, disk, distribution and clock of a host in one call and changes nothing.
  - Needs Python's standard library only; lspci is not used, and nvidia-smi runs only with a loaded NVIDIA driver.
  - Works without privileges, save for the switches of NVLink 5 and for the container manager of a few containers.
options:
  reachable:
    description: TCP endpoints, host:port or [IPv6]:port, to connect to from the host, all at once.
    type: list
    elements: str
    default: []
  reachable_timeout:
    description: Seconds after which an endpoint, name resolution included, counts as unreachable.
    type: float
    default: 5
  nvidia_smi_timeout:
    description:
      - Seconds after which nvidia-smi is killed and counts as hanging.
      - A host with eight GPUs and no persistence mode takes many seconds to initialise them all.
    type: float
    default: 60
author: Groundwork maintainers
attributes:
  check_mode:
    support: full
"""

EXAMPLES = r"""
- name: Gather the host's facts
  groundwork_facts:
    reachable: [mirror.example.com:443]

- name: Show the GPUs
  ansible.builtin.debug:
    var: ansible_facts['groundwork_gpu']['gpus']
"""

RETURN = r"""
ansible_facts:
  description: The facts, which later tasks read as C(ansible_facts['groundwork_gpu']).
  returned: always
  type: dict
  contains:
    groundwork_gpu:
      description: One tree of facts. A value that can't be told on this host is null.
      type: dict
      contains:
        gpus:
          description: NVIDIA GPUs on the PCI bus in bus order, whatever driver they have.
          type: list
          elements: dict
          contains:
            address: {type: str, description: PCI address, sample: '0000:17:00.0'}
            id: {type: str, description: Vendor and device id in lspci's notation, sample: '10de:2235'}
            subsystem: {type: str, description: Subsystem vendor and device id, sample: '10de:145a'}
            class: {type: str, description: 'PCI class: 0300 VGA or 0302 3D controller', sample: '0302'}
            driver: {type: str, description: Bound kernel driver (nvidia, nouveau, vfio-pci) or null, sample: nvidia}
            numa_node: {type: int, description: NUMA node or null, sample: 0}
        nvswitch:
          description: The switches that Fabric Manager manages.
          type: dict
          contains:
            present: {type: bool, description: Whether there are any}
            addresses: {type: list, elements: str, description: PCI addresses of switches up to NVLink 4}
            nvlink5: {type: bool, description: Whether an InfiniBand adapter manages NVLink 5 switches (root only)}
        driver:
          description: What the kernel has loaded.
          type: dict
          contains:
            modules: {type: list, elements: str, description: Loaded modules named nvidia*, nouveau or nova*}
            version: {type: str, description: Version of the loaded NVIDIA module or null, sample: 580.178.04}
            flavour: {type: str, description: open, proprietary or null, sample: open}
        nvidia_smi:
          description: What C(nvidia-smi -L) says; it runs only where the nvidia module is loaded.
          type: dict
          contains:
            path: {type: str, description: Path of the program or null}
            exit_code: {type: int, description: NVML's return value; null if it did not run or did not end}
            timed_out: {type: bool, description: Whether it was killed after O(nvidia_smi_timeout)}
            message: {type: str, description: What it printed besides devices, sample: No devices found.}
            gpus:
              description: The GPUs it lists.
              type: list
              elements: dict
              contains:
                name: {type: str, description: Product name, sample: NVIDIA A40}
                uuid: {type: str, description: UUID of the GPU}
                address: {type: str, description: PCI address or null}
        secure_boot: {type: bool, description: Whether the firmware enforces Secure Boot; null without EFI}
        kernel:
          description: Kernel releases, oldest first.
          type: dict
          contains:
            running: {type: str, description: Release of the running kernel}
            installed: {type: list, elements: str, description: Releases with modules and a /boot/vmlinuz}
            headers: {type: list, elements: str, description: Releases whose headers are installed}
        memory_mib: {type: int, description: Usable memory in MiB}
        root_filesystem:
          description: The file system of /.
          type: dict
          contains:
            size_mib: {type: int, description: Size in MiB}
            used_percent: {type: int, description: Use in percent as df prints it}
        swap:
          description: Active swap areas.
          type: list
          elements: dict
          contains:
            name: {type: str, description: Device or file}
            type: {type: str, description: partition or file}
            size_mib: {type: int, description: Size in MiB}
            used_mib: {type: int, description: Use in MiB}
        cgroup: {type: str, description: 'v2, hybrid, v1 or null'}
        distribution:
          description: From /etc/os-release.
          type: dict
          contains:
            id: {type: str, description: Distribution, sample: debian}
            version_id: {type: str, description: Release, sample: '12'}
            codename: {type: str, description: Code name, sample: bookworm}
        architecture: {type: str, description: dpkg's name of the architecture, sample: amd64}
        virtualization:
          description: What the system runs in or on.
          type: dict
          contains:
            container: {type: str, description: Container manager or null, sample: podman}
            hypervisor: {type: bool, description: Whether the kernel runs in a virtual machine}
            vendor: {type: str, description: Vendor that the firmware names or null, sample: QEMU}
        python: {type: str, description: Version of the Python that ran the module, sample: 3.11.2}
        clock_synchronized:
          description: Whether something keeps the clock in time; null in containers, where it is the host's affair.
          type: bool
        reachable:
          description: The endpoints of O(reachable).
          type: list
          elements: dict
          contains:
            endpoint: {type: str, description: As given}
            error: {type: str, description: Why it does not answer or null}
"""


def gather(root: Path, nvidia_smi: str | None, nvidia_smi_timeout: float) -> dict[str, Any]:
    """Return the facts of the host whose file tree lies below root."""
    driver = nvidia_state.loaded_driver(root)
    virtualization = host_inventory.virtualization(root)
    return {
        "gpus": pci.gpus(root),
        "nvswitch": pci.nvswitch(root),
        "driver": driver,
        "nvidia_smi": nvidia_state.nvidia_smi(nvidia_smi, "nvidia" in driver["modules"], root, nvidia_smi_timeout),
        "secure_boot": host_inventory.secure_boot(root),
        "kernel": host_inventory.kernel(root),
        "memory_mib": host_inventory.memory_mib(root),
        "root_filesystem": host_inventory.file_system(os.statvfs(root)),
        "swap": host_inventory.swap(root),
        "cgroup": host_inventory.cgroup_version(root),
        "distribution": host_inventory.distribution(root),
        "architecture": host_inventory.architecture(os.uname().machine),
        "virtualization": virtualization,
        "python": platform.python_version(),
        "clock_synchronized": None if virtualization["container"] else host_inventory.clock_synchronized(),
    }


def main() -> None:
    """Gather the facts and publish them."""
    module = AnsibleModule(
        argument_spec={
            "reachable": {"type": "list", "elements": "str", "default": []},
            "reachable_timeout": {"type": "float", "default": 5},
            "nvidia_smi_timeout": {"type": "float", "default": 60},
        },
        supports_check_mode=True,
    )
    try:
        reachable = reachability.probe(module.params["reachable"], module.params["reachable_timeout"])
    except ValueError as error:
        module.fail_json(msg=f"reachable: {error}")
    facts = gather(Path("/"), module.get_bin_path("nvidia-smi"), module.params["nvidia_smi_timeout"])
    module.exit_json(changed=False, ansible_facts={"groundwork_gpu": {**facts, "reachable": reachable}})


if __name__ == "__main__":
    main()
