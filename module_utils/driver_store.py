"""The package files and kernel modules of the current and of the previous driver, kept on the host."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from ansible.module_utils import apt_packages, dkms_modules
from ansible.module_utils.apt_packages import Package
from ansible.module_utils.dkms_modules import BuildError, Source
from ansible.module_utils.driver_host import DriverError, Host
from ansible.module_utils.driver_plan import module_faults
from ansible.module_utils.driver_record import DriverSet, Record

_MODULE_PACKAGE = re.compile(r".*(dkms|kernel-(open-)?source).*")
_MIB = 1024 * 1024
#: What a build of the five modules takes, and their copies.
_BUILD_SPACE = 600 * _MIB


def wait_for_lock(host: Host) -> None:
    """Wait until no other package manager works, or refuse: a build of minutes is no use if apt can't begin after it.

    Raises:
        DriverError: somebody held the lock for the whole time.
    """
    end = time.monotonic() + host.lock_timeout
    while holder := apt_packages.lock_holder(host.root):
        if time.monotonic() > end:
            raise DriverError(
                f"{holder} held the lock of dpkg for {host.lock_timeout} s. Nothing was changed. Remedy: let it end (`ps -p` "
                f"tells what it does), and run this again; nvidia_driver_lock_timeout waits longer"
            )
        time.sleep(0.5)


def fetch(host: Host, goal: DriverSet, required: Collection[str]) -> list[str]:
    """Put the package files of a set into the store; return the packages whose file can't be had.

    Raises:
        DriverError: they don't fit on the disk, or one of those required can't be had.
    """
    host.debs.mkdir(parents=True, exist_ok=True)
    wanted = {name: version for name, version in goal.packages.items() if version}
    said = ""
    if absent := {name: version for name, version in wanted.items() if not _stored(host, goal, name, version)}:
        for name, version in absent.items():
            for file in (host.root / "var/cache/apt/archives").glob(_file_pattern(name, version)):
                shutil.copy(file, host.debs)
        said = _download(host, {name: version for name, version in absent.items() if not _find(host, name, version)})
    # Anew: a set may know of a file that is lost, or of another version.
    found = {name: file for name, version in wanted.items() if (file := _find(host, name, version))}
    goal.debs = {name: {"file": file.name, "sha256": _sha256(file)} for name, file in found.items()}
    missing = sorted(wanted.keys() - goal.debs.keys())
    if gone := [name for name in missing if name in required]:
        raise DriverError(
            f"apt can't download {', '.join(f'{name}={wanted[name]}' for name in gone)}: {said or 'no source has it'}. Nothing "
            f"was changed. Remedy: see that the source answers, and run `apt-get update`"
        )
    return missing


def _download(host: Host, absent: Mapping[str, str]) -> str:
    """Download packages as far as they can be had; return what apt said of those that can't."""
    requests, said = [f"{name}={version}" for name, version in absent.items()], ""
    if not requests:
        return said
    code, out, _ = host.run(["apt-get", "download", "--print-uris", *requests])
    _require_space(host.debs, sum(int(line.split()[2]) for line in out.splitlines() if line.startswith("'")), "the packages")
    # One by one where apt does not know one of them: it must not take the others along.
    for batch in [requests] if code == 0 else [[request] for request in requests]:
        code, out, err = host.run(
            ["sh", "-c", 'cd "$0" && exec apt-get -oAPT::Sandbox::User=root download "$@"', str(host.debs), *batch]
        )
        said += f"{' '.join((err or out).split())} " if code != 0 else ""
    return said.strip()


def _file_pattern(name: str, version: str) -> str:
    package, _, architecture = name.partition(":")
    return f"{package}_{version.replace(':', '%3a')}_{architecture or '*'}.deb"


def _find(host: Host, name: str, version: str) -> Path | None:
    return next(iter(sorted(host.debs.glob(_file_pattern(name, version)))), None)


def _stored(host: Host, goal: DriverSet, name: str, version: str) -> bool:
    """Tell whether the store has the file of a package, undamaged where the set knows its checksum."""
    file, known = _find(host, name, version), goal.debs.get(name)
    if file and known and known["file"] == file.name and _sha256(file) != known["sha256"]:
        file.unlink()
        return False
    return file is not None


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_MIB):
            digest.update(block)
    return digest.hexdigest()


def _require_space(path: Path, needed: int, what: str) -> None:
    free = shutil.disk_usage(path).free
    # apt and dpkg themselves write as well.
    if free < needed + 32 * _MIB:
        raise DriverError(
            f"{what} need {needed // _MIB + 32} MiB in {path}, {free // _MIB} MiB are free. Nothing was changed. Remedy: free "
            f"some space there (apt-get clean, journalctl --vacuum-size=1G), or make it larger"
        )


