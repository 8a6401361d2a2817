"""Where apt takes packages from: its source files, the lists it keeps of them, and why it refuses one."""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ansible.module_utils.openpgp import KeyringError, dearmor, fingerprints

FOLDER = "etc/apt/sources.list.d"
KEYRINGS = "usr/share/keyrings"
LISTS = "var/lib/apt/lists"
#: Keys in here may sign any repository.
TRUSTED = "etc/apt/trusted.gpg"
_ONE_LINE = re.compile(r"\s*deb(?:-src)?\s+(?:\[[^\]]*\]\s*)?(\S+)\s+(\S+)")
#: What apt writes as %xx in the name of a list (URItoFileName in strutl.cc).
_QUOTED = re.compile(r'[\\|{}\[\]<>"^~_=!@#$%&*]')
#: Why apt refuses a repository, by what it prints; the first that fits counts.
_REFUSALS = (
    (
        r"NO_PUBKEY (\w+)|Missing key (\w+)",
        "it is signed by the key {0}, and the accepted key(s) are {keys}. If its owner changed the key, compare the new "
        "fingerprint with the owner's announcement, then give the new key and add its fingerprint to `fingerprints`",
    ),
    (
        r"(?s:Signing key on (\w+) is not bound.*?)SHA1 is not considered secure|SHA1 is not considered secure",
        "the key {0} vouches for itself by SHA-1, which this apt refuses since 2026-02-01. Take the repository that is made for "
        "this release of the distribution, with its own key (NVIDIA's CUDA repository for Debian 13 is debian13, signed by "
        "8793F200). Do not loosen the policy of the host",
    ),
    (
        r"EXPKEYSIG (\w+)|[Kk]ey (\w*) ?(?:is |has )?expired",
        "the key {0} has expired. Give the renewed key; its fingerprint is the same",
    ),
    (
        r"is not valid yet|Release file .* is expired",
        "its date does not fit this host's clock. Check `timedatectl`; if the clock is right, the mirror is out of date",
    ),
    (
        r"(404  Not Found|404  File not found|File not found - \S+|does not have a Release file)",
        "there is nothing at that address ({0}). Check the folder of the distribution and of the architecture (NVIDIA's CUDA "
        "repository has x86_64 and sbsa, never amd64 or arm64), or whether the mirror is mounted",
    ),
    (
        r"(Could not resolve \S+|Could not connect to \S+|[Cc]onnection \w+|timed out|Certificate verification failed)",
        "its server does not answer ({0}). Check network, proxy (Acquire::http::Proxy in /etc/apt/apt.conf.d) or mirror",
    ),
    (
        r"is not signed",
        "it has no signature (neither InRelease nor Release.gpg). Take a complete copy; unsigned repositories are not used",
    ),
    (
        r"Conflicting values set for option (\S+)",
        "another source file declares it with another {0}. Remove that one, or name it in `conflicts`",
    ),
)


@dataclass(frozen=True)
class Repository:
    """What a source file declares; `key` says where its key comes from, for the reader and for a later run."""

    name: str
    uris: list[str]
    suites: list[str]
    components: list[str]
    architectures: list[str]
    key: str = ""

    def faults(self, *, present: bool) -> list[str]:
        """Say what is wrong with the declaration; to take one away, the name is enough."""
        faults = []
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", self.name):
            faults.append(f"name: {self.name!r} becomes part of file names: only small letters, digits and dashes")
        if not present:
            return faults
        for field in ("uris", "suites", "components", "architectures"):
            values = getattr(self, field)
            faults += [f"{field}: {value!r} is not one word" for value in values if not re.fullmatch(r"\S+", value)]
        for uri in self.uris:
            if not re.match(r"[a-z][a-z0-9+.-]*:/", uri):
                faults.append(f"uris: {uri!r} is no address such as https://host/path or file:/path")
            elif "@" in urlsplit(uri).netloc:
                faults.append("uris: a password in the address is readable for everybody; put it into /etc/apt/auth.conf.d")
        if not self.uris or not self.suites:
            faults.append("uris and suites: each needs at least one entry")
        for suite in self.suites:
            if suite.endswith("/") and self.components:
                faults.append(f"components: the suite {suite!r} is a folder (a flat repository), and those have none")
            if not suite.endswith("/") and not self.components:
                faults.append(f"components: the suite {suite!r} needs some, such as main; only one that ends with / has none")
        return faults

    def text(self, keyring: str) -> str:
        """Return the content of the source file."""
        fields = {
            "Types": "deb",
            "URIs": " ".join(self.uris),
            "Suites": " ".join(self.suites),
            "Components": " ".join(self.components),
            "Architectures": " ".join(self.architectures),
            "Signed-By": keyring,
        }
        comment = f"# Key: {self.key}\n" if self.key else ""
        lines = "".join(f"{field}: {value}\n" for field, value in fields.items() if value)
        return f"# Written by Groundwork; changes are overwritten.\n{comment}{lines}"

    def pairs(self) -> set[tuple[str, str]]:
        """Return what apt takes for one repository: each address with each suite."""
        return {(plain(uri), suite) for uri in self.uris for suite in self.suites}

    def lists_missing(self, root: Path) -> bool:
        """Tell whether apt has no list of a part of the repository."""
        for uri, suite in self.pairs():
            base = uri + ("" if suite == "/" else suite if suite.endswith("/") else f"dists/{suite}/")
            name = _QUOTED.sub(lambda match: f"%{ord(match[0]):02x}", re.sub("^[^:]+:(//)?", "", base)).replace("/", "_")
            if not any((root / LISTS / f"{name}{kind}").exists() for kind in ("InRelease", "Release")):
                return True
        return False


