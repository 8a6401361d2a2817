"""What a Linux host is made of, read from /proc, /sys and /etc below a root directory, without privileges."""

from __future__ import annotations

import ctypes
import math
import os
import re
import shlex
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MIB = 1024 * 1024
DEBIAN_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# Firmware strings that only virtual machines carry; arm64 has no CPU flag that tells.
HYPERVISOR_VENDORS = ("QEMU", "VMware", "Xen", "innotek", "Parallels", "OpenStack")
# The kernel counts a clock that nothing disciplines up to this error, in microseconds (NTP_PHASE_LIMIT).
UNDISCIPLINED_ERROR = 16_000_000
# "(gcc-12 (Debian 12.2.0-14) 12.2.0, GNU ld ..." and, before Linux 5.8, "(gcc version 9.4.0 (Ubuntu ...".
KERNEL_COMPILER = re.compile(r"\((?:\S*gcc\S* \([^)]*\) |gcc version )(\d+)\.")
# The key that DKMS signs modules with: Ubuntu's, made by shim-signed, and DKMS' own.
MODULE_KEYS = ("var/lib/shim-signed/mok/MOK.der", "var/lib/dkms/mok.pub")


def read_text(path: Path) -> str | None:
    """Return the stripped text of a file, None where it is absent or not readable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def distribution(root: Path) -> dict[str, str | None]:
    """Return id, version_id and codename as /etc/os-release names them (os-release(5))."""
    pairs = (line.partition("=") for line in (read_text(root / "etc/os-release") or "").splitlines() if "=" in line)
    values = {key: "".join(shlex.split(value)[:1]) for key, _, value in pairs if not key.startswith("#")}
    return {
        "id": values.get("ID"),
        "version_id": values.get("VERSION_ID"),
        "codename": values.get("VERSION_CODENAME"),
    }


def architecture(machine: str) -> str:
    """Return dpkg's name of the machine that uname reports."""
    return DEBIAN_ARCHITECTURES.get(machine, machine)


def memory_mib(root: Path) -> int | None:
    """Return the memory that the kernel manages (MemTotal), which is less than what is installed."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", read_text(root / "proc/meminfo") or "", re.MULTILINE)
    return int(match.group(1)) // 1024 if match else None


def file_system(status: os.statvfs_result) -> dict[str, int]:
    """Return size in MiB and used percent by the rule of df: without root's reserve, rounded up."""
    used = status.f_blocks - status.f_bfree
    usable = used + status.f_bavail
    return {
        "size_mib": status.f_blocks * status.f_frsize // MIB,
        "used_percent": math.ceil(used * 100 / usable) if usable else 0,
    }


def swap(root: Path) -> list[dict[str, Any]]:
    """Return the active swap areas, with sizes in MiB."""
    rows = [line.split() for line in (read_text(root / "proc/swaps") or "").splitlines()[1:]]
    return [
        {
            "name": name.replace(r"\040", " "),
            "type": kind,
            "size_mib": int(size) // 1024,
            "used_mib": int(used) // 1024,
        }
        for name, kind, size, used, _priority in rows
    ]


def cgroup_version(root: Path) -> str | None:
    """Return v2, hybrid (v2 beside v1 controllers) or v1."""
    base = root / "sys/fs/cgroup"
    if (base / "cgroup.controllers").exists():
        return "v2"
    if (base / "unified/cgroup.controllers").exists():
        return "hybrid"
    return "v1" if (base / "memory").exists() else None


def kernel(root: Path) -> dict[str, Any]:
    """Return the running kernel and, oldest first, the installed ones, those with headers, and those that may boot.

    The running kernel may boot again even if its image has another name than Debian's, as in a unified kernel image.
    """

    def by_version(release: str) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", release)]

    running = read_text(root / "proc/sys/kernel/osrelease")
    releases = sorted((path.name for path in (root / "lib/modules").glob("*")), key=by_version)
    installed = [release for release in releases if (root / f"boot/vmlinuz-{release}").exists()]
    may_boot = [release for release in releases if release in installed or release == running]
    return {
        "running": running,
        "installed": installed,
        "headers": [release for release in releases if (root / f"lib/modules/{release}/build").exists()],
        "may_boot": may_boot,
        "compilers": {
            release: _kernel_compiler(root, release, release == running)
            for release in [*may_boot, *([running] if running and running not in may_boot else [])]
        },
    }


