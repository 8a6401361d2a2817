"""Kernel modules by DKMS, built beside the system before packages change, kept, and put in place without a compiler.

DKMS builds in a directory tree of its own when it is told to (dkms(8): --sourcetree, --dkmstree). A driver whose build fails is
found out while the old one is still whole, and a version that was built once goes back within seconds. The layout of a tree is
<name>/<version>/<kernel>/<architecture>/{module,log}, in DKMS 2.8 as in 3.2.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ansible.module_utils.apt_packages import Run

TREE = "var/lib/dkms"
#: While it exists, the scripts of packages leave the modules to this program (/usr/lib/dkms/common.postinst).
NO_AUTOINSTALL = "etc/dkms/no-autoinstall"
_LOG_LINES = 15
# What a compiler or make says of a failure; the rest of a log is progress.
_ERROR = re.compile(r"error[: ]|Error \d|No such file|not found|No space left|Killed|cannot|unrecognized", re.IGNORECASE)


class BuildError(Exception):
    """DKMS could not build or install a module; the message ends with what its log says."""


class Source(NamedTuple):
    """The source of modules in DKMS' words, such as nvidia-current 535.261.03."""

    name: str
    version: str


def parse_config(path: Path) -> Source | None:
    """Return the source that a dkms.conf describes, or None."""
    values = dict(re.findall(r'^PACKAGE_(NAME|VERSION)="?([^"\n]+?)"?\s*$', path.read_text(errors="replace"), re.MULTILINE))
    return Source(values["NAME"], values["VERSION"]) if {"NAME", "VERSION"} <= values.keys() else None


def find_source(tree: Path) -> Source | None:
    """Return the source that a directory holds as usr/src/<name>-<version>/dkms.conf, or None."""
    return next((source for source in map(parse_config, sorted(tree.glob("usr/src/*/dkms.conf"))) if source), None)


def modules_of(tree: Path, source: Source, kernel: str) -> Path:
    """Return where a tree keeps the modules that were built for a kernel."""
    return tree / source.name / source.version / kernel


def is_built(tree: Path, source: Source, kernel: str) -> bool:
    """Tell whether a tree has modules for a kernel."""
    return any(modules_of(tree, source, kernel).glob("*/module/*.ko*"))


def build(run: Run, sources: Path, tree: Path, source: Source, kernel: str) -> None:
    """Build the modules of usr/src in the directory `sources` for a kernel, into a tree.

    Raises:
        BuildError: they don't build.
    """
    where = ["-m", source.name, "-v", source.version, "--dkmstree", str(tree)]
    if not (tree / source.name / source.version / "source").is_symlink():
        _checked(run, ["dkms", "add", *where, "--sourcetree", str(sources / "usr/src")], tree, source)
    _checked(run, ["dkms", "build", *where, "--sourcetree", str(sources / "usr/src"), "-k", kernel], tree, source)
    if not is_built(tree, source, kernel):
        raise BuildError(f"DKMS built no module for kernel {kernel}, and says nothing of an error{_log_tail(tree, source)}")


def copy(tree: Path, source: Source, kernel: str, goal_tree: Path) -> None:
    """Copy the modules of a kernel from one tree to another, complete or not at all; none if that one has them.

    Raises:
        BuildError: the copy can't be written.
    """
    goal = modules_of(goal_tree, source, kernel)
    if is_built(goal_tree, source, kernel) or not is_built(tree, source, kernel):
        return
    draft = goal.with_name(f".{goal.name}.part")
    try:
        for remains in (draft, goal):
            shutil.rmtree(remains, ignore_errors=True)
        draft.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(modules_of(tree, source, kernel), draft, symlinks=True)
        draft.rename(goal)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        # copytree lists every file that it could not copy; one tells enough.
        reason = error.args[0][-1][2] if isinstance(error, shutil.Error) else error
        raise BuildError(f"the modules for kernel {kernel} can't be copied to {goal_tree}: {reason}") from error


def install(run: Run, root: Path, kept: Path, source: Source, kernel: str) -> None:
    """Put kept modules in place for a kernel; the package with their source is installed.

    Raises:
        BuildError: DKMS refuses.
    """
    tree = root / TREE
    names = ["-m", source.name, "-v", source.version]
    if not (tree / source.name / source.version / "source").is_symlink():
        _checked(run, ["dkms", "add", *names], tree, source)
    copy(kept, source, kernel, tree)
    if kernel not in installed_kernels(run, source):
        # Without --force DKMS leaves a file alone that it once installed and somebody has removed or replaced.
        _checked(run, ["dkms", "install", *names, "-k", kernel, "--force"], tree, source)


def installed_kernels(run: Run, source: Source) -> set[str]:
    """Return the kernels that have the modules of a source in place.

    Lines of dkms status are "name/version, kernel, architecture: installed" (3.x) or "name, version, kernel, ..." (2.x); what is
    only added or built is not in place. Nor is what somebody has removed or replaced: "installed (WARNING! Diff between built and
    installed module!)" in 3.0, "installed (Differences between built and installed modules)" in 3.2.
    """
    code, out, _ = run(["dkms", "status", "-m", source.name, "-v", source.version])
    return set(_installed_in(out)) if code == 0 else set()


def _installed_in(text: str) -> Iterator[str]:
    for line in text.splitlines():
        head, _, state = line.partition(": ")
        if state.split(" ")[0] == "installed" and "Diff" not in state:
            yield head.split(", ")[-2]


def _checked(run: Run, argv: list[str], tree: Path, source: Source) -> None:
    code, out, err = run(argv)
    if code != 0:
        lines = [line.strip() for line in f"{err}\n{out}".splitlines() if line.strip().startswith(("Error", "ERROR"))]
        said = " ".join(lines) or f"it ended with {code}"
        raise BuildError(f"`{' '.join(argv[:2])}` of {source.name} {source.version} failed: {said}{_log_tail(tree, source)}")


def _log_tail(tree: Path, source: Source) -> str:
    """Return the lines of make.log that tell of an error and the last ones, or nothing where there is no log."""
    log = tree / source.name / source.version / "build/make.log"
    if not log.is_file():
        return ""
    lines = log.read_text(errors="replace").splitlines()
    first = next((number for number, line in enumerate(lines) if _ERROR.search(line)), len(lines))
    shown = lines[first : first + _LOG_LINES] if first < len(lines) - _LOG_LINES else []
    return "\nThe log of the build says:\n  " + "\n  ".join([*shown, *(["..."] if shown else []), *lines[-_LOG_LINES:]])