def plain(uri: str) -> str:
    """Return an address as apt compares it."""
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    return uri.replace("$(ARCH)", architecture).rstrip("/") + "/"


@dataclass(frozen=True)
class Entry:
    """A declaration in somebody's source file: the numbers of its lines, and what it declares."""

    lines: range
    uris: list[str]
    suites: list[str]

    def is_of(self, repository: Repository, globs: Iterable[str]) -> bool:
        """Tell whether it declares the repository too, or an address that fits a pattern."""
        uris = [plain(uri) for uri in self.uris]
        same = any((uri, suite) in repository.pairs() for uri in uris for suite in self.suites)
        return same or any(fnmatch.fnmatchcase(uri, plain(glob)) for uri in uris for glob in globs)


def entries(file: Path, text: str) -> list[Entry]:
    """Return what a source file declares, in either format; what is commented out or disabled does not count."""
    lines = text.splitlines()
    if file.suffix != ".sources":
        found = [(number, _ONE_LINE.match(line)) for number, line in enumerate(lines)]
        return [Entry(range(number, number + 1), [match[1]], [match[2]]) for number, match in found if match]
    groups = itertools.groupby(enumerate(lines), key=lambda line: bool(line[1].strip()))
    return [entry for filled, group in groups if filled and (entry := _stanza(list(group)))]


def _stanza(lines: list[tuple[int, str]]) -> Entry | None:
    """Return what a paragraph of a .sources file declares; None if it is no declaration, or disabled."""
    fields: dict[str, list[str]] = {}
    values: list[str] = []
    for _, line in lines:
        if line.startswith("#"):
            continue
        if not line[0].isspace():
            values = fields.setdefault(line.partition(":")[0].lower(), [])
        values += line[0 if line[0].isspace() else line.find(":") + 1 :].split()
    if (fields.get("enabled") or ["yes"])[0].lower() in ("no", "false", "0") or "uris" not in fields:
        return None
    return Entry(range(lines[0][0], lines[-1][0] + 1), fields["uris"], fields.get("suites", []))


def source_files(root: Path) -> list[Path]:
    """Return the files from which apt reads its sources."""
    folder = root / FOLDER
    files = [root / "etc/apt/sources.list", *sorted(folder.glob("*.list")), *sorted(folder.glob("*.sources"))]
    return [file for file in files if file.is_file()]


def marker(name: str) -> str:
    """Return what stands before each line that is disabled for a repository."""
    return f"#groundwork-{name}# "


def disable(text: str, unwanted: Iterable[Entry], name: str) -> str:
    """Return the text of a source file with some of its entries commented out."""
    numbers = {number for entry in unwanted for number in entry.lines}
    lines = text.splitlines(keepends=True)
    return "".join(marker(name) + line if number in numbers else line for number, line in enumerate(lines))


def enable(text: str, name: str) -> str:
    """Undo `disable`."""
    return re.sub(f"^{re.escape(marker(name))}", "", text, flags=re.MULTILINE)


class Step:
    """A change of one file."""

    path: str

    def diff(self) -> tuple[str, str]:
        """Return before and after for people."""
        raise NotImplementedError


