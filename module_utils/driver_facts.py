"""The NVIDIA driver of a host as its packages, its module files and its running kernel have it, and whether these agree.

An update of the packages leaves the loaded kernel module as it was, and from then on every new program fails with
"Driver/library version mismatch" until the module is loaded anew. So three versions count: the one that was asked for, the one
of the libraries on disk, and the one in the kernel; and a fourth, that of the module that the next boot will load.
"""

from __future__ import annotations

import gzip
import json
import lzma
import re
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from ansible.module_utils.gpu_catalog import is_driver_package
from ansible.module_utils.host_inventory import read_text
from ansible.module_utils.versions import numbers, upstream

#: What the role wrote last: {"wanted": {"version": "580.95.05"}, ...}.
RECORD = "var/lib/groundwork/driver.json"
#: Stands for the version of a module file that is damaged, or compressed by zstd on a host without the program zstd.
UNREADABLE = "unreadable"
# dpkg's states of a package whose files are not on the host.
_NO_FILES = ("not-installed", "config-files", "half-installed")
# The library that nvidia-smi and NVML's users load: Debian's name (and that of its Tesla branches), and Ubuntu's.
_USERSPACE = re.compile(r"libnvidia-((tesla|legacy)(-\w+)?-)?ml1|libnvidia-compute(-\d+(-server)?)?")
# nvidia.ko and Debian's names of it; not its helpers (nvidia-drm, -uvm, ...) nor the kernel's own nvidiafb or i2c-nvidia-gpu.
_MODULE = re.compile(r"nvidia(-(current|tesla|legacy|open|\d+(xx)?))*\.ko(\.(xz|zst|gz))?")
# An entry of the module's section .modinfo, whose entries end with a zero byte. srcversion= holds no dot.
_MODULE_VERSION = re.compile(rb"version=(\d{3}\.\d+(?:\.\d+)?)\0")
_CHUNK, _OVERLAP = 1 << 20, 64


def driver_packages(root: Path) -> list[dict[str, str]]:
    """Return name, version and source of the driver's packages whose files are on the host, by name.

    A package that is unpacked and not yet configured, such as one whose DKMS build failed, counts: its files are in effect.
    """
    found = set()
    for paragraph in (read_text(root / "var/lib/dpkg/status") or "").split("\n\n"):
        name = paragraph.partition("\n")[0].replace("Package: ", "")
        if not is_driver_package(name):
            continue
        fields = dict(re.findall(r"^(Status|Source|Version): (.+)$", paragraph, re.MULTILINE))
        if fields["Status"].split()[-1] not in _NO_FILES:
            # "Source: nvidia-graphics-drivers (535.261.03-1)" where the versions differ, and no such line where the names agree.
            found.add((name, fields["Version"], fields.get("Source", name).split()[0]))
    return [{"name": name, "version": version, "source": source} for name, version, source in sorted(found)]


def installed_version(packages: list[dict[str, str]]) -> str | None:
    """Return the driver version of the libraries that packages have put on the host.

    Of several the newest counts: Ubuntu's transitional packages (535) are empty and need those of a newer branch (580).
    """
    versions = [upstream(package["version"]) for package in packages if _USERSPACE.fullmatch(package["name"])]
    return max(versions, key=numbers, default=None)


def are_prebuilt(packages: list[dict[str, str]]) -> bool:
    """Return whether the modules come from the distribution, signed and in packages for a kernel each (Ubuntu)."""
    return any(package["name"].startswith("linux-modules-nvidia-") for package in packages)


def module_files(root: Path, kernel: str) -> list[Path]:
    """Return the files of the driver's main module among those that a kernel's depmod knows."""
    directory = root / "lib/modules" / kernel
    listed = (read_text(directory / "modules.dep") or "").splitlines()
    paths = (line.partition(":")[0] for line in listed)
    return [directory / path for path in paths if _MODULE.fullmatch(Path(path).name)]


def module_version(path: Path, zstd: str | None) -> str | None:
    """Return the version that a module file says it has, reading no further than needed; None if it can't be read."""
    tail = b""
    try:
        with _decompressed(path, zstd) as stream:
            while chunk := stream.read(_CHUNK):
                if match := _MODULE_VERSION.search(tail + chunk):
                    return match[1].decode()
                tail = chunk[-_OVERLAP:]
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        pass
    return None