def kernels_that_need_modules(kernel: Mapping[str, Any], *, by_dkms: bool = True) -> list[str]:
    """Return the kernels that must have the modules of a driver, oldest first, by what kernel() says.

    The running one and the newest, which is what boot loaders choose by themselves; and as DKMS builds for every kernel that
    has headers, those too. An older kernel without headers can't have modules, and must not keep a host from its driver.
    by_dkms: False for signed modules of the distribution, which come in packages for a kernel each.
    """
    must = {kernel["running"], *kernel["may_boot"][-1:], *(kernel["headers"] if by_dkms else ())}
    return [release for release in kernel["may_boot"] if release in must]


def _kernel_compiler(root: Path, release: str, running: bool) -> int | None:
    """Return the major version of the gcc that built a kernel; None if that was another compiler or can't be told."""
    if match := re.search(r"^CONFIG_GCC_VERSION=(\d+)", read_text(root / f"boot/config-{release}") or "", re.MULTILINE):
        # 120200 is 12.2.0, and a kernel built by clang says 0.
        return int(match[1]) // 10_000 or None
    said = KERNEL_COMPILER.search(read_text(root / "proc/version") or "") if running else None
    return int(said[1]) if said else None


def compilers(root: Path) -> dict[str, int | None]:
    """Return the major versions of the installed gcc programs: gcc, which is null if there is none, and each gcc-<major>.

    Debian and Ubuntu say in the name that a link leads to which version it is, so no compiler has to run.
    """
    programs = root / "usr/bin"
    default = re.search(r"gcc-(\d+)(?:\.\d+)?$", (programs / "gcc").resolve().name) if (programs / "gcc").exists() else None
    numbered = (re.fullmatch(r"gcc-(\d+)", path.name) for path in programs.glob("gcc-*") if path.exists())
    majors = sorted(int(match[1]) for match in numbered if match)
    return {"gcc": int(default[1]) if default else None, **{f"gcc-{major}": major for major in majors}}


def module_key(root: Path, mokutil: str | None) -> dict[str, Any]:
    """Return the certificate of DKMS' Machine Owner Key, and whether the firmware trusts it.

    enrolled is None where there is no key, no EFI or no mokutil, and where mokutil may not read the firmware's lists.
    """
    path = next((root / name for name in MODULE_KEYS if (root / name).exists()), None)
    enrolled = None
    if path and mokutil and (root / "sys/firmware/efi").is_dir():
        # Its exit code is 1 for an enrolled key and for errors alike, so its words count. A key "in the enrollment request"
        # waits for a person at the console.
        said = subprocess.run([mokutil, "--test-key", str(path)], capture_output=True, text=True, check=False).stdout
        if re.search(r"is already (enrolled|in db|in the built-in trusted keyring)", said):
            enrolled = True
        elif re.search(r"is not enrolled|is already in the enrollment request|is blocked in", said):
            enrolled = False
    return {"path": f"/{path.relative_to(root)}" if path else None, "enrolled": enrolled}


def secure_boot(root: Path) -> bool | None:
    """Return whether the firmware enforces signatures; None without EFI or where it keeps no such variable."""
    try:
        # Four bytes of attributes, then the value.
        return (root / SECURE_BOOT).read_bytes()[4:5] == b"\x01"
    except OSError:
        return None


def container(root: Path) -> str | None:
    """Return the container manager that this system runs under, None outside containers."""
    declared = re.search(r"(?:^|\0)container=([^\0]+)", read_text(root / "proc/1/environ") or "")
    if name := read_text(root / "run/systemd/container") or (declared and declared.group(1)):
        return name
    marks = {"podman": "run/.containerenv", "docker": ".dockerenv"}
    return next((name for name, mark in marks.items() if (root / mark).exists()), None)


def virtualization(root: Path) -> dict[str, Any]:
    """Return the container manager, whether a hypervisor runs below the kernel, and the firmware's vendor."""
    vendor = read_text(root / "sys/class/dmi/id/sys_vendor")
    flagged = re.search(r"^flags\s.*\bhypervisor\b", read_text(root / "proc/cpuinfo") or "", re.MULTILINE)
    return {
        "container": container(root),
        "hypervisor": bool(flagged) or (vendor or "").startswith(HYPERVISOR_VENDORS),
        "vendor": vendor,
    }


def clock_synchronized() -> bool | None:
    """Ask the kernel (adjtimex) whether something disciplines its clock; None where it doesn't answer.

    As timedated does, the maximum error counts and not STA_UNSYNC, which chrony without rtcsync leaves set.
    """
    timex = ctypes.create_string_buffer(512)
    try:
        answered = ctypes.CDLL(None).adjtimex(timex) >= 0
    except (OSError, AttributeError):
        return None
    # struct timex on 64-bit Linux: modes (padded), offset, freq, maxerror in microseconds.
    return bool(struct.unpack_from("l", timex, 24)[0] < UNDISCIPLINED_ERROR) if answered else None
