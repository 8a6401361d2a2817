"""What a sysctl drop-in must hold, which live values differ from it, and which other files interfere with it.

A key is held as its path under /proc/sys. Nothing here writes except `write_live`. Every function that touches files
takes the root directory it works under, so that all of it can be tried on a made-up tree.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ansible.module_utils.drop_ins import drop_ins

HEADER = "# Managed by Groundwork (role sysctl_tuning). Changes here are overwritten.\n"

#: Why a key may be missing, by the beginning of its path.
WHY_MISSING = {
    "net/bridge/": "the module br_netfilter provides it",
    "net/netfilter/nf_conntrack": "the module nf_conntrack provides it",
    "net/nf_conntrack_max": "the module nf_conntrack provides it",
    "net/ipv4/vs/": "the module ip_vs provides it",
    "net/ipv4/tcp_tw_recycle": "Linux 4.12 removed it",
    "dev/i915/enable_rc6": "it was a parameter of the module i915, never a sysctl",
}

# Digits in these are masks and ranges (00ff, 8080-8090): they neither compare nor count as numbers.
_MASKS = ("mask", "bitmap", "reserved_ports")
# The kernel reads 010 as octal and 0x10 as hexadecimal, and shows both in decimal: file and live value would differ.
_NUMBER = re.compile(r"-?(0|[1-9]\d*)")
_NAME = re.compile(r"[^\s=*?\[#;-][^\s=*?\[]*")
_PATH = re.compile(r"/etc/sysctl\.d/[^./][^/]*\.conf")
_SWAP = str.maketrans("./", "/.")


class Setting(NamedTuple):
    """One line of a sysctl file; without a value (`-key`) it takes back what earlier files set."""

    key: str
    value: str | None
    file: str
    line: int
    may_fail: bool


class Change(NamedTuple):
    """A key's live value now and after the run."""

    key: str
    before: str
    after: str


@dataclass
class Plan:
    """Everything a run does and reports; nothing may be done while `faults` is not empty.

    `before` and `after` are the file's text, None for no file. `unread` is like `overrides`, of a file that the boot
    does not read.
    """

    before: str | None
    after: str | None
    live: list[Change] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    missing: list[dict[str, str]] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    overrides: list[dict[str, Any]] = field(default_factory=list)
    unread: list[dict[str, Any]] = field(default_factory=list)
    foreign_faults: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class FaultyError(ValueError):
    """An entry that must be corrected before anything is written."""


class KernelRefusedError(Exception):
    """The kernel did not take a live value; all live values are as before."""


def key_path(name: str) -> str:
    """Path under /proc/sys: the first separator in the name says which of dot and slash separates (sysctl.d(5))."""
    first = re.search(r"[./]", name)
    path = name.translate(_SWAP) if first and first.group() == "." else name
    return "/".join(part for part in path.split("/") if part)


def key_name(path: str) -> str:
    """The dotted name of a path under /proc/sys; a dot in an interface's name becomes a slash."""
    return path.translate(_SWAP)


def normalise(value: str) -> str:
    """A value with single spaces, as the kernel separates fields by tabs and people by spaces."""
    return " ".join(value.split())


def numbers(value: str) -> list[int] | None:
    """The decimal numbers that a value consists of, or None if it holds anything else."""
    fields = value.split()
    return [int(item) for item in fields] if fields and all(map(_NUMBER.fullmatch, fields)) else None


def at_least(value: str | None, minimum: str) -> bool:
    """Whether every number of a value reaches the one at its place in the minimum."""
    have, want = numbers(value or ""), numbers(minimum)
    if have is None or want is None or len(have) != len(want):
        return False
    return all(mine >= wanted for mine, wanted in zip(have, want, strict=True))


def highest(value: str, other: str) -> str:
    """The greater number at each place of two values that hold equally many."""
    pairs = zip(numbers(value) or [], numbers(other) or [], strict=True)
    return " ".join(str(max(pair)) for pair in pairs)


