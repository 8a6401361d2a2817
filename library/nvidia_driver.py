#!/usr/bin/python
"""Ansible module: bring the NVIDIA driver of a host to one set of packages and modules, or back to the set before."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.module_utils import (
    apt_packages,
    driver_plan,
    driver_record,
    driver_store,
    driver_transaction,
    gpu_catalog,
    host_inventory,
    nvidia_state,
)
from ansible.module_utils.apt_packages import AptError, Package
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.driver_host import DriverError, Host
from ansible.module_utils.driver_plan import Wish
from ansible.module_utils.driver_record import DamagedRecordError, DriverSet, Record

DOCUMENTATION = r"""
module: nvidia_driver
short_description: Exchange the NVIDIA driver of a host as one transaction with a way back
description:
  - Brings the packages of the driver, their holds, apt's pins and the kernel modules to one set, all of it or nothing.
  - The modules are built by DKMS beside the system before any package is touched, for each kernel that may boot. A driver that
    does not build is refused while the old one is whole.
  - Keeps the packages and modules of the set in use and of the one before it in C(/var/lib/groundwork/nvidia_driver), so that
    O(state=previous) needs neither network nor compiler.
  - A change that fails is undone at once. One that was interrupted is undone at the beginning of the next run.
  - Removes no package but those of a driver, whatever source they came from (C(OWNED) in gpu_catalog.py).
  - Neither loads nor unloads modules; C(reboot_reason) of the result says if the loaded one is another.
  - Writes what apt, dpkg and DKMS print to C(/var/log/groundwork/nvidia_driver.log), as it happens.
options:
  state:
    description: C(present) installs the wished set, C(absent) removes the driver, C(previous) goes back to the set before.
    type: str
    choices: [present, absent, previous]
    default: present
  version:
    description: NVIDIA's version of the set, such as 535.309.01.
    type: str
    default: ""
  packages:
    description: Packages to ask apt for; what they depend on comes along.
    type: list
    elements: str
    default: []
  pins:
    description: Pins that keep the set together, in the words of apt_preferences(5).
    type: list
    elements: dict
    default: []
    suboptions:
      package: {description: "Name, glob, or C(src:) and the name of a source package.", type: str, required: true}
      version: {description: Version or glob., type: str, required: true}
  modules:
    description: Names of the main module's file, such as nvidia-current.
    type: list
    elements: str
    default: []
  source:
    description: Where the packages come from, in the words of the solver. A later run that leaves the version open stays with it.
    type: str
    default: ""
  flavour:
    description: Whose modules they must be; empty if that does not matter.
    type: str
    choices: ["", open, proprietary]
    default: ""
  require_way_back:
    description: Whether to refuse a change if a package of the driver in use can't be had any more, and so could not be put back.
    type: bool
    default: true
  retry:
    description: Whether to install a version that somebody has gone back from with O(state=previous).
    type: bool
    default: false
  lock_timeout:
    description: Seconds to wait for another package manager.
    type: int
    default: 60
author: Groundwork maintainers
attributes:
  check_mode:
    support: full
"""

EXAMPLES = r"""
- name: Install a driver
  nvidia_driver:
    version: 535.309.01
    packages: [nvidia-kernel-dkms, nvidia-smi, libcuda1]
    pins:
      - {package: "src:nvidia-graphics-drivers", version: 535.309.01-*}
    modules: [nvidia-current]

- name: Go back
  nvidia_driver:
    state: previous
"""

RETURN = r"""
before: {description: Version of the driver before., returned: success, type: str}
after: {description: Version of the driver after., returned: success, type: str}
packages:
  description: What changed, or would, by package.
  returned: success
  type: dict
flavour: {description: Flavour of the set in use; empty if that does not matter., returned: success, type: str}
exchanged: {description: Whether packages were exchanged in this run., returned: success, type: bool}
undone: {description: Whether an interrupted change was undone first., returned: success, type: bool}
previous: {description: Version that C(state=previous) would bring back; null if there is none., returned: success, type: str}
no_way_back:
  description: Packages of the set in use whose files can't be had, so that a later change could not come back to it.
  returned: success
  type: list
  elements: str
reboot_reason:
  description: Why the host must be rebooted before the installed driver is the loaded one; empty if it is, or none is loaded.
  returned: success
  type: str
