"""What a change of the NVIDIA driver means on a host: which packages move, in what a host differs from a set of them."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils import apt_packages, dkms_modules
from ansible.module_utils.apt_packages import AptError, Change, Package
from ansible.module_utils.dkms_modules import Source
from ansible.module_utils.driver_host import DriverError, Host, read_file
from ansible.module_utils.driver_record import DriverSet
from ansible.module_utils.versions import upstream

PREFERENCES = "/etc/apt/preferences.d/groundwork-nvidia-driver"
#: Read after 50unattended-upgrades; lists of apt's configuration add up.
UNATTENDED = "/etc/apt/apt.conf.d/51groundwork-nvidia-driver"
#: Modules that Canonical has built and signed.
_PREBUILT = re.compile(r"linux-modules-nvidia-")
_PREFERENCES_PARTS = "etc/apt/preferences.d"
_HEADER = "Ansible managed: Groundwork keeps the NVIDIA driver as one set; see /var/lib/groundwork/driver.json"


@dataclass(frozen=True)
class Wish:
    """What the solver has decided: the packages to ask for, the pins that keep them together, and how to know the set's packages.

    packages: names for apt, in one transaction.
    pins: for apt's preferences, each {"package": ..., "version": ...}.
    owned: regular expressions of the names of a driver's packages, matched from the start.
    version: NVIDIA's version, which modules and packages must have.
    modules: names of the main module's file (nvidia, nvidia-current, ...).
    source: where it comes from, in the words of the solver.
    flavour: open or proprietary; empty where it does not matter.
    """

    packages: list[str]
    pins: list[dict[str, str]]
    owned: list[str]
    version: str
    modules: list[str]
    source: str
    flavour: str = ""

    def record(self) -> dict[str, Any]:
        """Return what is compared with the wish of a later run; a newer table of names is no other wish."""
        return {key: value for key, value in asdict(self).items() if key != "owned"}

    def owns(self, name: str) -> bool:
        """Tell whether a package belongs to the set, of whatever architecture."""
        return any(re.match(pattern, name.partition(":")[0]) for pattern in self.owned)


def preferences(pins: Iterable[Mapping[str, str]]) -> str:
    """Return the pins as apt's preferences; above 1000, so that an older version may replace a newer one."""
    stanzas = [f"Package: {pin['package']}\nPin: version {pin['version']}\nPin-Priority: 1001\n" for pin in pins]
    # To apt an explanation without a package is an invalid record.
    return "\n".join([f"Explanation: {_HEADER}", *stanzas]) if stanzas else ""


def unattended(names: Iterable[str]) -> str:
    """Return the configuration that keeps unattended-upgrades off exactly these packages; it matches from the start of a name."""
    lines = "".join(f'  "^{_escape(name)}$";\n' for name in sorted({name.partition(":")[0] for name in names}))
    return f"// {_HEADER}\nUnattended-Upgrade::Package-Blacklist {{\n{lines}}};\n"


def _escape(name: str) -> str:
    """Return a package's name as a regular expression, with no backslash that it does not need: apt reads the file too."""
    return re.sub(r"([.+])", r"\\\1", name)


def faults(host: Host, goal: DriverSet, packages: Mapping[str, Package]) -> list[str]:
    """Say in what the host differs from a set; nothing if it is in order."""
    found = []
    for name, version in goal.packages.items():
        package = packages.get(name)
        if version is None and package:
            found.append(f"{name} {package.version} is installed, and does not belong to the set")
        elif version and not package:
            found.append(f"{name} is not installed, {version} is wanted")
        elif version and package and (package.version != version or not package.in_order):
            found.append(f"{name} is {package.version} ({package.state}), {version} is wanted")
    held = {name for name, package in packages.items() if package.held}
    found += [f"{name} is not held" for name in goal.holds if name not in held]
    found += [f"{path} differs" for path, text in goal.config.items() if read_file(host.root, path) != text]
    return found + module_faults(host, goal)


