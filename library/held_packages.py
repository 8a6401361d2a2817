#!/usr/bin/python
"""Keep packages at their versions, and held, in one transaction of apt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import partial

from ansible.module_utils.apt_packages import OPTIONS, AptError, Change, Package, Run, checked, hold, installed, simulate
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: held_packages
short_description: Keep packages at their versions, and held, in one transaction of apt
description:
  - Brings packages to their versions, up or down, removes others, all in one transaction, and holds what it brought.
  - Refuses, before anything is changed, a transaction that would remove a package that it was not asked to remove, or move one
    that somebody else holds.
  - Fetches the lists of O(source), and no others, if those that are there do not have a version. On a host that is as wanted,
    no network is used.
  - In a dry run before the repository is declared, it counts on the repository having the versions.
options:
  packages:
    description: Names with versions, such as V(cuda-toolkit-12-8=12.8.1-*). A version may have wildcards.
    type: list
    elements: str
    required: true
  parts:
    description: Regular expressions of names. Installed packages in which one is found are held too, whatever brought them.
    type: list
    elements: str
    default: []
  absent:
    description: Regular expressions of names. Packages in which one is found are removed with their configuration.
    type: list
    elements: str
    default: []
  source:
    description: The file of apt that declares the repository of O(packages).
    type: path
author: Groundwork maintainers
"""

EXAMPLES = r"""
- name: Install a toolkit, and keep all of it as it is
  held_packages:
    packages: [cuda-toolkit-12-8=12.8.1-*]
    parts: ["-12-8(-|$)"]
    source: /etc/apt/sources.list.d/groundwork-cuda.sources
"""

RETURN = r"""
before:
  description: The version that each package had which is wanted, a part, or was changed; those not installed are not there.
  returned: success
  type: dict
"""

#: How apt-get says that it does not know the package, or the version.
UNKNOWN = ("Unable to locate package", "was not found")
#: Seconds to wait for another package manager.
LOCK_TIMEOUT = 120
#: The parts are held by this module itself; what others hold is looked for in the plan.
SETTING = "APT::Ignore-Hold=true"

Packages = Mapping[str, Package]


def matching(names: Iterable[str], patterns: list[str]) -> set[str]:
    """Return the names in which one of the regular expressions is found."""
    return {name for name in names if any(re.search(pattern, name) for pattern in patterns)}


def is_right(package: Package | None, version: str) -> bool:
    """Tell whether a package is whole and of the version."""
    return package is not None and package.in_order and fnmatchcase(package.version, version)


def plan(run: Run, before: Packages, arguments: list[str], ours: set[str]) -> dict[str, Change]:
    """Ask apt what it would change; AptError if that is not possible, or is none of our business."""
    changes: dict[str, Change] = simulate(run, arguments, [SETTING])
    gone = {f"{name}-" for name, change in changes.items() if change.after is None} - set(arguments)
    if gone:
        names = ", ".join(sorted(name[:-1] for name in gone))
        raise AptError(f"apt would remove {names} for it; remove what is not needed yourself, and repeat")
    if moved := sorted(name for name in changes if name in before and before[name].held and name not in ours):
        raise AptError(f"apt would change {', '.join(moved)} for it, which somebody holds; `apt-mark unhold` allows it")
    return changes


def change(module: AnsibleModule, run: Run, before: Packages, wrong: dict[str, str], gone: set[str]) -> dict[str, Change]:
    """Do all of it, if a simulation succeeds; in a dry run, stop after that. Return the changes."""
    arguments = [*(f"{name}={version}" for name, version in wrong.items()), *(f"{name}-" for name in sorted(gone))]
    ours = {*wrong, *gone, *matching(before, module.params["parts"])}
    try:
        changes = plan(run, before, arguments, ours)
    except AptError as error:
        if not module.params["source"] or not any(words in str(error) for words in UNKNOWN):
            raise
        if module.check_mode:
            return {**dict.fromkeys(gone, Change(None, None)), **{name: Change(None, version) for name, version in wrong.items()}}
        only = [f"-oDir::Etc::SourceList={module.params['source']}", "-oDir::Etc::SourceParts=-", "-oAPT::Get::List-Cleanup=0"]
        checked(run, ["apt-get", *only, "update"])
        changes = plan(run, before, arguments, ours)
    if not module.check_mode:
        options = [*OPTIONS, f"-o{SETTING}", f"-oDPkg::Lock::Timeout={LOCK_TIMEOUT}", "--purge"]
        checked(run, ["apt-get", *options, "install", *arguments])
    return changes


def main() -> None:
    """Compare, change, hold."""
    words = {"type": "list", "elements": "str"}
    module = AnsibleModule(
        argument_spec={
            "packages": {**words, "required": True},
            "parts": {**words, "default": []},
            "absent": {**words, "default": []},
            "source": {"type": "path"},
        },
        supports_check_mode=True,
    )
    wanted = dict(text.partition("=")[::2] for text in module.params["packages"])
    run = partial(module.run_command, environ_update={"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"})
    before: Packages = installed(run)
    wrong = {name: version for name, version in wanted.items() if not is_right(before.get(name), version)}
    gone = matching(before, module.params["absent"])
    try:
        changes = change(module, run, before, wrong, gone) if wrong or gone else {}
        after = {name: package.version for name, package in before.items()}
        after |= {name: item.after for name, item in changes.items()}
        held = {*wanted, *matching((name for name in after if after[name]), module.params["parts"])}
        # What apt installs it does not hold any more.
        loose = {name for name in held if name not in before or not before[name].held or name in {*wrong, *changes}}
        if not module.check_mode:
            hold(run, loose, True)
    except AptError as error:
        wish = ", ".join([*module.params["packages"], *(f"no {name}" for name in sorted(gone))])
        module.fail_json(
            f"apt can't bring the host to {wish}: {error}\n`apt-cache madison <package>` lists the versions that there are."
        )
    shown = sorted(held | changes.keys())
    old = [f"{name} {before[name].version}{' held' * before[name].held}\n" for name in shown if name in before]
    new = [f"{name} {after[name]}{' held' * (name in held)}\n" for name in shown if after[name]]
    module.exit_json(
        changed=bool(gone or loose),
        before={name: before[name].version for name in shown if name in before},
        diff={"before": "".join(old), "after": "".join(new)},
    )


if __name__ == "__main__":
    main()