seconds: {description: How long each step took., returned: success, type: dict}
"""

ROOT = Path("/")
LOCK = "run/lock/groundwork-nvidia-driver"
LOG = "var/log/groundwork/nvidia_driver.log"
ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1", "LC_ALL": "C.UTF-8", "LANGUAGE": "C"}
QUIET = ("dpkg-query", "modinfo", "dpkg-deb", "apt-cache")


def make_host(module: AnsibleModule) -> Host:
    """Return the host, whose programs are run with their output in the log."""
    log_file = ROOT / LOG

    def log(text: str) -> None:
        if module.check_mode:
            return
        # A full disk must not keep a driver from being put back.
        with suppress(OSError):
            log_file.parent.mkdir(parents=True, exist_ok=True)
            with log_file.open("a") as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text.rstrip()}\n")

    def run(argv: list[str]) -> tuple[int, str, str]:
        program = module.get_bin_path(argv[0])
        if program is None:
            return 127, "", f"E: {argv[0]} is not installed"
        quiet = argv[0] in QUIET or argv[1] == "showauto"
        if not quiet:
            log(f"$ {' '.join(argv)}")
        code, out, err = module.run_command([program, *argv[1:]], environ_update=ENVIRONMENT, errors="surrogate_then_replace")
        if not quiet:
            log(f"{out}{err}[{code}]")
        return code, out, err

    kernel = host_inventory.kernel(ROOT)
    built, signed = (host_inventory.kernels_that_need_modules(kernel, by_dkms=by_dkms) for by_dkms in (True, False))
    return Host(ROOT, run, built, signed, module.params["lock_timeout"], log)


@contextmanager
def only_run(module: AnsibleModule) -> Iterator[None]:
    """Keep a second run out: it would take the change of this one for an interrupted one, and undo it."""
    if module.check_mode:
        yield
        return
    path = ROOT / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DriverError(
                f"another run changes the driver of this host. Nothing was changed. Remedy: let it end (`tail -f /{LOG}` "
                f"shows it at work), and run this again"
            ) from error
        yield


def undo_interrupted(module: AnsibleModule, host: Host, record: Record) -> bool:
    """Undo what an earlier run left half-way; tell whether there was something."""
    if record.transaction is None:
        return False
    if not module.check_mode:
        driver_store.wait_for_lock(host)
        before = record.transaction["before"]
        if left := driver_transaction.undo(host, record):
            raise DriverError(
                f"an earlier change of the driver was interrupted, and {before} can't be put back: {'; '.join(left)}. Remedy: "
                f"remove the cause (`dpkg --audit` and /{LOG} tell more), and run this again"
            )
    return True


def goal_of(module: AnsibleModule, host: Host, record: Record, packages: dict[str, Package], wish: Wish) -> DriverSet:
    """Return the set to bring the host to."""
    if module.params["state"] == "previous":
        if record.previous is None:
            raise DriverError(
                "there is no driver to go back to: the record (/var/lib/groundwork/driver.json) has none before the one in use"
            )
        later = {name: None for name in packages if wish.owns(name) and name not in record.previous.packages}
        return replace(record.previous, packages={**later, **record.previous.packages})
    if module.params["state"] == "absent":
        changes = driver_plan.plan_removal(host, wish, packages)
        config: dict[str, str | None] = {driver_plan.PREFERENCES: None, driver_plan.UNATTENDED: None}
        return DriverSet(packages={name: change.after for name, change in changes.items()}, config=config)
    return driver_plan.new_set(wish, driver_plan.plan(host, wish, packages))


def moved(before: DriverSet, after: DriverSet) -> dict[str, dict[str, str | None]]:
    """Return what changes between two sets, by package."""
    names = sorted(before.packages.keys() | after.packages.keys())
    pairs = {name: {"before": before.packages.get(name), "after": after.packages.get(name)} for name in names}
    return {name: pair for name, pair in pairs.items() if pair["before"] != pair["after"]}


def differences(before: DriverSet, after: DriverSet) -> list[dict[str, str]]:
    """Return the diff of a change: packages with their holds, and apt's files."""

    def text(part: DriverSet) -> str:
        holds = set(part.holds)
        return "".join(
            f"{name} {version}{' held' * (name in holds)}\n" for name, version in sorted(part.packages.items()) if version
        )

    def entry(path: str, old: str | None, new: str | None) -> dict[str, str]:
        return {"before_header": path, "after_header": path, "before": old or "", "after": new or ""}

    paths = [path for path in after.config if before.config.get(path) != after.config[path]]
    return [
        entry("packages", text(before), text(after)),
        *(entry(path, before.config.get(path), after.config[path]) for path in paths),
    ]


def change(module: AnsibleModule, host: Host, record: Record, wish: Wish) -> dict[str, Any]:
    """Compare, prepare, exchange; return the result."""
    begun, to_undo_is_to_go_back = record.transaction, module.params["state"] == "previous" and not record.back
    undone = undo_interrupted(module, host, record)
    if begun and (module.check_mode or to_undo_is_to_go_back):
        # What apt would do then can't be asked while packages are half-way.
        before, after = begun["after"], begun["before"]
        if not module.check_mode:
            driver_transaction.reject(record, before)
            driver_record.write(ROOT, record)
        return {
            "changed": True, "undone": True, "before": before.version, "after": after.version,
            "packages": moved(before, after), "diff": differences(before, after),
        }  # fmt: skip
    packages = apt_packages.installed(host.run)
    if broken := apt_packages.unfinished(packages):
        raise DriverError(
            f"dpkg has left packages half-way: {', '.join(broken)}. Nothing was changed. Remedy: `dpkg --configure -a`, and "
            f"`apt-get --fix-broken install` if that is not enough"
        )
    current, state = record.current, module.params["state"]
    settled = current and state != "previous" and current.wish == (wish.record() if state == "present" else {})
    if current and settled and not driver_plan.faults(host, current, packages):
        return {"changed": undone, "undone": undone, "before": current.version, "after": current.version, "packages": {}}
    rejected = record.rejected if state == "present" and not settled and not module.params["retry"] else None
    if rejected and rejected["version"] == wish.version:
        raise DriverError(
            f"driver {wish.version} was rolled back on this host ({rejected['since']}), and driver "
            f"{current.version if current else 'none'} is in use. Nothing was changed. Remedy: let the inventory ask for the "
            f"driver in use, or set nvidia_driver_retry: true to try {wish.version} again"
        )
    after = goal_of(module, host, record, packages, wish)
    before = driver_plan.present_set(host, after, wish, packages, current)
    moving = moved(before, after)
    if not moving:
        after.sources = before.sources
    found = driver_plan.faults(host, after, packages)
    diff = differences(before, after)
    result = {"undone": undone, "before": before.version, "after": after.version, "packages": moving}
    if not module.check_mode:
        result["no_way_back"] = prepare_and_exchange(module, host, record, before, after)
        result["exchanged"] = bool(moving)
    # The record alone may change: an installed driver that is adopted, a wish in other words.
    return {**result, "changed": bool(undone or found), "diff": diff}


