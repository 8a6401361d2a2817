"""Which kernel a host boots next, and what would keep it from coming back with it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ansible.module_utils.grub_config import NotUnderstoodError, next_entry
from ansible.module_utils.host_inventory import read_text
from ansible.module_utils.initramfs import Builder, Dracut

GRUB_CONFIGS = ("boot/grub/grub.cfg", "boot/grub2/grub.cfg")
_SD_BOOT_DIRECTORIES = ("boot/loader/entries", "efi/loader/entries", "boot/efi/loader/entries")
_LOADER_INFO = "sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
_STATE_IT = "set groundwork_reboot_kernel to the version of the kernel that does"
# nvidia.ko and Debian's names of it; not its helpers (nvidia-drm, -uvm, ...) nor the kernel's own nvidiafb or i2c-nvidia-gpu.
_NVIDIA = re.compile(r"nvidia(-(current|tesla|legacy|open|\d+(xx)?))*\.ko(\.(xz|zst|gz))?")
# The name of a kernel's file; Ubuntu appends .efi.signed to signed copies.
_IMAGE = re.compile(r"(?:vmlinu[xz]|kernel|Image)-(.+?)(?:\.efi(?:\.signed)?)?")
_CPIO_HEADER = re.compile(rb"07070[12][\da-fA-F]{104}")
_CPIO_HEADER_SIZE, _CPIO_NAME_LIMIT = 110, 4096

#: Runs a program and gives its exit code, output and errors; None if the host has no such program.
Run = Callable[[list[str]], "tuple[int, str, str] | None"]


class UnknownTargetError(Exception):
    """Nobody can tell which kernel boots next; the message says why and what to do."""


class Target(NamedTuple):
    """The kernel that boots next: who says so, its file, those of its initramfs, and why the loader waits for a person.

    None where they can't be known.
    """

    kernel: str
    source: str
    image: Path | None = None
    initramfs: list[Path] | None = None
    waits: tuple[str, ...] = ()


def boot_target(root: Path, stated: str | None, run: Run) -> Target:
    """Find the kernel that boots next.

    Args:
        root: the host's root directory.
        stated: the version that the inventory gives, which counts where no boot loader can be read.
        run: runs bootctl.

    Raises:
        UnknownTargetError: neither a boot loader nor the inventory tells it, or they tell different things.
    """
    try:
        found = _from_loader(root, run)
    except UnknownTargetError:
        if not stated:
            raise
        return Target(stated, "groundwork_reboot_kernel")
    if stated and stated != found.kernel:
        raise UnknownTargetError(
            f"groundwork_reboot_kernel says that {stated} boots next, and {found.source} says {found.kernel}; take the variable "
            f"away, or take the loader's configuration away if the host does not boot through it"
        )
    return found


def _from_loader(root: Path, run: Run) -> Target:
    config = next((root / name for name in GRUB_CONFIGS if (root / name).is_file()), None)
    # The variable is UTF-16, after four bytes of attributes.
    loader = (root / _LOADER_INFO).read_bytes()[4:].decode("utf-16-le", "replace") if (root / _LOADER_INFO).is_file() else ""
    sd_boot = loader.startswith("systemd-boot") or any((root / name).is_dir() for name in _SD_BOOT_DIRECTORIES)
    if sd_boot and (loader.startswith("systemd-boot") or config is None):
        return _from_systemd_boot(root, run)
    if config is None:
        raise UnknownTargetError(
            f"can't tell which kernel boots next (no configuration of GRUB or systemd-boot was found); {_STATE_IT}"
        )
    return _from_grub(root, config)


def _from_grub(root: Path, config: Path) -> Target:
    name = f"/{config.relative_to(root)}"
    directory = str(Path(name).parent)

    def is_file(path: str, with_content: bool) -> bool:
        found = locate(root, path)
        return found.exists() and (not with_content or found.stat().st_size > 0)

    variables = {
        "prefix": directory,
        "config_directory": directory,
        "grub_platform": "efi" if (root / "sys/firmware/efi").is_dir() else "pc",
    }
    try:
        text = config.read_text(errors="replace")
        entry = next_entry(text, variables, is_file, lambda path: locate(root, path).read_text(errors="replace"))
    except (NotUnderstoodError, OSError) as error:
        raise UnknownTargetError(
            f"can't tell which kernel boots next ({name} is not understood: {error}); {_STATE_IT}"
        ) from error
    if entry.linux is None:
        raise UnknownTargetError(
            f"the menu entry {entry.title!r}, which {name} boots next, loads no Linux kernel; choose another with "
            f"grub-set-default, or {_STATE_IT}"
        )
    image = locate(root, entry.linux)
    source = f"{name}, entry {entry.title!r}" if entry.title else name
    initramfs = [locate(root, path) for path in entry.initrd]
    return Target(_version_of(image, source), source, image, initramfs, tuple(entry.waits))


def _from_systemd_boot(root: Path, run: Run) -> Target:
    answer = run(["bootctl", "list", "--json=short"])
    try:
        entries = json.loads(answer[1] if answer else "")
        entry = next(entry for entry in entries if entry.get("isDefault"))
    except (ValueError, StopIteration) as error:
        raise UnknownTargetError(
            f"can't tell which kernel boots next (`bootctl list --json=short` names no default of systemd-boot); {_STATE_IT}"
        ) from error
    source = f"systemd-boot, entry {entry.get('id')}"
    # A unified kernel image holds its initramfs.
    path, unified = (entry["linux"], False) if "linux" in entry else (entry.get("path"), True)
    if not path:
        raise UnknownTargetError(f"{source}, which boots next, loads no Linux kernel; {_STATE_IT}")
    partition = root / entry.get("root", "/boot").lstrip("/")
    image = root / path.lstrip("/") if unified else partition / path.lstrip("/")
    kernel = entry.get("version") if unified else None
    initramfs = None if unified else [partition / initrd.lstrip("/") for initrd in entry.get("initrd", [])]
    return Target(kernel or _version_of(image, source), source, image, initramfs)


def locate(root: Path, path: str) -> Path:
    """Find a file that GRUB names, on the host; where there is none, return where it would be.

    GRUB's paths may begin with a device, and are relative to the file system that holds them: /boot may be one of its own,
    and Btrfs and ZFS name the subvolume (/@/boot/...).
    """
    path = re.sub(r"^\([^)]*\)", "", path).lstrip("/")
    candidates = [path, f"boot/{path}", *([f"boot/{Path(path).name}"] if "@" in path else [])]
    found = [_follow(root, root / candidate) for candidate in candidates]
    return next((file for file in found if file.exists()), found[0])


def _follow(root: Path, path: Path) -> Path:
    """Follow symbolic links as the host would, whose root directory is given."""
    for _ in range(40):
        if not path.is_symlink():
            break
        target = path.readlink()
        path = root / str(target).lstrip("/") if target.is_absolute() else path.parent / target
    return path


def _version_of(image: Path, source: str) -> str:
    """Return the version of a kernel: what the x86 boot protocol's header tells, or else the file's name."""
    try:
        with image.open("rb") as file:
            header = file.read(0x210)
            place = int.from_bytes(header[0x20E:0x210], "little")
            if header[0x202:0x206] == b"HdrS" and place:
                file.seek(0x200 + place)
                return file.read(256).split(b"\0")[0].decode("ascii", "replace").split()[0]
    except (OSError, IndexError):
        pass
    match = _IMAGE.fullmatch(image.name)
    if not match:
        raise UnknownTargetError(f"can't tell the version of {image}, which {source} boots next; {_STATE_IT}")
    return match[1]


def problems(root: Path, target: Target, running: str, run: Run, builder: Builder | None) -> list[str]:
    """Say what would keep a host from coming back with the kernel that boots next, each with its remedy.

    Args:
        root: the host's root directory.
        target: the kernel that boots next.
        running: the version of the running kernel.
        run: runs the programs that list an initramfs.
        builder: what builds the initramfs images of the host.
    """
    found = [*target.waits, *_image_problems(root, target), *_initramfs_problems(root, target, run, builder)]
    if not (root / "lib/modules" / target.kernel / "modules.dep").is_file():
        found.append(
            f"/lib/modules/{target.kernel}/modules.dep is missing, so kernel {target.kernel} would load no modules; "
            f"run `depmod {target.kernel}`, or install that kernel's packages again"
        )
    elif fault := _driver_problem(root, target.kernel, running):
        found.append(fault)
    if writer := _package_manager(root):
        found.append(f"packages are being changed ({writer}); wait until that has ended")
    elif any(file.name.isdecimal() for file in (root / "var/lib/dpkg/updates").glob("*")):
        found.append("dpkg was interrupted (/var/lib/dpkg/updates is not empty); run `dpkg --configure -a`")
    return found


def _on_host(root: Path, path: Path) -> str:
    return f"/{path.relative_to(root)}"


def _content_fault(root: Path, path: Path) -> str | None:
    if not path.is_file():
        return f"{_on_host(root, path)} does not exist"
    return f"{_on_host(root, path)} is empty" if path.stat().st_size == 0 else None


def _image_problems(root: Path, target: Target) -> Iterator[str]:
    if target.image and (fault := _content_fault(root, target.image)):
        yield (
            f"{fault}, and {target.source} boots it next; install the package of kernel {target.kernel} again, "
            f"or run `update-grub` if it was removed"
        )


def _initramfs_problems(root: Path, target: Target, run: Run, builder: Builder | None) -> Iterator[str]:
    if target.initramfs is None:
        return
    if not target.initramfs and not _runs_without_initramfs(root):
        rebuild = _rebuilding(builder, target.kernel, "-c")
        yield (
            f"kernel {target.kernel} boots next without an initramfs; run {rebuild} and `update-grub` (on Ubuntu's cloud "
            f"images, empty GRUB_FORCE_PARTUUID in /etc/default/grub.d first)"
        )
    for path in target.initramfs:
        fault = _content_fault(root, path)
        if not fault and not is_plain_cpio(path):
            error = _listing_error(path, run)
            fault = f"{_on_host(root, path)} is damaged ({error})" if error else None
        if fault:
            rebuild = _rebuilding(builder, target.kernel, "-u" if path.exists() else "-c")
            yield f"{fault}, and kernel {target.kernel} boots with it next; run {rebuild}"


def _rebuilding(builder: Builder | None, kernel: str, option: str) -> str:
    """Return the command that writes an initramfs."""
    return f"`dracut --force --kver {kernel}`" if isinstance(builder, Dracut) else f"`update-initramfs {option} -k {kernel}`"


def _runs_without_initramfs(root: Path) -> bool:
    """Tell whether the running kernel was given no initramfs: its size in the boot parameters (x86) is zero."""
    try:
        return (root / "sys/kernel/boot_params/data").read_bytes()[0x21C:0x220] == bytes(4)
    except OSError:
        return False


def _listing_error(path: Path, run: Run) -> str | None:
    for lister in ("lsinitramfs", "lsinitrd"):
        if answer := run([lister, str(path)]):
            code, _, error = answer
            return None if code == 0 else (error.strip().splitlines() or [f"{lister} ended with {code}"])[-1]
    return None


def is_plain_cpio(path: Path) -> bool:
    """Tell whether a file is a complete initramfs without compression, which lsinitramfs of Debian 12 calls damaged."""
    has_init = False
    with path.open("rb") as file:
        while True:
            header = file.read(_CPIO_HEADER_SIZE)
            if not _CPIO_HEADER.fullmatch(header):
                return False
            name_size, size = int(header[94:102], 16), int(header[54:62], 16)
            if name_size > _CPIO_NAME_LIMIT:
                return False
            name = file.read(name_size).rstrip(b"\0")
            # Names and contents are each padded to four bytes.
            file.seek(-file.tell() % 4 + size, os.SEEK_CUR)
            file.seek(-file.tell() % 4, os.SEEK_CUR)
            has_init = has_init or name in (b"init", b"./init")
            if name == b"TRAILER!!!":
                while (word := file.read(4)) and not word.strip(b"\0"):
                    pass
                if not word:
                    return has_init
                file.seek(-len(word), os.SEEK_CUR)


def _nvidia_modules(root: Path, kernel: str) -> list[str]:
    """Return the paths of the driver's main module among those that a kernel's depmod knows."""
    listed = (read_text(root / "lib/modules" / kernel / "modules.dep") or "").splitlines()
    paths = [line.partition(":")[0] for line in listed]
    return [path for path in paths if _NVIDIA.fullmatch(Path(path).name)]


def _driver_problem(root: Path, kernel: str, running: str) -> str | None:
    if _nvidia_modules(root, kernel):
        return None
    directory = root / "lib/modules"
    # DKMS leaves directories of kernels that were removed.
    installed = [
        path.name for path in directory.iterdir() if path.name == running or (root / f"boot/vmlinuz-{path.name}").exists()
    ]
    having = [version for version in sorted(installed) if _nvidia_modules(root, version)]
    loaded = any(line.startswith("nvidia ") for line in (read_text(root / "proc/modules") or "").splitlines())
    if not having and not loaded:
        return None
    if any(
        _NVIDIA.fullmatch(file.name) for name in ("updates", "extra") for file in (directory / kernel / name).rglob("nvidia*")
    ):
        return f"kernel {kernel} boots next and its list of modules lacks the nvidia module; run `depmod {kernel}`"
    others = f" ({', '.join(having)} has one)" if having else ""
    return (
        f"kernel {kernel} boots next and has no nvidia module{others}, so the GPUs would be lost; build it with "
        f"`dkms autoinstall -k {kernel}`, install it (Ubuntu: linux-modules-nvidia-*-{kernel}), or keep a kernel that has it "
        f"with grub-reboot or grub-set-default"
    )


def _package_manager(root: Path) -> str | None:
    """Return the name and number of the process that holds a lock of dpkg, if there is one."""
    locks = [path for name in ("lock-frontend", "lock") if (path := root / "var/lib/dpkg" / name).exists()]
    inodes = {str(path.stat().st_ino) for path in locks}
    # 1: POSIX  ADVISORY  WRITE 4711 fe:00:396312 0 EOF
    for line in (read_text(root / "proc/locks") or "").splitlines():
        match = re.fullmatch(r"\d+: \S+ +\S+ +\S+ +(\d+) +\S+:(\d+) .*", line)
        # Other file systems use the same inodes, and the device in this list is not what stat tells on Btrfs or overlayfs.
        if match and match[2] in inodes and _has_open(root / "proc" / match[1], locks):
            return f"{read_text(root / 'proc' / match[1] / 'comm') or 'unknown'}, process {match[1]}"
    return None


def _has_open(process: Path, files: list[Path]) -> bool:
    for descriptor in (process / "fd").glob("*"):
        try:
            if any(descriptor.samefile(file) for file in files):
                return True
        except OSError:  # closed, or not a file
            continue
    return False
