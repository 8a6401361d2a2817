"""Filters that judge the facts of a host before anything is changed on it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ansible.module_utils

DOCUMENTATION = r"""
name: preflight_findings
short_description: Say what keeps a host from being provisioned
description:
  - Compares the facts of groundwork_facts with a policy, and returns every fault at once.
positional: policy
options:
  _input:
    description: The fact tree C(groundwork_gpu).
    type: dict
    required: true
  policy:
    description: The thresholds, see C(__preflight_policy) of the role preflight.
    type: dict
    required: true
"""

EXAMPLES = r"""
findings: "{{ ansible_facts['groundwork_gpu'] | preflight_findings(__preflight_policy) }}"
"""

RETURN = r"""
_value:
  description: One entry for each fault, with the check's name, a message and a remedy.
  type: list
  elements: dict
"""

# ansible.cfg makes module_utils/ known to modules; a filter, which runs on the controller, has to find it itself.
ansible.module_utils.__path__.append(str(Path(__file__).parents[1] / "module_utils"))
solver_case, solver_cuda, versions = (
    importlib.import_module(f"ansible.module_utils.{name}") for name in ("solver_case", "solver_cuda", "versions")
)

Tree = Mapping[str, Any]
Findings = Iterator[dict[str, str]]

# Firmware and kernel keep a part of the installed memory for themselves: with half a GiB for a crash kernel, a machine
# with 32 GiB reports about 31. A sixteenth has room for that, and is far from letting the next smaller machine pass.
RESERVED_MEMORY = 1 / 16

# By NVML's return value, which nvidia-smi exits with.
NVIDIA_SMI_REMEDIES = {
    4: "run as root, and check the mode of /dev/nvidia*",
    12: "install the driver's libnvidia-ml.so.1 in the version of the loaded module",
    15: "the GPU fell off the bus: reset it, or reboot the host",
    18: "load the modules of the installed version again once nothing holds the GPUs, or reboot the host",
}


def _finding(check: str, message: str, remedy: str) -> dict[str, str]:
    return {"check": check, "message": message, "remedy": remedy}


def _system(facts: Tree, policy: Tree) -> Findings:
    name, release = facts["distribution"]["id"], facts["distribution"]["version_id"]
    supported = policy["supported_releases"]
    if release not in map(str, supported.get(name, [])):
        known = "; ".join(f"{key} {', '.join(map(str, value))}" for key, value in supported.items())
        yield _finding(
            "distribution",
            f"the system is {name} {release}, supported are: {known}",
            "install a supported release, or take the host out of the inventory",
        )
    if facts["architecture"] not in policy["architectures"]:
        yield _finding(
            "architecture",
            f"the machine is {facts['architecture']}, supported are: {', '.join(policy['architectures'])}",
            "take the host out of the inventory: NVIDIA has no packages for it",
        )
    if versions.numbers(facts["python"]) < versions.numbers(policy["python_min"]):
        yield _finding(
            "python",
            f"the host's Python is {facts['python']}, at least {policy['python_min']} is needed",
            "install a newer python3, or set ansible_python_interpreter to one",
        )
    if facts["cgroup"] in ("v1", "hybrid"):
        yield _finding(
            "cgroup",
            f"the host mounts cgroup {facts['cgroup']}: K3s from 1.35 on does not start on it",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )
    if facts["clock_synchronized"] is False:
        yield _finding(
            "clock",
            "nothing keeps the clock in time: certificates, tokens and metrics go wrong",
            "enable systemd-timesyncd or chrony, and check that its time servers answer",
        )


def _sizes(facts: Tree, policy: Tree) -> Findings:
    memory, least = (facts["memory_mib"] or 0) / 1024, policy["memory_min_gib"]
    if memory < least * (1 - RESERVED_MEMORY):
        yield _finding(
            "memory",
            f"the kernel has {memory:.1f} GiB of memory, a host with {least} GiB has at least "
            f"{least * (1 - RESERVED_MEMORY):.1f}",
            "add memory, or lower preflight_memory_min_gib",
        )
    used, most = facts["root_filesystem"]["used_percent"], policy["root_used_max_percent"]
    if used > most:
        yield _finding(
            "root_filesystem",
            f"/ is {used} % full, at most {most} % leaves room for drivers and images",
            "free space (apt-get clean, journalctl --vacuum-size=1G), grow it, or raise preflight_root_used_max_percent",
        )


def _reachability(facts: Tree, _policy: Tree) -> Findings:
    for endpoint in facts["reachable"]:
        if endpoint["error"]:
            yield _finding(
                "reachable",
                f"{endpoint['endpoint']} can't be reached: {endpoint['error']}",
                "check name resolution, route and firewall, or correct preflight_reachable",
            )


def _gpus(facts: Tree, policy: Tree) -> Findings:
    loaded = "nvidia" in facts["driver"]["modules"]
    if policy["gpu_required"] and not facts["gpus"]:
        yield _finding(
            "gpu",
            "the PCI bus shows no NVIDIA GPU",
            "seat the card, pass it through to the machine, or set preflight_gpu_required: false for this host",
        )
    if policy["driver_required"] and facts["gpus"] and not loaded:
        modules = ", ".join(facts["driver"]["modules"]) or "none"
        yield _finding(
            "driver",
            f"the nvidia module is not loaded (GPU modules that are: {modules})",
            "see modprobe nvidia and journalctl -k for the cause; with nouveau loaded, reboot the host",
        )
    if facts["secure_boot"] and facts["gpus"] and not loaded:
        yield _finding(
            "secure_boot",
            "Secure Boot is on: the kernel refuses a module whose key is not enrolled",
            "use the distribution's signed modules, or enrol the key of DKMS (mokutil --import, then the console)",
        )
    if loaded:
        yield from _unbound(facts)
        yield from _nvidia_smi(facts)


def _unbound(facts: Tree) -> Findings:
    # A GPU that is handed to virtual machines is out of the driver's reach on purpose.
    others = [gpu for gpu in facts["gpus"] if gpu["driver"] not in ("nvidia", "vfio-pci")]
    if others:
        listed = ", ".join(f"{gpu['address']} ({gpu['id']}, bound to {gpu['driver'] or 'nothing'})" for gpu in others)
        yield _finding(
            "driver",
            f"the nvidia module {facts['driver']['version']} ({facts['driver']['flavour']}) is loaded, but does not drive "
            f"{listed}",
            "a Blackwell GPU needs the open modules and driver 570 or newer; Maxwell, Pascal and Volta need the proprietary "
            "modules of driver 580 or older; the line of journalctl -k with NVRM and the address says which",
        )


def _nvidia_smi(facts: Tree) -> Findings:
    smi = facts["nvidia_smi"]
    if not smi["path"]:
        yield _finding(
            "driver",
            f"the nvidia module {facts['driver']['version']} is loaded, but there is no nvidia-smi",
            "install the driver's utilities in the version of the module",
        )
    elif smi["timed_out"]:
        yield _finding("driver", "nvidia-smi hangs: the driver does not answer", "reset the GPU, or reboot the host")
    elif smi["exit_code"]:
        yield _finding(
            "driver",
            f"nvidia-smi -L ends with {smi['exit_code']} (module {facts['driver']['version']}): {smi['message']}",
            NVIDIA_SMI_REMEDIES.get(smi["exit_code"], "see journalctl -k for lines with NVRM"),
        )
    else:
        expected = [gpu["address"] for gpu in facts["gpus"] if gpu["driver"] == "nvidia"]
        if len(smi["gpus"]) < len(expected):
            seen = [gpu["address"] for gpu in smi["gpus"]]
            missing = [] if None in seen else [address for address in expected if address not in seen]
            yield _finding(
                "driver",
                f"nvidia-smi lists {len(seen)} of {len(expected)} GPUs, missing: {', '.join(missing) or 'unknown'}",
                "see journalctl -k for NVRM and Xid lines of these GPUs",
            )


def _cuda(facts: Tree, policy: Tree) -> Findings:
    driver, judgement = policy["driver_version"] or facts["driver"]["version"], solver_case.Judgement()
    for version in policy["cuda_versions"] if driver else ():
        solver_cuda.judge_driver(version, driver, judgement)
    for check, found in (("cuda", judgement.reasons), ("cuda_compatibility", judgement.warnings)):
        yield from (_finding(check, item["message"], item["remedy"]) for item in found)


def preflight_findings(facts: Tree, policy: Tree) -> list[dict[str, str]]:
    """Return every fault of a host, whatever its weight, in the order a person would mend them."""
    checks = (_system, _sizes, _reachability, _gpus, _cuda)
    return [finding for check in checks for finding in check(facts, policy)]


def preflight_report(findings: Iterable[Mapping[str, str]]) -> str:
    """Return the findings as text, one paragraph each."""
    return "\n".join(f"- {item['check']}: {item['message']}.\n  Remedy: {item['remedy']}." for item in findings)


class FilterModule:
    """The filters as Ansible finds them."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"preflight_findings": preflight_findings, "preflight_report": preflight_report}
