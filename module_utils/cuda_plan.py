"""Which CUDA toolkits and cuDNN trees a host is to have, which it has, and what lies between."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.files import replace

STAMP = ".groundwork.json"
HOME = "usr/local"
ENVIRONMENTS = "/etc/groundwork/cuda"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Tree:
    """A wished tree: a toolkit, or a cuDNN (`cuda` is then the CUDA major that it is built for)."""

    version: str
    method: str
    cuda: str = ""
    components: list[str] = field(default_factory=list)
    wheels: str = ""
    sha256s: list[str] = field(default_factory=list)
    url: str = ""
    sha256: str = ""
    md5: str = ""
    host_compiler: str = ""

    @property
    def series(self) -> str:
        """Major and minor number, as the names of directories and packages have them."""
        return ".".join(self.version.split(".")[:2])

    @property
    def major(self) -> str:
        """The CUDA major that the tree belongs to."""
        return self.cuda or self.version.split(".")[0]

    @property
    def name(self) -> str:
        """The name of the tree's directory below /usr/local."""
        return f"cudnn-{self.version}-cuda{self.cuda}" if self.cuda else f"cuda-{self.series}"

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"cuDNN {self.version} for CUDA {self.cuda}" if self.cuda else f"CUDA {self.version}"

    @property
    def prefix(self) -> str:
        """The tree's directory."""
        return f"/{HOME}/{self.name}"


@dataclass(frozen=True)
class Stamp:
    """What a tree of the role says of itself, in a file inside it."""

    version: str
    method: str
    components: list[str]
    compiler: str
    verified: str

    def is_of(self, tree: Tree) -> bool:
        """Whether the tree that bears it is the wished one."""
        return (self.version, self.method, self.components) == (tree.version, tree.method, tree.components)

    def describe(self) -> str:
        """One line for a diff."""
        compiles = f", compiles for {self.verified}" if self.verified else ""
        return f"{self.version} by {self.method}{compiles}"


def read_stamp(folder: Path) -> Stamp | None:
    """Return the stamp of a tree; None where the role did not make it."""
    try:
        return Stamp(**json.loads((folder / STAMP).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_stamp(folder: Path, stamp: Stamp) -> None:
    """Write the stamp under its name only when it is complete."""
    replace(folder / STAMP, json.dumps(asdict(stamp), indent=1) + "\n")


def stamped(root: Path) -> dict[str, Stamp]:
    """All trees of the role on the host: name of the directory -> stamp."""
    folders = sorted([*(root / HOME).glob("cuda-*"), *(root / HOME).glob("cudnn-*")])
    found = {}
    # NVIDIA's packages have links of the same form, such as cuda-12.
    for folder in (folder for folder in folders if not folder.is_symlink()):
        # A tree that an interrupted run had moved aside is still the tree: the next run moves it back.
        whole = folder.with_suffix("") if folder.suffix == ".old" else folder
        if folder.suffix != ".part" and (whole == folder or not whole.exists()) and (stamp := read_stamp(folder)):
            found[whole.name] = stamp
    return found


def faults(root: Path, trees: list[Tree]) -> list[str]:
    """Say which wished trees would destroy what somebody else put there."""
    return [
        f"{tree.prefix} is there and was not made by this role; list it with the method apt if its packages brought it, "
        "else move it away first (two installations of one toolkit must not be mixed)"
        for tree in trees
        if tree.method != "apt" and (root / HOME / tree.name).exists() and read_stamp(root / HOME / tree.name) is None
    ] + [
        f"{tree.prefix} was made by the method {stamp.method}, and apt would mix its files into it; set cuda_toolkit_prune and "
        f"leave {tree.label} out for one run, then ask for it by apt"
        for tree in trees
        if tree.method == "apt" and (stamp := read_stamp(root / HOME / tree.name)) and stamp.method != "apt"
    ]


def environments(toolkits: list[Tree], cudnn: list[Tree]) -> dict[str, str]:
    """Return path -> text of the environment files.

    A toolkit's file names the first cuDNN that is listed for its major; each further one has a file of its own.
    """
    files = {}
    for toolkit in toolkits:
        siblings = [tree for tree in cudnn if tree.cuda == toolkit.major]
        for number, sibling in enumerate(siblings or [None]):
            name = f"{toolkit.series}-cudnn-{sibling.version}" if sibling and number else toolkit.series
            libraries = [f"{toolkit.prefix}/lib64", *([f"{sibling.prefix}/lib"] if sibling else [])]
            lines = {
                "CUDA_HOME": toolkit.prefix,
                "PATH": f"{toolkit.prefix}/bin:{SYSTEM_PATH}",
                "LD_LIBRARY_PATH": ":".join(libraries),
                **({"NVCC_CCBIN": toolkit.host_compiler} if toolkit.host_compiler else {}),
            }
            files[f"{ENVIRONMENTS}/{name}.env"] = (
                "# Managed by Groundwork (role cuda_toolkit). Changes here are overwritten.\n"
                + "".join(f"{key}={value}\n" for key, value in lines.items())
            )
    return files


def read_trees(entries: list[dict[str, Any]]) -> list[Tree]:
    """Turn entries of the module's options into trees."""
    return [Tree(**{key: value for key, value in entry.items() if value is not None}) for entry in entries]