def prepare_and_exchange(module: AnsibleModule, host: Host, record: Record, before: DriverSet, after: DriverSet) -> list[str]:
    """Do what can fail without harm, then exchange the sets; return the packages for which there is no way back."""
    moving = moved(before, after).keys()
    driver_store.wait_for_lock(host)
    with host.step("fetch packages"):
        lost = driver_store.fetch(host, before, required=())
        # Who goes back leaves a driver that is bad; that its files are lost must not keep him there.
        back = module.params["state"] == "previous"
        if module.params["require_way_back"] and not back and (gone := sorted(moving & set(lost))):
            raise DriverError(
                f"the files of {', '.join(gone)} in the installed version can't be had any more, so there would be no way back. "
                f"Nothing was changed. Remedy: put them into /{driver_record.STORE}/debs, or set "
                f"nvidia_driver_require_way_back: false"
            )
        missing: list[str] = driver_store.fetch(host, after, required=moving)
    if back:
        host.kernels = driver_store.kernels_to_go_back_with(host, before, after)
    driver_store.require_space(host, after, apt_packages.installed(host.run))
    with host.step("build modules"):
        driver_store.build_modules(host, after)
    with host.step("exchange"):
        driver_transaction.exchange(host, record, before, after, back=back)
    driver_store.prune(host, record)
    return missing


def reboot_reason(installed: str, flavour: str) -> str:
    """Say why the loaded module is not that of the set which is in use after the run."""
    loaded = nvidia_state.loaded_driver(ROOT)
    if not loaded["version"] or (loaded["version"] == installed and flavour in ("", loaded["flavour"] or flavour)):
        return ""
    kinds = (f"{loaded['version']} {loaded['flavour'] or ''}", f"{installed or 'none'} {flavour}")
    return "driver {} stays loaded until the next boot, {} is installed".format(*map(str.strip, kinds))


def main() -> None:
    """Bring the driver to the wished set."""
    pin = {"package": {"type": "str", "required": True}, "version": {"type": "str", "required": True}}
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent", "previous"], "default": "present"},
            "version": {"type": "str", "default": ""},
            "packages": {"type": "list", "elements": "str", "default": []},
            "pins": {"type": "list", "elements": "dict", "default": [], "options": pin},
            "modules": {"type": "list", "elements": "str", "default": []},
            "source": {"type": "str", "default": ""},
            "flavour": {"type": "str", "choices": ["", "open", "proprietary"], "default": ""},
            "require_way_back": {"type": "bool", "default": True},
            "retry": {"type": "bool", "default": False},
            "lock_timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    if module.params["state"] == "present" and not (module.params["version"] and module.params["packages"]):
        module.fail_json(
            msg="state present needs version, NVIDIA's version of the driver, and packages, the names to ask apt for"
        )
    os.umask(0o022)
    host = make_host(module)
    wish = Wish(
        **{key: module.params[key] for key in ("packages", "pins", "version", "modules", "source", "flavour")},
        owned=list(gpu_catalog.OWNED),
    )
    try:
        with only_run(module):
            record = driver_record.read(ROOT)
            result = change(module, host, record, wish)
    except (DriverError, DamagedRecordError) as error:
        module.fail_json(msg=str(error), seconds=host.seconds)
    except AptError as error:
        module.fail_json(msg=f"{error}. Nothing was changed.", seconds=host.seconds)
    except OSError as error:
        module.fail_json(
            msg=f"{error}. Remedy: see to the disk (`df -h`, `dmesg`), and run this again; a change that was begun and not ended "
            f"is undone then",
            seconds=host.seconds,
        )
    previous = record.previous.version if record.previous else None
    flavour = wish.flavour if module.check_mode else (record.current.wish.get("flavour", "") if record.current else "")
    module.exit_json(
        **{"no_way_back": [], "exchanged": False, **result},
        previous=previous,
        flavour=flavour,
        reboot_reason=reboot_reason(result["after"], flavour),
        seconds=host.seconds,
    )


if __name__ == "__main__":
    main()
