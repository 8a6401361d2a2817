#!/usr/bin/python
"""Ansible module: the facts that decide what a GPU host needs."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils import host_facts, reachability
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: groundwork_facts
short_description: Gather the facts that decide what a GPU host needs
description:
  - Reads GPUs, driver, kernel, compilers, memory, disk, distribution and clock of a host in one call and changes nothing.
  - Needs Python's standard library only; lspci is not used, and nvidia-smi runs only with a loaded NVIDIA driver.
  - Works without privileges, save for the switches of NVLink 5, for the container manager of a few containers, and for whether
    the firmware trusts the key of DKMS.
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
            may_boot: {type: list, elements: str, description: The installed ones and the running one if it has modules}
            need_modules:
              description:
                - Those of C(may_boot) that must have the modules of a driver. The running one, the newest, and each other one
                  that has headers; of the latter none if the modules are the distribution's own, in packages for a kernel each.
              type: list
              elements: str
            compilers:
              description: Major version of the gcc that built each release that runs or may boot; null if it can't be told.
              type: dict
              sample: {6.8.0-90-generic: 13}
        compilers:
          description: Major versions of the installed gcc programs; C(gcc) is the default one and null if there is none.
          type: dict
          sample: {gcc: 12, gcc-12: 12}
        module_key:
          description: The key that DKMS signs modules with, for Secure Boot.
          type: dict
          contains:
            path: {type: str, description: Its certificate or null, sample: /var/lib/dkms/mok.pub}
            enrolled: {type: bool, description: Whether the firmware trusts it; null if that can't be told}
        driver_packages:
          description: Packages of the NVIDIA driver whose files are on the host, by name.
          type: list
          elements: dict
          contains:
            name: {type: str, description: Name of the binary package, sample: libnvidia-ml1}
            version: {type: str, description: Version of the package, sample: 535.261.03-1}
            source: {type: str, description: Name of the source package, sample: nvidia-graphics-drivers}
        persistence: {type: bool, description: Whether nvidia-persistenced runs and was started with persistence mode}
        driver_drift:
          description: Whether the driver that was asked for, the installed one and the loaded one are the same.
          type: dict
          contains:
            wanted: {type: str, description: Version that the role nvidia_driver was last asked for or null}
            installed: {type: str, description: Version of the libraries that packages have installed or null}
            loaded: {type: str, description: Version of the loaded module or null}
            will_boot:
              description:
                - Version of the module file for each release of C(kernel.may_boot), null for one without module.
                - The word C(unreadable) for a damaged file, and for one that needs the missing program zstd.
              type: dict
              sample: {6.8.0-90-generic: 580.95.05}
            state: {type: str, description: 'in_order, reboot_pending, mismatch or not_installed'}
            message: {type: str, description: One line that says what differs and what to do}
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
    facts = host_facts.gather(Path("/"), module.get_bin_path, module.params["nvidia_smi_timeout"])
    module.exit_json(changed=False, ansible_facts={"groundwork_gpu": {**facts, "reachable": reachable}})


if __name__ == "__main__":
    main()
