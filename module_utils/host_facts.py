"""The facts that decide what a GPU host needs, as one tree; library/groundwork_facts.py documents each."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.module_utils import driver_facts, host_inventory, nvidia_state, pci


def gather(root: Path, find: Callable[[str], str | None], nvidia_smi_timeout: float) -> dict[str, Any]:
    """Return the facts of the host whose file tree lies below root; find returns the path of a program or None."""
    driver = nvidia_state.loaded_driver(root)
    virtualization = host_inventory.virtualization(root)
    gpus = pci.gpus(root)
    kernel = host_inventory.kernel(root)
    packages = driver_facts.driver_packages(root)
    by_dkms = not driver_facts.are_prebuilt(packages)
    kernel["need_modules"] = host_inventory.kernels_that_need_modules(kernel, by_dkms=by_dkms)
    return {
        "gpus": gpus,
        "nvswitch": pci.nvswitch(root),
        "driver": driver,
        "nvidia_smi": nvidia_state.nvidia_smi(find("nvidia-smi"), "nvidia" in driver["modules"], root, nvidia_smi_timeout),
        "driver_packages": packages,
        "driver_drift": driver_facts.drift(
            wanted=driver_facts.wanted_version(root),
            installed=driver_facts.installed_version(packages),
            loaded=driver["version"],
            modules=driver_facts.will_boot(root, kernel["may_boot"], find("zstd")),
            needed=kernel["need_modules"],
            has_gpu=bool(gpus),
        ),
        "persistence": driver_facts.persistence(root),
        "secure_boot": host_inventory.secure_boot(root),
        "module_key": host_inventory.module_key(root, find("mokutil")),
        "kernel": kernel,
        "compilers": host_inventory.compilers(root),
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