def live_file(root: Path, key: str) -> Path:
    """Where the kernel shows a key."""
    return root / "proc/sys" / key


def read_live(root: Path, key: str) -> str:
    """A key's live value."""
    return normalise(live_file(root, key).read_text(errors="replace"))


def read_text(file: Path) -> str | None:
    """Text of a file, None if there is none."""
    return file.read_text(errors="replace") if file.exists() else None


def parse(text: str, file: str) -> tuple[list[Setting], list[str]]:
    """Read a sysctl file as systemd-sysctl does; the second part names the lines it would ignore."""
    settings, broken = [], []
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        left, equals, value = line.partition("=")
        key, dashed = key_path(left.removeprefix("-").strip()), left.startswith("-")
        if key and (equals or dashed):
            settings.append(Setting(key, normalise(value) if equals else None, file, number, dashed))
        else:
            broken.append(f"{file}:{number}: {line!r} is not an assignment")
    return settings, broken


def value_fault(key: str, rule: str, value: str, live: str) -> str | None:
    """What is wrong with a wanted value, as far as the live value tells without writing it."""
    if not value:
        return "the value is empty"
    if "\n" in value:
        return f"the value {value!r} spans lines; a sysctl value is one line"
    have, want = numbers(live), numbers(value)
    if have is None or key.endswith(_MASKS):
        return f"rule minimum needs numbers, and the kernel's value is {live!r}" if rule == "minimum" else None
    if want is None:
        return f"{value!r} is not a decimal number; the kernel's value is {live!r}"
    if len(want) != len(have):
        return f"{value!r} holds {len(want)} number(s), the kernel's value {live!r} holds {len(have)}"
    return None


def absence(key: str) -> str:
    """Say that a key is missing, and why if that is known."""
    why = next((f" ({why})" for prefix, why in WHY_MISSING.items() if key.startswith(prefix)), "")
    return f"/proc/sys/{key} does not exist{why}"


def _add_parameter(plan: Plan, root: Path, entry: dict[str, Any], carried: dict[str, str | None], *, apply: bool) -> str:
    """Put one wanted parameter into the plan, or why it is skipped; return its lines, or raise FaultyError."""
    key, rule = key_path(entry["name"]), entry["rule"]
    name, file = key_name(key), live_file(root, key)
    if not key or not _NAME.fullmatch(entry["name"]) or ".." in key.split("/"):
        raise FaultyError("not the name of one key, such as vm.swappiness")
    if name in plan.settings:
        raise FaultyError(f"{name} is listed twice; keep one entry")
    if not file.exists():
        if rule != "optional":
            remedy = "load the module that has it through /etc/modules-load.d, give it rule optional, or remove it"
            raise FaultyError(f"{absence(key)}; {remedy}")
        plan.missing.append({"name": name, "reason": absence(key)})
        return ""
    if file.is_dir():
        raise FaultyError("a group of keys; name each key in it")
    try:
        live = read_live(root, key)
    except OSError as error:
        raise FaultyError(f"its value cannot be read ({error.strerror}), so it is no setting; remove it") from error

    wanted = (entry["value"] or "").strip()
    if fault := value_fault(key, rule, wanted, live):
        raise FaultyError(fault)
    value = after = normalise(wanted)
    if rule == "minimum":
        # What the file already grants stays: the live value may rise for a while without the file following it.
        granted = carried.get(key)
        value = granted if granted and at_least(granted, wanted) else highest(wanted, live)
        after = highest(value, live)
    if apply and after != live and not os.access(file, os.W_OK):
        remedy = "set it on the host that owns this kernel, or write only the file (apply: false)"
        raise FaultyError(f"the live value is read-only here, as in an unprivileged container; {remedy}")
    plan.settings[name] = value
    plan.live.append(Change(key, live, after))
    mark = "# at least\n" if rule == "minimum" else ""
    return f"{mark}{name} = {value}\n"


