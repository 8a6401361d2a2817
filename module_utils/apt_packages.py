"""Packages of a Debian or Ubuntu host: which are installed, what apt would change, and one change from files without network.

A package is named as apt names it: without architecture for the host's own, "libcuda1:i386" for another one.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

#: Runs a program and gives its exit code, output and errors.
Run = Callable[[list[str]], "tuple[int, str, str]"]

FRONTEND_LOCK = "var/lib/dpkg/lock-frontend"
_FLOCK = "hh4xqqi4x"  # struct flock of Linux on 64 bits
_QUERY = "${Package}\t${Architecture}\t${Version}\t${source:Package}\t${db:Status-Abbrev}\n"
_INSTALL = re.compile(r"Inst (\S+)(?: \[([^\]]+)\])? \((\S+) (.*?) ?\[\w+\]\)")
_SOURCE = re.compile(r" +-?\d+ (\S.*\S)$")
_REMOVE = re.compile(r"(?:Remv|Purg) (\S+) \[([^\]]+)\]")
#: What keeps a transaction from asking, from installing more than was planned, and from removing what was not planned.
OPTIONS = (
    "--yes", "--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages",
    "-oAPT::Get::AutomaticRemove=false", "-oAPT::Get::HideAutoRemove=true", "-oAPT::Sandbox::User=root",
    "-oDpkg::Options::=--force-confdef", "-oDpkg::Options::=--force-confold",
)  # fmt: skip


#: Without sources apt knows what is installed and the files that it is given, and has no address to fetch anything from.
OFFLINE = (
    "-oDir::Etc::SourceList=/dev/null", "-oDir::Etc::SourceParts=/dev/null",
    "-oDir::Cache::pkgcache=", "-oDir::Cache::srcpkgcache=",
)  # fmt: skip


class AptError(Exception):
    """apt or dpkg refused; the message holds what they said."""


class Package(NamedTuple):
    """An installed package. state is dpkg's abbreviation: ii in order, hi held, iF half configured, and so on."""

    version: str
    source: str
    state: str

    @property
    def held(self) -> bool:
        """Whether dpkg keeps it as it is."""
        return self.state.startswith("h")

    @property
    def in_order(self) -> bool:
        """Whether it is unpacked and configured."""
        return self.state[1:] == "i"


class Change(NamedTuple):
    """What a transaction does to a package; None where it is not installed before, or after."""

    before: str | None
    after: str | None
    origin: str = ""


def installed(run: Run) -> dict[str, Package]:
    """Return the packages that are there in some way, those that only left their configuration excepted."""
    lines = [line.split("\t") for line in checked(run, ["dpkg-query", "--show", f"--showformat={_QUERY}"]).splitlines()]
    native = next((architecture for name, architecture, *_ in lines if name == "dpkg"), "")
    return {
        name if architecture in (native, "all") else f"{name}:{architecture}": Package(version, source, state.strip())
        for name, architecture, version, source, state in lines
        if state[1:2] not in ("n", "c")
    }


def checked(run: Run, argv: list[str]) -> str:
    """Run a program that must succeed, and return its output.

    Raises:
        AptError: it failed; the message ends with what it printed, errors of apt first.
    """
    code, out, err = run(argv)
    if code < 0:
        raise AptError(f"{argv[0]} was killed by signal {-code}; `journalctl -k` tells if the kernel did it for lack of memory")
    if code != 0:
        lines = [line.rstrip() for line in f"{out}\n{err}".splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("E:", "dpkg: error", "Error:"))]
        unmet = [line.strip() for line in lines if re.search(r"(Depends|Conflicts|Breaks): ", line)]
        raise AptError(" ".join((errors + unmet) or lines[-5:]) or f"`{argv[0]}` ended with {code}")
    return out


def parse_simulation(text: str) -> dict[str, Change]:
    """Return what `apt-get --simulate` says it would change, by package."""
    changes = {match[1]: Change(match[2], match[3], match[4]) for match in map(_INSTALL.match, text.splitlines()) if match}
    removed = {match[1]: Change(match[2], None) for match in map(_REMOVE.match, text.splitlines()) if match}
    # A package that is taken off and put back in one transaction is listed twice.
    return {**removed, **changes}


def simulate(run: Run, arguments: Iterable[str], settings: Iterable[str] = ()) -> dict[str, Change]:
    """Ask apt what an installation would change. Nothing is locked or changed, and no network is needed.

    Args:
        run: runs apt-get.
        arguments: names, name=version, paths of files, or "name-" for a removal.
        settings: apt's own settings for this question alone, such as Dir::Etc::Preferences=...

    Raises:
        AptError: apt finds no solution.
    """
    options = [f"-o{setting}" for setting in settings]
    return parse_simulation(checked(run, ["apt-get", "--simulate", *OPTIONS, *options, "install", *arguments]))