def require_space(host: Host, goal: DriverSet, packages: Mapping[str, Package]) -> None:
    """Refuse to begin what would fill the disk in its middle.

    Raises:
        DriverError: there is too little space for the unpacked packages or the modules.
    """
    files = [
        host.debs / goal.debs[name]["file"]
        for name, version in goal.packages.items()
        if version and (name not in packages or packages[name].version != version)
    ]
    size = sum(
        int(apt_packages.checked(host.run, ["dpkg-deb", "--field", str(file), "Installed-Size"]).strip() or 0) for file in files
    )
    _require_space(host.root / "usr", size * 1024, "the unpacked packages")
    tree = kept_tree(host, goal)
    kept = goal.sources and all(
        dkms_modules.is_built(tree, Source(*pair), kernel) for pair in goal.sources for kernel in host.kernels
    )
    _require_space(host.store, _BUILD_SPACE if _module_packages(goal) and not kept else 0, "the modules and their build")


def _module_packages(goal: DriverSet) -> list[str]:
    """Return the packages with sources of modules; not one without file, which stays as it is, as do its modules."""
    return [name for name in goal.debs if _brings_modules(name)]


def _brings_modules(name: str) -> bool:
    return _MODULE_PACKAGE.fullmatch(name) is not None and name != "dkms"


def kept_tree(host: Host, part: DriverSet) -> Path:
    """Return where the modules of a set are kept: open and proprietary ones of a version have the same name in DKMS."""
    names = (f"{name}_{version}" for name, version in sorted(part.packages.items()) if version and _brings_modules(name))
    tree: Path = host.kept / ("+".join(names) or "none")
    return tree


def build_modules(host: Host, goal: DriverSet) -> None:
    """Build the modules of a set for each kernel that may boot, beside the system, and keep them.

    Raises:
        DriverError: they don't build.
    """
    names = _module_packages(goal)
    if not names:
        return
    work = host.store / "build"
    shutil.rmtree(work, ignore_errors=True)
    (work / "tree").mkdir(parents=True)
    try:
        for name in names:
            apt_packages.checked(host.run, ["dpkg-deb", "--extract", str(host.debs / goal.debs[name]["file"]), str(work / "src")])
        source = dkms_modules.find_source(work / "src")
        if source is None:
            return
        goal.sources = [[source.name, source.version]]
        for kernel in host.kernels:
            if dkms_modules.is_built(kept_tree(host, goal), source, kernel):
                continue
            if not (host.root / "lib/modules" / kernel / "build").exists():
                raise DriverError(
                    f"kernel {kernel} may boot and has no headers, so no module can be built for it. Nothing was changed. "
                    f"Remedy: install linux-headers-{kernel}, or remove that kernel"
                )
            host.log(f"building {source.name} {source.version} for {kernel}")
            dkms_modules.build(host.run, work / "src", work / "tree", source, kernel)
            dkms_modules.copy(work / "tree", source, kernel, kept_tree(host, goal))
    except BuildError as error:
        raise DriverError(
            f"the modules of driver {goal.version} don't build, so no package was touched and the driver is as it was. Remedy: "
            f"mend what the log names (compiler of the kernel, its headers), or choose a driver that knows this kernel. {error}"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def kernels_to_go_back_with(host: Host, before: DriverSet, after: DriverSet) -> list[str]:
    """Return the kernels that must have the modules of the driver before: not one that has none now and can't get any."""
    tree = kept_tree(host, after)

    def can_have(kernel: str) -> bool:
        kept = any(dkms_modules.is_built(tree, Source(*pair), kernel) for pair in after.sources)
        return kept or (host.root / "lib/modules" / kernel / "build").exists()

    lacking = {kernel for kernel in host.kernels if module_faults(replace(host, kernels=[kernel]), before)}
    return [kernel for kernel in host.kernels if can_have(kernel) or kernel not in lacking]


def prune(host: Host, record: Record) -> None:
    """Take from the store what neither the current nor the previous set needs."""
    sets = [part for part in (record.current, record.previous) if part]
    files = {deb["file"] for part in sets for deb in part.debs.values()}
    for file in host.debs.glob("*.deb"):
        if file.name not in files:
            file.unlink()
    trees = {kept_tree(host, part) for part in sets}
    for tree in host.kept.glob("*"):
        if tree not in trees:
            shutil.rmtree(tree)
        for kernel in tree.glob("*/*/*"):
            if kernel.name not in host.kernels:
                shutil.rmtree(kernel)