def _add_foreign(plan: Plan, root: Path, own: Path, minimums: set[str]) -> None:
    """Put into the plan what the other sysctl files say about our keys, and what is broken in them."""

    def read(file: Path) -> list[Setting]:
        found, broken = parse(read_text(file) or "", "/" + os.path.relpath(file.resolve(), root.resolve()))
        gone = [item for item in found if item.value is not None and not item.may_fail and not _is_there(root, item)]
        plan.foreign_faults += broken + [f"{item.file}:{item.line}: {absence(item.key)}" for item in gone]
        return found

    def conflicts(found: list[Setting]) -> list[dict[str, Any]]:
        # Only the last line counts. A pattern never does: systemd-sysctl and procps put an explicit key before it.
        last = {key_name(item.key): item for item in found}
        return [
            {"key": name, "ours": ours, "theirs": last[name].value, "file": last[name].file, "line": last[name].line}
            for name, ours in plan.settings.items()
            if name in last and not (at_least(last[name].value, ours) if name in minimums else last[name].value == ours)
        ]

    files = [file for file in drop_ins(root, "sysctl.d") if file != own]
    later = []
    for file in files:
        found = read(file)
        later += found if file.name > own.name else []
    plan.overrides = conflicts(later)
    legacy = root / "etc/sysctl.conf"
    if all(file.resolve() != legacy.resolve() for file in files):
        plan.unread = conflicts([item for item in read(legacy) if item.value is not None])


def _is_there(root: Path, setting: Setting) -> bool:
    """Whether the key of a foreign line exists; a pattern may match nothing."""
    return bool(re.search(r"[*?\[]", setting.key)) or live_file(root, setting.key).exists()


def make_plan(root: Path, path: str, parameters: list[dict[str, Any]], *, apply: bool) -> Plan:
    """Compare the wanted parameters (name, value, rule) with the file at `path`, the kernel and the other files."""
    plan = make_removal(root, path)
    plan.after = HEADER
    carried = {item.key: item.value for item in parse(plan.before or "", path)[0]}
    for entry in parameters:
        try:
            plan.after += _add_parameter(plan, root, entry, carried, apply=apply)
        except FaultyError as fault:
            plan.faults.append(f"{entry['name']}: {fault}")
    plan.released = [name for name in plan.released if name not in plan.settings]
    minimums = {key_name(key_path(entry["name"])) for entry in parameters if entry["rule"] == "minimum"}
    _add_foreign(plan, root, root / path.lstrip("/"), minimums)
    return plan


def make_removal(root: Path, path: str) -> Plan:
    """Let go of all keys of the file at `path`, and of the file."""
    before = read_text(root / path.lstrip("/"))
    plan = Plan(before, None, released=[key_name(item.key) for item in parse(before or "", path)[0]])
    if not _PATH.fullmatch(path):
        plan.faults.append(f"path {path}: systemd-sysctl does not read it; use /etc/sysctl.d/<name>.conf")
    return plan


def write_live(root: Path, changes: list[Change]) -> None:
    """Write live values in order; if the kernel does not take one, put all back and raise KernelRefusedError."""
    refusal, tried = "", []
    for change in changes:
        tried.append(change)
        try:
            live_file(root, change.key).write_text(change.after)
        except OSError as error:
            refusal = f"{key_name(change.key)} = {change.after}: the kernel refused the value ({error.strerror})"
            break
    else:
        # Some keys take a value and keep another one (cut off, reordered, reset by a sibling key).
        for change in changes:
            if (kept := read_live(root, change.key)) != change.after:
                refusal = f"{key_name(change.key)} = {change.after}: the kernel made it {kept!r}; ask for what it keeps"
                break
    if refusal:
        for change in reversed(tried):
            if read_live(root, change.key) != change.before:
                live_file(root, change.key).write_text(change.before)
        raise KernelRefusedError(refusal)