def candidates(run: Run, names: Iterable[str], settings: Iterable[str] = ()) -> dict[str, str]:
    """Return the version that apt would install of each package that it knows."""
    options = [f"-o{setting}" for setting in settings]
    found: dict[str, str] = {}
    name = ""
    for line in checked(run, ["apt-cache", *options, "policy", *names]).splitlines():
        if not line.startswith(" "):
            name = line.rstrip(":")
        elif line.startswith("  Candidate: ") and not line.endswith("(none)"):
            found[name] = line.split()[1]
    return found


def offers(run: Run, names: Iterable[str]) -> dict[str, list[dict[str, str]]]:
    """Return what apt's sources have of each package, newest first: version, and the Origin of the source's Release file.

    A package that no source has gets an empty list.
    """
    names = list(names)
    found: dict[str, list[dict[str, str]]] = {name: [] for name in names}
    if not names:
        return found
    # Without names, policy tells of each source under the words with which it names it below a version.
    origins, source = {}, ""
    for line in checked(run, ["apt-cache", "policy"]).splitlines():
        if match := _SOURCE.match(line):
            source = match[1]
        elif match := re.match(r" +release .*?\bo=([^,]*)", line):
            origins[source] = match[1]
    name, version = "", ""
    for line in checked(run, ["apt-cache", "policy", *names]).splitlines():
        if match := re.match(r"(\S+):$", line):
            name = match[1]
        elif match := re.match(r" (?:\*\*\*|   ) (\S+) -?\d+$", line):
            version = match[1]
        elif (match := _SOURCE.match(line)) and match[1] in origins and name in found:
            offer = {"version": version, "origin": origins[match[1]]}
            if offer not in found[name]:
                found[name].append(offer)
    return found


def apply(run: Run, files: Iterable[Path], removals: Iterable[str], lock_timeout: int) -> None:
    """Install these files and remove these packages in one transaction, without network, and remove no others.

    Raises:
        AptError: apt would remove others, and did nothing; or it or a package's script failed, and packages may be left half-way.
    """
    removals = list(removals)
    arguments = ["install", *map(str, files), *(f"{name}-" for name in removals)]
    if len(arguments) == 1:
        return
    changes = parse_simulation(checked(run, ["apt-get", "--simulate", *OPTIONS, *OFFLINE, *arguments]))
    if others := [name for name, change in changes.items() if change.after is None and name not in removals]:
        raise AptError(
            f"apt would remove {', '.join(sorted(others))} as well, which need what is about to change; remove them yourself if "
            f"they may go"
        )
    checked(run, ["apt-get", *OPTIONS, *OFFLINE, f"-oDPkg::Lock::Timeout={lock_timeout}", *arguments])


def force(run: Run, files: Iterable[Path], removals: Iterable[str]) -> None:
    """Do with dpkg alone what apt refuses to do on a broken host: it takes the files whatever state packages are in.

    Raises:
        AptError: dpkg failed.
    """
    if names := list(removals):
        checked(run, ["dpkg", "--force-depends", "--force-remove-reinstreq", "--force-hold", "--remove", *names])
    if paths := [str(path) for path in files]:
        options = ["--force-downgrade", "--force-hold", "--force-confdef", "--force-confold"]
        checked(run, ["dpkg", *options, "--install", *paths])


def hold(run: Run, names: Iterable[str], wanted: bool) -> None:
    """Hold these packages, or release them."""
    if listed := sorted(names):
        checked(run, ["apt-mark", "hold" if wanted else "unhold", *listed])


def automatic(run: Run) -> set[str]:
    """Return the packages that came along with others, and that apt may remove when nothing needs them."""
    return set(checked(run, ["apt-mark", "showauto"]).split())


def mark(run: Run, names: Iterable[str], automatic: bool) -> None:
    """Mark these packages as come along with others, or as asked for."""
    if listed := sorted(names):
        checked(run, ["apt-mark", "auto" if automatic else "manual", *listed])


def lock_holder(root: Path) -> str | None:
    """Tell which process holds the lock of dpkg's front ends, as "apt-get (process 4711)"; None if it is free."""
    path = root / FRONTEND_LOCK
    if not path.exists():
        return None
    with path.open("rb+") as file:
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, question))
    if kind == fcntl.F_UNLCK:
        return None
    try:
        program = (root / f"proc/{pid}/comm").read_text().strip()
    except OSError:
        program = "a process outside this container"
    return f"{program} (process {pid})"


def unfinished(packages: Mapping[str, Package]) -> list[str]:
    """Return the packages that dpkg has left half-way, as "name (state)"."""
    return [f"{name} ({package.state})" for name, package in sorted(packages.items()) if not package.in_order]
