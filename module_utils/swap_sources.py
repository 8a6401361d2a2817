"""Everything that gives a host swap, now and at the next boot, and the plan to end it.

Units that generators write (from fstab, from GPT partitions, for zram) are started by swap.target alone. Their names need
not hold: since systemd 255 that of a GPT partition has a number which is new at each boot. So they are kept away by the mask
of swap.target, and only unit files, which any target may want, are masked by name.

Every function takes the root directory it works under, so that all of it can be tried on a made-up tree. None writes.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ansible.module_utils import fstab
from ansible.module_utils.host_limits import MIB, size

#: Stands before lines of fstab that the role took out of use.
PREFIX = "# swap_removal: "

#: Services that make swap themselves, and the packages that bring them.
SERVICES = {
    "zramswap.service": "zram-tools",
    "zram-config.service": "zram-config",
    "dphys-swapfile.service": "dphys-swapfile",
    "swapspace.service": "swapspace",
}

FSTAB = "etc/fstab"
CLOUD = "etc/cloud/cloud.cfg.d/99-groundwork-swap.cfg"
# cloud-init merges these files key by key, the last name first: without a size it makes no file, whatever `filename` says.
# It has no such switch for lists of mounts: a list of ours would take the place of the host's own.
CLOUD_TEXT = "# Managed by Groundwork (role swap_removal). Changes here are overwritten.\nswap: {size: 0}\n"

#: What cloud-init made of the data of this instance, which wins over all files in /etc/cloud, and where it came from.
_INSTANCE = {
    "cloud-config.txt": "user data",
    "vendor2-cloud-config.txt": "vendor data",
    "vendor-cloud-config.txt": "vendor data",
}
# A key, and what belongs to it: all up to the next line that begins one. Targets have no YAML reader. Whoever writes these
# keys in an unusual way gets a note too many rather than none.
_KEY = r"""(?:^|[{,]\s*)["']?%s["']?\s*:.*(?:\n(?:[ \t\r#}\]-].*)?)*"""
_SIZE = re.compile(r"""\bsize["']?\s*:\s*["']?([^\s,}"']*)""")
_NO_SIZE = re.compile("0+[A-Za-z]*")
# The third field, or any but the first: `[swap, null]` is how cloud-init is told to leave swap out.
_MOUNT_OF_SWAP = re.compile(r"""(?:,|^\s*-)\s*["']?swap["']?\s*(?:,|\]|$)""", re.MULTILINE)

MASKS = "etc/systemd/system"
_GENERATED = ("run/systemd/generator", "run/systemd/generator.late")
# In the order of systemd.unit(5). generator.early is missing: a mask in /etc has no effect on it, and nothing writes swap there.
_UNITS = (
    MASKS,
    "run/systemd/system",
    _GENERATED[0],
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
    _GENERATED[1],
)
_UNIT_CHARACTERS = re.compile(r"[^A-Za-z0-9:_.]")
# mkswap writes this at the end of the first page.
_SIGNATURE = b"SWAPSPACE2"


class Active(NamedTuple):
    """Swap in use: its path, the path as /proc/swaps writes it, its kind, sizes in KiB, its priority."""

    path: str
    name: str
    kind: str
    size: int
    used: int
    priority: int


class SwapFile(NamedTuple):
    """A swap file and its size in bytes."""

    path: str
    size: int


@dataclass
class Plan:
    """Everything that a run does and says; nothing may be done while `faults` is not empty.

    Paths begin with a slash and are meant below the root directory. `comment` has the numbers of fstab's lines. `mask` has
    the reason for each unit; `displace` are files in the way of a mask or of cloud-init's file, which go to the backup.
    `turn_off` is in the order in which it is done, with the unit of each that has one.
    """

    fstab_before: str = ""
    fstab_after: str = ""
    comment: list[int] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)
    turn_off: list[tuple[Active, str | None]] = field(default_factory=list)
    displace: list[str] = field(default_factory=list)
    mask: dict[str, str] = field(default_factory=dict)
    cloud: bool = False
    reload: bool = False
    delete: list[SwapFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def actions(self) -> list[str]:
        """What the run does, one sentence each."""
        lines = self.fstab_before.split("\n")
        actions = [
            *(f"turn off {swap.path} ({swap.size // 1024} MiB, {swap.used // 1024} MiB in use)" for swap, _ in self.turn_off),
            *(f"stop {name} of the package {SERVICES[name]}" for name in self.stop),
            *(f"comment out line {number} of /{FSTAB}: {lines[number - 1].strip()}" for number in self.comment),
            *(f"move {path} to the backup" for path in self.displace),
            *(f"mask {name}: {reason}" for name, reason in self.mask.items()),
            *([f"write /{CLOUD}: cloud-init makes no swap"] if self.cloud else []),
            *(["reload systemd, which reads fstab and the masks"] if self.reload else []),
            *(f"delete {file.path} ({file.size // MIB} MiB)" for file in self.delete),
        ]
        return [shown(action) for action in actions]


def shown(text: str) -> str:
    """Text that can be printed, also where it came from bytes that are no UTF-8."""
    return os.fsencode(text).decode(errors="replace")


def unit_name(path: str, suffix: str = ".swap") -> str:
    r"""The name of the unit for a path, as `systemd-escape --path` makes it: /dev/disk/by-id/a is dev-disk-by\x2did-a."""
    parts = [part for part in path.split("/") if part]
    escaped = "-".join(_UNIT_CHARACTERS.sub(_escape, part) for part in parts) or "-"
    return (_escape(escaped[0]) + escaped[1:] if escaped.startswith(".") else escaped) + suffix


def _escape(character: str | re.Match[str]) -> str:
    """A character as systemd writes it in names of units, byte by byte."""
    text = character if isinstance(character, str) else character[0]
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(text))


def active_swaps(root: Path) -> list[Active]:
    """The swap in use; that with the highest priority, which the kernel fills first, is last."""
    file = root / "proc/swaps"
    rows = [line.split() for line in (fstab.read(file) or "").splitlines()[1:]]
    swaps = [
        Active(fstab.decode(name), name, kind, int(total), int(used), int(priority)) for name, kind, total, used, priority in rows
    ]
    return sorted(swaps, key=lambda swap: swap.priority)


def has_systemd(root: Path) -> bool:
    """Whether systemd runs the host, as sd_booted(3) tells it."""
    return (root / "run/systemd/system").is_dir()


def is_mask(file: Path) -> bool:
    """Whether systemd takes the file for a mask: a link to /dev/null, or an empty file."""
    return file.exists() and (not file.is_file() or file.stat().st_size == 0)


def unit_file(root: Path, name: str) -> str | None:
    """The file, below the root, that the next boot reads a unit from; None if there is none or it is masked."""
    for folder in _UNITS:
        file = root / folder / name
        if is_mask(file):
            if folder == MASKS:
                return None
            continue  # one in /run is gone at the next boot
        if file.exists():
            return f"/{folder}/{name}"
    return None


def known_services(root: Path) -> list[str]:
    """Services of the table that the host has, also masked ones: they may still run."""
    return [name for name in SERVICES if any(os.path.lexists(root / folder / name) for folder in _UNITS)]


def _swap_units(root: Path) -> dict[str, str]:
    """Name -> file of all .swap units that are not masked."""
    names = sorted({file.name for folder in _UNITS for file in (root / folder).glob("*.swap")})
    files = {name: unit_file(root, name) for name in names}
    return {name: file for name, file in files.items() if file}


def _is_generated(file: str) -> bool:
    return file.startswith(tuple(f"/{folder}/" for folder in _GENERATED))


def _plan_units(plan: Plan, root: Path, units: dict[str, str]) -> None:
    """Mask what starts swap at boot."""
    for name, file in units.items():
        if not _is_generated(file):
            plan.mask[name] = f"{file} turns swap on"
    for name in known_services(root):
        if unit_file(root, name):
            plan.mask[name] = f"the package {SERVICES[name]} makes swap with it"
    if not is_mask(root / MASKS / "swap.target"):
        generated = ", ".join(name for name, file in units.items() if _is_generated(file))
        plan.mask["swap.target"] = "it starts all generated swap units at boot" + (f", now {generated}" if generated else "")
    plan.displace += [f"/{MASKS}/{name}" for name in plan.mask if os.path.lexists(root / MASKS / name)]


def _plan_fstab(plan: Plan, root: Path) -> None:
    """Comment out entries of swap."""
    plan.fstab_before = fstab.read(root / FSTAB) or ""
    for line in fstab.parse(plan.fstab_before):
        if isinstance(line, fstab.Fault):
            plan.faults.append(
                f"line {line.line} of /{FSTAB} can't be read: {line.text!r}; it has fewer than three fields, or a fifth or sixth "
                f"one that is no number; correct it, or put # before it"
            )
        elif line.fstype == "swap":
            plan.comment.append(line.line)
    plan.fstab_after = fstab.comment_out(plan.fstab_before, set(plan.comment), PREFIX)


def _plan_cloud(plan: Plan, root: Path) -> None:
    """Keep cloud-init from making swap, and say where it does so nevertheless."""
    file = root / CLOUD
    if not file.parent.is_dir():
        return
    if not file.is_file() or file.read_text(errors="replace") != CLOUD_TEXT:
        plan.cloud = True
        plan.displace += [f"/{CLOUD}"] if os.path.lexists(file) else []
    plan.notes += _cloud_notes(plan, root)


def _cloud_notes(plan: Plan, root: Path) -> list[str]:
    """Settings of cloud-init that ask for swap in spite of the role's file."""
    ours, instance = root / CLOUD, root / "var/lib/cloud/instance"
    again = "or cloud-init makes swap again when this machine becomes a new instance"
    sources = dict.fromkeys([root / "etc/cloud/cloud.cfg", *sorted(ours.parent.glob("*.cfg"))], "")
    sources |= {instance / name: f", made of the {data}," for name, data in _INSTANCE.items()}
    files, mounts = [], []
    for file, origin in sources.items():
        text = re.sub(r"(?:^|\s)#.*", "", file.read_text(errors="replace"), flags=re.MULTILINE) if file.is_file() else ""
        wins = file.parent == instance or (file.parent == ours.parent and file.name > ours.name)
        there = f"/{file.relative_to(root)}{origin}"
        if wins and any(_asks_for_size(block) for block in _blocks("swap", text)):
            files.append(f"{there} asks for swap and wins over /{CLOUD}: take it out there, {again}")
        if any(_MOUNT_OF_SWAP.search(block) for block in _blocks("mounts", text)):
            mounts.append(f"{there} has swap in its list of mounts: take it out there, {again}")
    # cloud-init marks its lines. Where no list asks for the device, it took it from the cloud's metadata, as is its default.
    marked = [line for line in _entries_of_old(plan) if "comment=cloudconfig" in (line.options or "").split(",")]
    devices = [
        f"cloud-init wrote line {line.line} of /{FSTAB}, with a device that its cloud has for swap: put `mounts: [[swap]]` into "
        f"the user data, {again}"
        for line in marked
        if line.source.startswith("/dev/") and not mounts
    ]
    return files + mounts + devices


def _blocks(key: str, text: str) -> list[str]:
    """What YAML has under a key at its top."""
    return re.findall(_KEY % key, text, re.MULTILINE)


def _asks_for_size(block: str) -> bool:
    """Whether the block can make cloud-init write a swap file: whether it has no size that says none."""
    sizes = _SIZE.findall(block)
    return not sizes or not all(_NO_SIZE.fullmatch(size) for size in sizes)


def _entries_of_old(plan: Plan) -> list[fstab.Entry]:
    """Entries of swap in fstab, with the lines that this run and earlier ones took out of use."""
    lines = fstab.parse(re.sub(f"^{PREFIX}", "", plan.fstab_after, flags=re.MULTILINE))
    return [line for line in lines if isinstance(line, fstab.Entry) and line.fstype == "swap"]


def _plan_access(plan: Plan, root: Path) -> None:
    """Refuse where a directory can't be written, before swap is turned off, which may take minutes."""
    table = Path(os.path.realpath(root / FSTAB))
    places = [
        *([table.parent, table] if plan.comment else []),
        *([root / MASKS] if plan.mask else []),
        *([(root / CLOUD).parent] if plan.cloud else []),
    ]
    existing = [next(path for path in (place, *place.parents) if path.exists()) for place in places]
    # access(2) refuses root too where a file system is read-only or the file or directory is immutable.
    blocked = ", ".join(str(path) for path in dict.fromkeys(existing) if not os.access(path, os.W_OK))
    if blocked:
        plan.faults.append(f"{blocked} can't be written; mount the file system read-write, or look for i in `lsattr -d`")


def _plan_memory(plan: Plan, root: Path, reserve: str) -> None:
    """Refuse to bring back more than memory can hold. zram gives its own memory back, but only after its pages are out."""
    used = sum(swap.used for swap, _ in plan.turn_off)
    try:
        kept = size(reserve) // 1024
    except ValueError as error:
        plan.faults.append(f"swap_removal_reserve: {error}")
        return
    if not used:
        return
    available = int((root / "proc/meminfo").read_text().split("MemAvailable:")[1].split()[0])
    if used > available - kept:
        plan.faults.append(
            f"turning off swap would bring {-(-used // 1024)} MiB back into memory, {available // 1024} MiB are available and "
            f"{kept // 1024} MiB must stay free; stop something first, or lower swap_removal_reserve"
        )


def _swap_files(root: Path, paths: list[str]) -> list[SwapFile]:
    """Those of the paths that are regular files and hold swap by their signature."""
    found = []
    for path in dict.fromkeys(paths):
        file = root / path.lstrip("/")
        if path.startswith("/") and os.path.lexists(file) and stat.S_ISREG(file.lstat().st_mode):
            with file.open("rb") as content:
                first = content.read(65536)
            if any(first[page - len(_SIGNATURE) : page] == _SIGNATURE for page in (4096, 16384, 65536)):
                found.append(SwapFile(path, file.stat().st_size))
    return found


def make_plan(root: Path, wanted: dict[str, object], running: set[str]) -> Plan:
    """Take stock of every source of swap and plan its end.

    Args:
        root: the host's root directory.
        wanted: the options deactivate, reserve and delete_files of the module swap_removal.
        running: those of the known services that run now.
    """
    plan, units, swaps = Plan(), _swap_units(root), active_swaps(root)
    texts = {name: (root / file.lstrip("/")).read_text(errors="surrogateescape") for name, file in units.items()}
    _plan_units(plan, root, units)
    _plan_fstab(plan, root)
    _plan_cloud(plan, root)
    _plan_access(plan, root)
    # A run that was interrupted may have left systemd with the units that it made of fstab.
    forgotten = any(_is_generated(file) and "SourcePath=/etc/fstab" in texts[name] for name, file in units.items())
    plan.reload = has_systemd(root) and bool(plan.comment or plan.mask or forgotten)
    waagent = root / "etc/waagent.conf"
    if waagent.is_file() and re.search(r"^ResourceDisk\.EnableSwap\s*=\s*y", waagent.read_text(errors="replace"), re.MULTILINE):
        plan.notes.append("/etc/waagent.conf has ResourceDisk.EnableSwap=y: set it to n, or the Azure agent makes swap at boot")
    if wanted["deactivate"]:
        plan.stop = [name for name in SERVICES if name in running]
        plan.turn_off = [(swap, name if (name := unit_name(swap.path)) in units else None) for swap in swaps]
        plan.faults += [
            f"the file of {swap.path} was deleted while it is in use, and the kernel can't turn it off any more; set "
            f"swap_removal_deactivate to false and reboot"
            for swap in swaps
            if swap.name.endswith("\\040(deleted)")
        ]
    else:
        plan.notes += [f"{swap.path} stays on until the next boot" for swap in swaps]
    _plan_memory(plan, root, str(wanted["reserve"]))
    if wanted["delete_files"]:
        what = [re.search(r"^What=(.*)$", text, re.MULTILINE) for text in texts.values()]
        paths = [entry.source for entry in _entries_of_old(plan)] + [swap.path for swap in swaps]
        paths += [match[1] for match in what if match]
        kept = set() if wanted["deactivate"] else {swap.path for swap in swaps}
        plan.delete = _swap_files(root, [path for path in paths if path not in kept])
    plan.notes, plan.faults = ([shown(text) for text in sentences] for sentences in (plan.notes, plan.faults))
    return plan


def restore_script(plan: Plan, root: Path, backup: Path) -> str:
    """A shell script that undoes the plan, whether all of it was done or a part. Files that replaced ones are in `backup`."""

    def at(path: str) -> str:
        return shlex.quote(str(root / path.lstrip("/")))

    steps: list[str] = []
    if plan.comment:
        steps += [
            f"# Only the prefixes of this run go, so that later changes stay. The whole file as it was: {backup}/fstab",
            f"cmp -s {shlex.quote(f'{backup}/fstab')} {at(FSTAB)} ||",
            f"\tLC_ALL=C sed --in-place --follow-symlinks {shlex.quote(_uncomment(plan))} {at(FSTAB)} || failed=1",
        ]
    steps += [f"unmask {at(f'{MASKS}/{name}')}" for name in plan.mask]
    if plan.cloud and f"/{CLOUD}" not in plan.displace:
        steps.append(f"rm -f {at(CLOUD)} || failed=1")
    steps += [f"put_back {shlex.quote(str(backup / Path(path).name))} {at(path)}" for path in plan.displace]
    if plan.reload:
        steps.append("systemctl daemon-reload || failed=1")
    # One that was masked before could not be started.
    steps += [f"systemctl start {name} || failed=1" for name in plan.stop if name in plan.mask]
    deleted = {file.path: file.size for file in plan.delete}
    for swap, unit in plan.turn_off:
        priority = f"--priority {swap.priority} " if swap.priority >= 0 else ""
        start = f"systemctl start {shlex.quote(unit)}" if unit else f"swapon {priority}{shlex.quote(swap.path)}"
        guard = "[ ! -e " + at(swap.path) + " ] || " if swap.path in deleted else ""
        steps.append(f"{guard}is_on {shlex.quote(swap.name)} || {start} || failed=1")
    remarks = [
        f"# {path} was deleted. To have it again, before you run this file:\n"
        f"#   fallocate --length {bytes_} {shlex.quote(path)} && chmod 0600 {shlex.quote(path)} && mkswap {shlex.quote(path)}"
        for path, bytes_ in deleted.items()
    ]
    return "\n".join([_SCRIPT_HEAD.format(swaps=at("proc/swaps")), *remarks, *steps, "exit $failed", ""])


def _uncomment(plan: Plan) -> str:
    """Commands of sed that take the prefix from the lines that this run puts it before, and from no others."""
    lines = plan.fstab_before.split("\n")
    literal = [re.sub(r"[\\.\[*^$/]", r"\\\g<0>", lines[number - 1]) for number in plan.comment]
    return "\n".join(f"s/^{PREFIX}\\({line}\\)$/\\1/" for line in literal)


_SCRIPT_HEAD = """\
#!/bin/sh
# Undoes what one run of the role swap_removal did. Run it as root; it may be repeated. After several runs, take their
# newest backup first.
failed=0

is_on() {{
	cut -d ' ' -f 1 {swaps} | grep -q -x -F -e "$1"
}}
unmask() {{
	[ "$(readlink "$1")" != /dev/null ] || rm "$1" || failed=1
}}
put_back() {{
	{{ [ ! -e "$1" ] && [ ! -L "$1" ]; }} || cmp -s "$1" "$2" || mv "$1" "$2" || failed=1
}}
"""