@dataclass(frozen=True)
class Write(Step):
    """A file, and its content before and after; None where there is none."""

    path: str
    before: bytes | None
    after: bytes | None

    def diff(self) -> tuple[str, str]:
        """Return the contents, and of a keyring its keys."""
        return _readable(self.before), _readable(self.after)


@dataclass(frozen=True)
class Move(Step):
    """A file and its new name."""

    path: str
    target: str

    def diff(self) -> tuple[str, str]:
        """Return the names."""
        return f"{self.path}\n", f"{self.target}\n"


def _readable(data: bytes | None) -> str:
    """Return a text as it is, and of a keyring what tells it from another."""
    if data is None:
        return ""
    try:
        keys = fingerprints(data)
    except KeyringError:
        return data.decode(errors="replace")
    return "".join(f"key {key}\n" for key in keys) + f"sha256 {hashlib.sha256(data).hexdigest()}\n"


def _absolute(root: Path, file: Path) -> str:
    return f"/{file.relative_to(root)}"


def disabled(path: str, name: str) -> str:
    """Return the name under which a file is kept and not read by apt."""
    return f"{path}.groundwork-{name}.disabled"


def put_aside(root: Path, repository: Repository, globs: list[str], own: str) -> list[Step]:
    """Plan to disable what others than our `own` file declare of the repository."""
    plan: list[Step] = []
    for file in source_files(root):
        path, text = _absolute(root, file), file.read_text(errors="surrogateescape")
        found = entries(file, text)
        unwanted = [entry for entry in found if entry.is_of(repository, globs)]
        if not unwanted or path == own:
            continue
        if found == unwanted and file.parent == root / FOLDER:
            plan.append(Move(path, disabled(path, repository.name)))
        else:
            after = disable(text, unwanted, repository.name)
            plan.append(Write(path, file.read_bytes(), after.encode(errors="surrogateescape")))
    return plan


def retire_keys(root: Path, name: str, obsolete: list[str]) -> tuple[list[Step], list[str]]:
    """Plan to rename files of obsolete keys that may sign any repository; say which keys are mixed with others."""
    plan: list[Step] = []
    notes = []
    folder = root / f"{TRUSTED}.d"
    for file in [root / TRUSTED, *sorted(folder.glob("*.gpg")), *sorted(folder.glob("*.asc"))]:
        data = file.read_bytes() if file.is_file() else b""
        try:
            keys = fingerprints(dearmor(data))
        except KeyringError:  # nothing, or gpg's keybox, which holds fingerprints as they are, and perhaps other keys
            keys = ["", *(key for key in obsolete if bytes.fromhex(key) in data)]
        path = _absolute(root, file)
        if set(keys) <= set(obsolete) and file.parent == folder:
            plan.append(Move(path, disabled(path, name)))
            continue
        notes += [
            f"{path} holds the obsolete key {key}, which may sign any repository. Remove it with "
            f"`gpg --no-default-keyring --keyring {path} --batch --yes --delete-keys {key}`"
            for key in obsolete
            if key in keys
        ]
    return plan, notes


def bring_back(root: Path, name: str) -> tuple[list[Step], list[str]]:
    """Plan to enable what was disabled; say what can't be."""
    plan: list[Step] = []
    notes = []
    for file in sorted((root / "etc/apt").rglob(disabled("*", name))):
        path = _absolute(root, file)
        former = path[: -len(disabled("", name))]
        if (root / former.lstrip("/")).exists():
            notes.append(f"{path} stays, since there is a new {former}; remove the one that you do not need")
        else:
            plan.append(Move(path, former))
    for file in source_files(root):
        before = file.read_text(errors="surrogateescape")
        after = enable(before, name)
        if after != before:
            plan.append(Write(_absolute(root, file), file.read_bytes(), after.encode(errors="surrogateescape")))
    return plan, notes


def refusal(output: str, keys: Iterable[str]) -> str:
    """Say in a sentence why apt refuses a repository and what to do; `keys` are the fingerprints that were accepted."""
    for pattern, reason in _REFUSALS:
        match = re.search(pattern, output)
        if match:
            what = next((group for group in match.groups() if group), "")
            return reason.format(what, keys=", ".join(keys))
    lines = [line for line in output.splitlines() if line.startswith(("E:", "W:"))]
    return "apt says: " + " ".join(lines or output.split("\n")[-3:])
