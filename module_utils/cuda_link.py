"""Who owns /usr/local/cuda: the alternatives system where the group `cuda` is registered, a plain link otherwise.

NVIDIA's packages register the group in automatic mode, where any newer package, even one without a compiler, takes the
link. Its runfile writes a plain link over whatever is there. Manual mode, set again on each run, is what keeps it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

LINK = "/usr/local/cuda"
GROUP = "cuda"
#: Below that of every package (its version, such as 128): a tree of the role never wins in automatic mode.
PRIORITY = "1"


@dataclass(frozen=True)
class Group:
    """The group of alternatives: `choices` has path -> priority."""

    status: str
    value: str
    choices: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Link:
    """The link as it is: the path that it holds (None without one), and the group, if any package registered it."""

    holds: str | None
    group: Group | None

    @property
    def through_group(self) -> bool:
        """Whether the alternatives system still has the link."""
        return self.holds == f"/etc/alternatives/{GROUP}"

    def describe(self) -> str:
        """One line that says where the link leads, and who decides that."""
        if self.holds is None:
            return "absent"
        if self.group and self.through_group:
            return f"{self.group.value} (alternatives, {self.group.status})"
        return f"{self.holds} (plain link)"


def parse_group(query: str) -> Group:
    """Read what `update-alternatives --query` prints."""
    head, *alternatives = re.split(r"\n\n(?=Alternative: )", query.strip())
    fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line and not line.startswith(" "))
    choices = dict(re.findall(r"^Alternative: (\S+)\nPriority: (-?\d+)$", "\n".join(alternatives), re.MULTILINE))
    return Group(fields["Status"], fields["Value"], {path: int(priority) for path, priority in choices.items()})


def read_link(root: Path) -> str | None:
    """Return what the link holds, None without one; ValueError if something else has its name."""
    link = root / LINK.lstrip("/")
    if link.is_symlink():
        return str(link.readlink())
    if link.exists():
        raise ValueError(
            f"{LINK} is no link but holds files of its own; move it to {LINK}-<version>, so that the role can set the link"
        )
    return None


def commands(link: Link, wanted: str) -> list[list[str]]:
    """Return the calls of update-alternatives that make the group lead to `wanted`; none if it does, or without a group."""
    if link.group is None:
        return []
    steps = []
    if wanted not in link.group.choices:
        steps.append(["--install", LINK, GROUP, wanted, PRIORITY])
    if steps or not link.through_group or link.group != Group("manual", wanted, link.group.choices):
        steps.append(["--set", GROUP, wanted])
    return steps


def wanted_link(link: Link, wanted: str) -> Link:
    """Return the link as it has to be."""
    if link.group is None:
        return Link(wanted, None)
    return Link(f"/etc/alternatives/{GROUP}", Group("manual", wanted, link.group.choices))


def write_link(root: Path, wanted: str) -> None:
    """Make the plain link in one step, so that a reader always finds one."""
    link = root / LINK.lstrip("/")
    draft = link.with_name(".cuda.groundwork")
    draft.unlink(missing_ok=True)
    draft.symlink_to(wanted)
    draft.replace(link)
