#!/usr/bin/python
"""Keep the packages of NVIDIA's container toolkit at one version, and held."""

from __future__ import annotations

from functools import partial

from ansible.module_utils.apt_packages import OPTIONS, AptError, Run, checked, hold, installed, simulate
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.container_toolkit import PACKAGES

DOCUMENTATION = r"""
module: container_toolkit_packages
short_description: Keep the packages of NVIDIA's container toolkit at one version, and held
description:
  - Brings all four packages to the version, up or down, in one transaction of apt, and holds them.
  - Refuses, before anything is changed, a transaction that would remove a package.
  - Fetches the lists of O(source), and no others, if those that are there do not have the version.
  - In a dry run before the repository is declared, it counts on the repository having the version.
options:
  version:
    description: The version, with its Debian revision.
    type: str
    required: true
  source:
    description: The file of apt that declares the repository.
    type: path
    required: true
author: Groundwork maintainers
"""

EXAMPLES = r"""
- name: Install the toolkit
  container_toolkit_packages:
    version: 1.20.0-1
    source: /etc/apt/sources.list.d/groundwork-nvidia-container-toolkit.sources
"""

RETURN = r"""
before:
  description: The version that each package had; those that were not installed are not there.
  returned: success
  type: dict
"""

#: How apt-get says that it does not know the package, or the version.
UNKNOWN = ("Unable to locate package", "was not found")


def make_room(run: Run, wanted: list[str]) -> None:
    """Raise an error if the transaction is not possible, or takes a package away."""
    removed = [name for name, change in simulate(run, wanted).items() if change.after is None]
    if removed:
        raise AptError(f"apt would remove {', '.join(removed)} for it; remove what is not needed yourself, and repeat")


def install(module: AnsibleModule, run: Run, wanted: list[str]) -> None:
    """Install exactly these, if a simulation succeeds; in a dry run, stop after it."""
    try:
        make_room(run, wanted)
    except AptError as error:
        if not any(words in str(error) for words in UNKNOWN):
            raise
        if module.check_mode:
            return
        only = [f"-oDir::Etc::SourceList={module.params['source']}", "-oDir::Etc::SourceParts=-", "-oAPT::Get::List-Cleanup=0"]
        checked(run, ["apt-get", *only, "update"])
        make_room(run, wanted)
    if not module.check_mode:
        checked(run, ["apt-get", *OPTIONS, "-oDPkg::Lock::Timeout=60", "--no-remove", "install", *wanted])


def main() -> None:
    """Compare, install, hold."""
    module = AnsibleModule(
        argument_spec={"version": {"type": "str", "required": True}, "source": {"type": "path", "required": True}},
        supports_check_mode=True,
    )
    version = module.params["version"]
    run = partial(module.run_command, environ_update={"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"})
    before = {name: package for name, package in installed(run).items() if name in PACKAGES}
    right = len([package for package in before.values() if package.version == version and package.in_order]) == len(PACKAGES)
    held = right and all(package.held for package in before.values())
    try:
        if not right:
            install(module, run, [f"{name}={version}" for name in PACKAGES])
        if not held and not module.check_mode:
            hold(run, PACKAGES, True)
    except AptError as error:
        module.fail_json(
            f"The container toolkit can't be brought to version {version}: {error}\n"
            "`apt-cache madison nvidia-container-toolkit` lists the versions that there are."
        )
    shown = [f"{name} {package.version}{' held' if package.held else ''}\n" for name, package in sorted(before.items())]
    module.exit_json(
        changed=not held,
        before={name: package.version for name, package in before.items()},
        diff={"before": "".join(shown), "after": "".join(f"{name} {version} held\n" for name in sorted(PACKAGES))},
    )


if __name__ == "__main__":
    main()
