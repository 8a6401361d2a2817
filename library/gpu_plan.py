#!/usr/bin/python
"""Ansible module: say what a GPU host gets, or why what is wished for it can't work, before anything is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils import apt_packages, driver_record, gpu_solver, host_facts
from ansible.module_utils.apt_packages import AptError
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.driver_record import DriverSet
from ansible.module_utils.solver_case import origin_kind
from ansible.module_utils.versions import upstream

DOCUMENTATION = r"""
module: gpu_plan
short_description: Say what a GPU host gets, or why what is wished for it can't work
description:
  - Reads the host and what its apt offers, and judges the wishes for driver, CUDA, cuDNN and container toolkit together.
  - Changes nothing. All reasons against the wishes are returned at once, with the nearest choice that works.
  - A driver that is wished by its branch, or not at all by number, is the one in use if that fits. So a new version in the branch
    moves no host by itself.
  - What the host has of the driver in use counts as offered, so that an archive may drop a version that hosts have.
options:
  driver:
    description: "C(source), C(version), C(branch), C(flavour), C(desktop), as in the role nvidia_driver. None if unmanaged."
    type: dict
  cuda:
    description: The toolkits, each with C(version) and C(method).
    type: list
    elements: dict
    default: []
  cudnn:
    description: The cuDNNs, each with C(version) and C(cuda), the major version that it is for.
    type: list
    elements: dict
    default: []
  container_toolkit:
    description: Version of the container toolkit; empty for none.
    type: str
    default: ""
author: Groundwork maintainers
attributes:
  check_mode:
    support: full
"""

EXAMPLES = r"""
- name: Ask whether driver and CUDA fit this host
  gpu_plan:
    driver: {source: cuda_repository, branch: "580"}
    cuda: [{version: 12.8.1, method: runfile}]
  register: __plan
"""

RETURN = r"""
plan:
  description: >-
    What gpu_solver.solve returns. C(ok); C(reasons) and C(warnings) with code, message and remedy; C(nearest), the wishes to
    change so that it works; C(driver) with packages, pins, version and the rest of what the module nvidia_driver takes;
    C(repository) to declare first; C(cuda), C(cudnn), C(container_toolkit).
  returned: success
  type: dict
declared:
  description: Whether the host's apt has the source of the driver yet. If not, the plan has neither exact version nor pins.
  returned: success
  type: bool
settled:
  description: Whether the planned driver is the one in use.
  returned: success
  type: bool
build_packages:
  description: Packages that building the kernel modules takes and the host lacks.
  returned: success
  type: list
  elements: str
host:
  description: What the plan is for, in short: distribution, running kernel, GPUs, and the driver that is there.
  returned: success
  type: dict
"""

ROOT = Path("/")


def in_use(wish: dict[str, Any] | None, current: DriverSet | None) -> dict[str, Any] | None:
    """Return the wish with the version in use, where the wish leaves the version open and that one fits it."""
    if not wish or wish.get("version"):
        return wish
    branch = str(wish.get("branch") or "")
    same_source = current and current.wish.get("source") == wish.get("source", "distribution")
    if current and same_source and current.version.startswith(f"{branch}." if branch else ""):
        return {**wish, "version": current.version}
    return wish


def kept(current: DriverSet | None) -> list[dict[str, str]]:
    """Return the packages of the driver in use, for which the host needs no source any more."""
    packages, wish = (current.packages, current.wish) if current else ({}, {})
    source = wish.get("source", "")
    return [{"name": name, "version": version, "origin": source} for name, version in packages.items() if version]


def is_declared(source: str, offers: dict[str, list[dict[str, str]]]) -> bool:
    """Tell whether the host's apt has the source of the driver: whether any of the packages comes from such a one."""
    kinds = {origin_kind(offer["origin"]) for found in offers.values() for offer in found}
    return source == "distribution" or bool(kinds - {"distribution"} if source == "mirror" else kinds & {source})


def is_settled(driver: dict[str, Any] | None, current: DriverSet | None) -> bool:
    """Tell whether the record says that the planned version is in use, so that there is nothing to be fetched."""
    return bool(driver and driver["version"] and current and current.version == upstream(driver["version"]))


def missing_build_packages(driver: dict[str, Any] | None, installed: dict[str, apt_packages.Package]) -> list[str]:
    """Return what the host lacks to build the modules of a planned driver."""
    wanted = ["dkms", *driver["headers"], *driver["compilers"]] if driver and driver["dkms"] else []
    return [name for name in wanted if name not in installed]


def main() -> None:
    """Read, ask apt, judge."""
    module = AnsibleModule(
        argument_spec={
            "driver": {"type": "dict"},
            "cuda": {"type": "list", "elements": "dict", "default": []},
            "cudnn": {"type": "list", "elements": "dict", "default": []},
            "container_toolkit": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )

    def run(argv: list[str]) -> tuple[int, str, str]:
        answer: tuple[int, str, str] = module.run_command(argv, errors="surrogate_then_replace")
        return answer

    facts = host_facts.gather(ROOT, module.get_bin_path, nvidia_smi_timeout=60)
    try:
        current = driver_record.read(ROOT).current
        wishes = {**module.params, "driver": in_use(module.params["driver"], current)}
        installed = apt_packages.installed(run)
        offers = apt_packages.offers(run, gpu_solver.questions(facts, wishes))
    except (AptError, driver_record.DamagedRecordError) as error:
        module.fail_json(msg=f"{error}")
    # The packages of a source that is not there yet are judged by the catalog alone.
    declared = is_declared((wishes["driver"] or {}).get("source", "distribution"), offers)
    plan = gpu_solver.solve(facts, wishes, offers if declared else None, kept=kept(current))
    module.exit_json(
        changed=False,
        plan=plan,
        declared=declared,
        settled=is_settled(plan["driver"], current),
        build_packages=missing_build_packages(plan["driver"], installed),
        host={
            "distribution": f"{facts['distribution']['id']} {facts['distribution']['version_id']}",
            "kernel": facts["kernel"]["running"],
            "gpus": [gpu["id"] for gpu in facts["gpus"]],
            "driver": {key: facts["driver_drift"][key] for key in ("installed", "loaded", "state", "message")},
        },
    )


if __name__ == "__main__":
    main()