def module_faults(host: Host, goal: DriverSet) -> list[str]:
    """Say which kernel lacks the modules of a set, be they built here or brought by packages."""
    prebuilt = any(version and _PREBUILT.match(name) for name, version in goal.packages.items())
    flavour = goal.wish.get("flavour", "")
    wanted = f"{goal.version} {flavour}".strip()
    found = []
    kernels = host.kernels if goal.sources else host.signed_kernels if prebuilt else []
    for kernel in kernels if goal.version else ():
        seen = [module for name in goal.modules if (module := _module(host, kernel, name))]
        if not any(version == goal.version and flavour in ("", kind) for version, kind in seen):
            has = f"module version {' '.join(seen[0])}" if seen else "no module"
            found.append(f"kernel {kernel} has {has}, {wanted} is wanted")
    return found


def _module(host: Host, kernel: str, name: str) -> tuple[str, str] | None:
    """Return version and flavour of a kernel's module; the license tells open ones from NVIDIA's proprietary ones."""
    code, out, _ = host.run(["modinfo", "-k", kernel, name])
    fields = dict(line.split(":", 1) for line in out.splitlines() if ":" in line)
    if code != 0 or "version" not in fields:
        return None
    return fields["version"].strip(), "proprietary" if fields.get("license", "").strip() == "NVIDIA" else "open"


def plan(host: Host, wish: Wish, packages: Mapping[str, Package]) -> dict[str, Change]:
    """Ask apt what the wish changes, under the pins that would hold, and refuse what goes beyond the driver.

    Returns:
        What changes by package, with those of the set that stay as they are.

    Raises:
        DriverError: apt has no solution, or it would touch what is none of the driver's business.
    """
    with _trial_preferences(host, preferences(wish.pins)) as settings:
        mine = [name for name in packages if wish.owns(name)]
        try:
            # What is installed of the set has to move with it, also where nobody asked for it by name.
            known = apt_packages.candidates(host.run, [*mine, *wish.packages], settings)
            if missing := [name for name in wish.packages if name not in known]:
                raise DriverError(
                    f"apt knows no package {', '.join(missing)}. Remedy: add the source that has it (Debian: components contrib, "
                    f"non-free and non-free-firmware), run `apt-get update`, or choose another nvidia_driver_source"
                )
            if not any(upstream(known[name]) == wish.version for name in wish.packages):
                raise DriverError(
                    f"no source has driver {wish.version}; apt would install "
                    f"{', '.join(f'{name} {known[name]}' for name in wish.packages)}. Nothing was changed. Remedy: ask for a "
                    f"version that `apt-cache policy {' '.join(wish.packages)}` shows, add the source that has it, or take "
                    f"away the pin in /etc/apt/preferences.d that rules it out"
                )
            moving = [name for name in mine if name in known and known[name] != packages[name].version]
            changes = _changes(host, wish, moving, settings)
        except AptError as error:
            raise DriverError(
                f"apt can't install driver {wish.version}: {error}. Remedy: `apt-cache policy {' '.join(wish.packages)}` shows "
                f"which versions there are; choose one that has all of them"
            ) from error
    _refuse_strangers(changes, wish, packages)
    rest = {name for name in (*mine, *wish.packages) if name in packages} - changes.keys()
    return changes | {name: Change(packages[name].version, packages[name].version) for name in rest}


def _changes(host: Host, wish: Wish, moving: list[str], settings: list[str]) -> dict[str, Change]:
    # What the set held may be replaced by packages of other names; whether others' holds are kept is seen afterwards.
    settings = [*settings, "APT::Ignore-Hold=true"]
    changes: dict[str, Change]
    try:
        changes = apt_packages.simulate(host.run, dict.fromkeys([*wish.packages, *moving]), settings)
    except AptError:
        # Packages of another branch or flavour exclude the wish, though they have updates of their own; so apt may remove them.
        gone = [name for name, change in apt_packages.simulate(host.run, wish.packages, settings).items() if change.after is None]
        changes = apt_packages.simulate(host.run, sorted({*wish.packages, *moving}.difference(gone)), settings)
    return changes