@contextmanager
def _decompressed(path: Path, zstd: str | None) -> Iterator[IO[bytes]]:
    if path.suffix == ".zst":
        # Python learned zstd in 3.14.
        command = [zstd or "zstd", "--decompress", "--stdout", "--quiet", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            yield cast("IO[bytes]", process.stdout)
            process.kill()
    else:
        openers: dict[str, Callable[[Path], Any]] = {".xz": lzma.open, ".gz": gzip.open}
        with openers[path.suffix](path) if path.suffix in openers else path.open("rb") as stream:
            yield stream


def will_boot(root: Path, kernels: list[str], zstd: str | None) -> dict[str, str | None]:
    """Return the version of the driver's module for each kernel: None where it has none, UNREADABLE where it can't be told."""
    files = {kernel: module_files(root, kernel) for kernel in kernels}
    return {kernel: (module_version(paths[0], zstd) or UNREADABLE) if paths else None for kernel, paths in files.items()}


def wanted_version(root: Path) -> str | None:
    """Return the driver version that was asked for last, None where nothing was recorded."""
    try:
        version = json.loads(read_text(root / RECORD) or "")["wanted"]["version"]
    except (ValueError, KeyError, TypeError):
        return None
    return upstream(str(version)) or None


def persistence(root: Path) -> bool:
    """Return whether nvidia-persistenced runs and was started with persistence mode, which is its default.

    Ubuntu's own unit starts it with --no-persistence-mode: it runs, and keeps nothing initialised.
    """
    command_lines = ((read_text(path) or "").split("\0") for path in (root / "proc").glob("[0-9]*/cmdline"))
    daemon = next((argv for argv in command_lines if Path(argv[0]).name == "nvidia-persistenced"), None)
    return daemon is not None and "--no-persistence-mode" not in daemon


def drift(  # noqa: PLR0913 - the versions that a driver has on a host, by name
    *,
    wanted: str | None,
    installed: str | None,
    loaded: str | None,
    modules: dict[str, str | None],
    needed: list[str],
    has_gpu: bool,
) -> dict[str, Any]:
    """Compare the versions of the driver, and say in a sentence what follows from that.

    Args:
        wanted: the version that was asked for, None if nobody did.
        installed: the version of the libraries.
        loaded: the version of the loaded module.
        modules: the module's version for each kernel that may boot.
        needed: those of these kernels that must have the module, oldest first.
        has_gpu: whether the host has a GPU that the module would drive.
    """
    if installed:
        wrong = [(kernel, modules[kernel]) for kernel in needed if modules[kernel] != installed]
        state, message = _judge(wanted, installed, loaded, wrong[-1] if wrong else None, has_gpu)
    elif loaded or any(modules.values()):
        there = f"version {loaded} is loaded" if loaded else "a kernel has its module"
        state, message = "mismatch", f"no package of the NVIDIA driver is installed, but {there}: install it, or remove the rest"
    else:
        state, message = "not_installed", f"no NVIDIA driver is installed{f', and {wanted} is wanted' if wanted else ''}"
    facts = {"wanted": wanted, "installed": installed, "loaded": loaded, "will_boot": modules}
    return {**facts, "state": state, "message": message}


def _judge(
    wanted: str | None, installed: str, loaded: str | None, wrong: tuple[str, str | None] | None, has_gpu: bool
) -> tuple[str, str]:
    """Return state and message for a host with a driver; wrong: a kernel that has not its module, and which it has."""
    if wanted not in (None, installed):
        return "mismatch", f"NVIDIA driver {wanted} is wanted and {installed} is installed: apply the role again"
    if wrong:
        kernel, module = wrong
        found = {None: "no module of it", UNREADABLE: "a module that can't be read"}.get(module, f"the module of {module}")
        return "mismatch", (
            f"NVIDIA driver {installed} is installed, but kernel {kernel} has {found}: build it with "
            f"`dkms autoinstall -k {kernel}`, or install the package that holds it"
        )
    if loaded is None and has_gpu:
        return "reboot_pending", f"NVIDIA driver {installed} is installed and not loaded: load its module, or reboot"
    if loaded not in (None, installed):
        return "reboot_pending", (
            f"NVIDIA driver {installed} is installed and {loaded} is still loaded: new programs can't use the GPUs until the "
            f"modules are loaded anew, or the host reboots"
        )
    return "in_order", f"NVIDIA driver {installed} is installed{' and loaded' if loaded else '; this host has no GPU for it'}"