def plan_removal(host: Host, owned: Wish, packages: Mapping[str, Package]) -> dict[str, Change]:
    """Ask apt what the removal of the whole set takes along; the same result and refusals as plan."""
    mine = [name for name in packages if owned.owns(name)]
    if not mine:
        return {}
    try:
        changes: dict[str, Change] = apt_packages.simulate(host.run, [f"{name}-" for name in mine])
    except AptError as error:
        raise DriverError(
            f"apt can't remove the driver: {error}. Nothing was changed. Remedy: `apt-get check` tells what is wrong"
        ) from error
    _refuse_strangers(changes, owned, packages)
    return changes


def _refuse_strangers(changes: Mapping[str, Change], wish: Wish, packages: Mapping[str, Package]) -> None:
    """Refuse to remove, or to move against its hold, a package that is not the driver's."""
    others = {name: change for name, change in changes.items() if not wish.owns(name) and name not in wish.packages}
    if removed := [name for name, change in others.items() if change.after is None]:
        raise DriverError(
            f"apt would remove {', '.join(sorted(removed))}, which are not part of the driver. Nothing was changed. Remedy: "
            f"remove them yourself if they may go, or choose a driver that they can live with"
        )
    if held := [name for name, change in others.items() if name in packages and packages[name].held]:
        raise DriverError(
            f"apt would change {', '.join(sorted(held))}, which you hold. Nothing was changed. Remedy: `apt-mark unhold` them, "
            f"or choose a driver that needs no other version of them"
        )


@contextmanager
def _trial_preferences(host: Host, text: str) -> Iterator[list[str]]:
    """Give settings under which apt has the host's preferences with ours replaced by this text; no file changes."""
    ours = Path(PREFERENCES).name
    with tempfile.TemporaryDirectory() as folder:
        for path in (host.root / _PREFERENCES_PARTS).glob("*"):
            if path.is_file() and path.name != ours:
                shutil.copy(path, folder)
        (Path(folder) / ours).write_text(text)
        yield [f"Dir::Etc::PreferencesParts={folder}"]


def new_set(wish: Wish, changes: Mapping[str, Change]) -> DriverSet:
    """Return the set that the wish leads to."""
    packages = {name: change.after for name, change in changes.items()}
    holds = sorted(name for name, version in packages.items() if version and (wish.owns(name) or name in wish.packages))
    return DriverSet(
        version=wish.version,
        packages=packages,
        holds=holds,
        config={PREFERENCES: preferences(wish.pins), UNATTENDED: unattended(holds)},
        modules=wish.modules,
        wish=wish.record(),
    )


def present_set(host: Host, goal: DriverSet, owned: Wish, packages: Mapping[str, Package], known: DriverSet | None) -> DriverSet:
    """Return the set that is there now, as far as the goal would change it. known: what the record says of it, if it says."""
    mine = {name for name in (*goal.packages, *packages) if owned.owns(name)}
    # What a driver brought along and is not a driver's stays on the way back: somebody else may have come to need it.
    names = mine | (goal.packages.keys() & packages.keys())
    here = {name: packages[name].version if name in packages else None for name in sorted(names)}
    if known and any(here.get(name) != version for name, version in known.packages.items() if owned.owns(name)):
        # Somebody has changed packages since.
        known = None
    versions = sorted(upstream(version) for name, version in here.items() if version and owned.owns(name))
    return DriverSet(
        version=known.version if known else max(versions, key=versions.count, default=""),
        packages=here,
        holds=sorted(name for name in names if name in packages and packages[name].held),
        config={path: read_file(host.root, path) for path in (PREFERENCES, UNATTENDED)},
        sources=[[source.name, source.version] for source in _installed_sources(host, owned)],
        modules=known.modules if known else goal.modules,
        debs=known.debs if known else {},
        wish=known.wish if known else {},
    )


def _installed_sources(host: Host, owned: Wish) -> list[Source]:
    """Return the sources in /usr/src that packages of the set have brought and DKMS knows."""
    found = []
    for config in sorted((host.root / "usr/src").glob("*/dkms.conf")):
        source = dkms_modules.parse_config(config)
        if not source or not (host.root / dkms_modules.TREE / source.name / source.version).is_dir():
            continue
        code, out, _ = host.run(["dpkg-query", "--search", str(config)])
        if code == 0 and any(owned.owns(name.strip()) for name in out.partition(": ")[0].split(",")):
            found.append(source)
    return found
