"""A STAND-IN of dpkg, apt, DKMS and modinfo for unit tests: they work on a made-up tree, and print what the real ones print.

A package file is JSON. apt resolves nothing: `conflicts` says what a package replaces, and `users` which others go with one
that moves. What the programs print was taken from apt 2.6 and 3.0, dpkg 1.22 and DKMS 3.2.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Answer = tuple[int, str, str]
KERNELS = ("6.1.0-56-amd64", "6.1.0-57-amd64")
BROKEN = "E: Unable to correct problems, you have held broken packages.\n"
HOLD_CONFLICT = "E: Error, pkgProblemResolver::Resolve generated breaks, this may be caused by held packages.\n"


@dataclass
class Deb:
    """A package: dkms is the source of modules that it brings, as name and version."""

    name: str
    version: str
    source: str = "nvidia-graphics-drivers"
    architecture: str = "amd64"
    dkms: tuple[str, str] | None = None
    size: int = 1024

    @property
    def key(self) -> str:
        """Return its name as apt has it on amd64."""
        return self.name if self.architecture in ("amd64", "all") else f"{self.name}:{self.architecture}"

    @property
    def file(self) -> str:
        """Return its file's name."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"


def order(version: str) -> list[int]:
    """Return what versions are compared by here."""
    return [int(number) for number in re.findall(r"\d+", version)]


class DriverHost:
    """The host. Tests change its tables; `fails` is asked for an answer before a program does its work, `half_way` breaks one."""

    def __init__(self, root: Path, kernels: tuple[str, ...] = KERNELS) -> None:
        """Make a host without packages, whose kernels have headers."""
        self.root = root
        self.offered: list[Deb] = []
        self.installed: dict[str, Deb] = {}
        self.states: dict[str, str] = {}
        self.automatic: set[str] = set()
        self.conflicts: dict[str, list[str]] = {}
        self.users: dict[str, list[str]] = {}
        self.calls: list[list[str]] = []
        self.fails: Callable[[list[str]], Answer | None] = lambda _: None
        self.half_way: str = ""
        for kernel in kernels:
            self.write(f"boot/vmlinuz-{kernel}", "")
            (root / f"lib/modules/{kernel}/build").mkdir(parents=True)
        self.write("proc/sys/kernel/osrelease", f"{kernels[-1]}\n")
        (root / "usr/src").mkdir(parents=True)

    # ---- For tests

    def write(self, name: str, text: str) -> Path:
        """Write a file below the root."""
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def read(self, name: str) -> str | None:
        """Return a file's text, None if there is none."""
        path = self.root / name.lstrip("/")
        return path.read_text() if path.exists() else None

    def put(self, deb: Deb, state: str = "ii") -> None:
        """Install a package as somebody did in the past: its modules are in place, and its file is in no cache."""
        self._unpack(deb)
        self.states[deb.key] = state
        if deb.dkms:
            name, version = deb.dkms
            for kernel in self.kernels():
                self._build(self.root / "var/lib/dkms", name, version, kernel)
                self._install(name, version, kernel)

    def kernels(self) -> list[str]:
        """Return the kernels."""
        return sorted(path.name for path in (self.root / "lib/modules").iterdir())

    def versions(self) -> dict[str, str]:
        """Return what is installed, by name, with dpkg's state."""
        return {name: f"{deb.version} {self.states[name]}" for name, deb in sorted(self.installed.items())}

    def module(self, kernel: str, name: str = "nvidia-current") -> str | None:
        """Return the version of the module that a kernel would load."""
        return self.read(f"lib/modules/{kernel}/updates/dkms/{name}.ko")

    def ran(self, *beginning: str) -> list[list[str]]:
        """Return the commands that began so."""
        return [call for call in self.calls if call[: len(beginning)] == list(beginning)]

    def changed(self, *beginning: str) -> list[list[str]]:
        """Return the commands of apt that changed something and began so."""
        return [call for call in self.ran(*beginning) if not {"--simulate", "showauto", "--print-uris"} & set(call)]

    def tree(self) -> dict[str, str]:
        """Return every file with its content, every link with its goal, every directory."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            text = "directory"
            if path.is_symlink():
                text = f"link {path.readlink()}"
            elif path.is_file():
                text = path.read_text()
            found[str(path.relative_to(self.root))] = text
        return found

    def run(self, argv: list[str]) -> Answer:
        """Run a program."""
        self.calls.append(list(argv))
        if answer := self.fails(argv):
            return answer
        program: Callable[[list[str]], Answer] = getattr(self, f"_{argv[0].replace('-', '_')}")
        return program(argv[1:])

    # ---- dpkg

    def _dpkg_query(self, argv: list[str]) -> Answer:
        if argv[0] == "--search":
            path = "/" + str(Path(argv[1]).relative_to(self.root))
            owners = [
                deb.name for deb in self.installed.values() if deb.dkms and path == f"/usr/src/{'-'.join(deb.dkms)}/dkms.conf"
            ]
            return (
                (0, f"{owners[0]}: {path}\n", "") if owners else (1, "", f"dpkg-query: no path found matching pattern {path}\n")
            )
        lines = ["dpkg\tamd64\t1.22.22\tdpkg\tii "]
        for name, deb in self.installed.items():
            lines.append(f"{deb.name}\t{deb.architecture}\t{deb.version}\t{deb.source}\t{self.states[name]:3}")
        return 0, "".join(f"{line}\n" for line in lines), ""

    def _dpkg_deb(self, argv: list[str]) -> Answer:
        file = Path(argv[1])
        if not file.exists():
            return 2, "", f"dpkg-deb: error: failed to read archive '{file}': No such file or directory\n"
        deb = self._load(file)
        if argv[0] == "--field":
            return 0, f"{deb.size}\n", ""
        self._sources(deb, Path(argv[2]))
        return 0, "", ""

    def _dpkg(self, argv: list[str]) -> Answer:
        if "--configure" in argv:
            broken = [name for name, state in self.states.items() if state[1] != "i"]
            return (1, "", "dpkg: error processing package\n") if broken and self.half_way else self._configure(broken)
        if "--remove" in argv:
            for name in argv[argv.index("--remove") + 1 :]:
                self._remove(name)
        else:
            for file in argv[argv.index("--install") + 1 :]:
                self._unpack(self._load(Path(file)))
        return self._configure([])

    def _configure(self, names: list[str]) -> Answer:
        for name in names:
            self.states[name] = self.states[name][0] + "i"
        return 0, "", ""

    # ---- apt

    def _apt_cache(self, argv: list[str]) -> Answer:
        folder = next((word.partition("=")[2] for word in argv if "PreferencesParts" in word), None)
        text = ""
        for name in argv[argv.index("policy") + 1 :]:
            if known := self._known(name):
                here = self.installed.get(name)
                text += f"{name}:\n  Installed: {here.version if here else '(none)'}\n"
                text += f"  Candidate: {self._candidate(name, folder).version}\n  Version table:\n"
                for deb in known:
                    mark = "***" if here and here.version == deb.version else "   "
                    text += f" {mark} {deb.version} 500\n        500 http://deb.example bookworm/non-free amd64 Packages\n"
        return 0, text, ""

    def _known(self, name: str) -> list[Deb]:
        found = [deb for deb in (*self.offered, *self.installed.values()) if deb.key == name]
        return sorted({deb.version: deb for deb in found}.values(), key=lambda deb: order(deb.version), reverse=True)

    def _candidate(self, name: str, folder: str | None) -> Deb:
        directory = Path(folder) if folder else self.root / "etc/apt/preferences.d"
        text = "\n\n".join(path.read_text() for path in directory.glob("*")) if directory.is_dir() else ""
        pins = re.findall(r"Package: (.+)\nPin: version (.+)\nPin-Priority: 1001", text)

        def rank(deb: Deb) -> tuple[bool, list[int]]:
            words = {deb.name, f"src:{deb.source}"}
            return any(
                fnmatch.filter(words, pattern) and fnmatch.fnmatch(deb.version, version)
                for patterns, version in pins
                for pattern in patterns.split()
            ), order(deb.version)

        return max(self._known(name), key=rank)

    def _apt_mark(self, argv: list[str]) -> Answer:
        if argv[0] == "showauto":
            return 0, "".join(f"{name}\n" for name in sorted(self.automatic)), ""
        for name in argv[1:]:
            if argv[0] in ("auto", "manual"):
                (self.automatic.add if argv[0] == "auto" else self.automatic.discard)(name)
            else:
                self.states[name] = ("h" if argv[0] == "hold" else "i") + self.states[name][1]
        return 0, "", ""

    def _apt_get(self, argv: list[str]) -> Answer:
        if "download" in argv:
            return self._download(argv[argv.index("download") + 1 :], self.root)
        removed, debs, refusal = self._solve(argv)
        if refusal or "--simulate" in argv:
            return refusal or self._said(removed, debs)
        if broken := [f"{name} ({state})" for name, state in self.states.items() if state[1] != "i"]:
            return 100, "", f"E: Unmet dependencies. {broken}\n"
        for name in removed:
            self._remove(name)
        for deb in debs:
            self._unpack(deb)
            # To apt a file is what somebody asked for.
            self.automatic.discard(deb.key)
            if deb.name == self.half_way:
                self.states[deb.key] = self.states[deb.key][0] + "F"
                return 100, "", "E: Sub-process /usr/bin/dpkg returned an error code (1)\n"
        return 0, "", ""

    def _solve(self, argv: list[str]) -> tuple[list[str], list[Deb], Answer | None]:
        words = argv[argv.index("install") + 1 :]
        folder = next((word.partition("=")[2] for word in argv if "PreferencesParts" in word), None)
        removed = [word[:-1] for word in words if word.endswith("-")]
        debs = [
            self._load(Path(word)) if word.endswith(".deb") else self._candidate(word, folder)
            for word in words
            if not word.endswith("-")
        ]
        for deb in debs:
            for name in self.conflicts.get(deb.name, []):
                if any(other.key == name for other in debs):
                    return [], [], (100, f" {name} : Conflicts: {deb.name}\n", BROKEN)
                if name in self.installed and name not in removed:
                    if self.states[name][0] == "h" and "-oAPT::Ignore-Hold=true" not in argv:
                        return [], [], (100, f" {name} : Conflicts: {deb.name}\n", HOLD_CONFLICT)
                    removed.append(name)
        moved = [name for name in (*removed, *(deb.key for deb in debs)) if self._moves(name, debs)]
        removed += [user for name in moved for user in self.users.get(name, []) if user in self.installed]
        return removed, [deb for deb in debs if self._moves(deb.key, [deb])], None

    def _moves(self, name: str, debs: list[Deb]) -> bool:
        new = next((deb.version for deb in debs if deb.key == name), None)
        return (self.installed[name].version if name in self.installed else None) != new

    def _said(self, removed: list[str], debs: list[Deb]) -> Answer:
        text = "Reading package lists...\nBuilding dependency tree...\nReading state information...\n"
        text += "".join(f"Remv {name} [{self.installed[name].version}]\n" for name in removed)
        for deb in debs:
            old = f" [{self.installed[deb.key].version}]" if deb.key in self.installed else ""
            text += f"Inst {deb.key}{old} ({deb.version} Debian:12/stable [{deb.architecture}])\n"
        return 0, text, ""

    def _sh(self, argv: list[str]) -> Answer:
        return self._download(argv[3:], Path(argv[2]))

    def _download(self, requests: list[str], folder: Path) -> Answer:
        text, uris = "", "--print-uris" in requests
        for request in requests[1:] if uris else requests:
            name, _, version = request.partition("=")
            deb = next((deb for deb in self.offered if (deb.key, deb.version) == (name, version)), None)
            if deb is None:
                return 100, "", f"E: Version '{version}' for '{name}' was not found\n"
            text += f"'http://deb.example/{deb.file}' {deb.file} {deb.size} SHA256:0\n"
            if not uris:
                self.save(deb, folder)
        return 0, text if uris else "", ""

    @staticmethod
    def save(deb: Deb, folder: Path) -> Path:
        """Write a package's file."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / deb.file
        path.write_text(json.dumps(vars(deb)))
        return path

    @staticmethod
    def _load(file: Path) -> Deb:
        fields = json.loads(file.read_text())
        return Deb(**{**fields, "dkms": tuple(fields["dkms"]) if fields["dkms"] else None})

    def _unpack(self, deb: Deb) -> None:
        held = self.states.get(deb.key, "ii")[0]
        if deb.key in self.installed:
            self._remove(deb.key)
        self.installed[deb.key] = deb
        self.states[deb.key] = f"{held}i"
        self._sources(deb, self.root)

    def _remove(self, name: str) -> None:
        deb = self.installed.pop(name)
        del self.states[name]
        if deb.dkms:
            # prerm of a package with modules: dkms remove --all
            self._dkms(["remove", "-m", deb.dkms[0], "-v", deb.dkms[1], "--all"])
            shutil.rmtree(self.root / f"usr/src/{'-'.join(deb.dkms)}")

    @staticmethod
    def _sources(deb: Deb, root: Path) -> None:
        if deb.dkms:
            name, version = deb.dkms
            folder = root / f"usr/src/{name}-{version}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "dkms.conf").write_text(f'PACKAGE_NAME="{name}"\nPACKAGE_VERSION="{version}"\n')

    # ---- DKMS and kernel modules

    def _modinfo(self, argv: list[str]) -> Answer:
        _, kernel, name = argv
        version, _, flavour = (self.module(kernel, name) or "").partition(" ")
        if not version:
            return 1, "", f"modinfo: ERROR: Module {name} not found.\n"
        file = f"/lib/modules/{kernel}/updates/dkms/{name}.ko"
        # The file's text is the version, with " open" behind it for such a module.
        text = f"filename:       {file}\nversion:        {version}\nlicense:        {'Dual MIT/GPL' if flavour else 'NVIDIA'}\n"
        return 0, f"{text}srcversion:     0123456789ABCDEF\nname:           nvidia\n", ""

    def _dkms(self, argv: list[str]) -> Answer:
        option = dict(zip(argv[1::2], argv[2::2], strict=False))
        name, version, kernel = option["-m"], option["-v"], option.get("-k", "")
        tree = Path(option.get("--dkmstree", self.root / "var/lib/dkms"))
        sources = Path(option.get("--sourcetree", self.root / "usr/src")) / f"{name}-{version}"
        if argv[0] == "add":
            if not (sources / "dkms.conf").exists():
                return 2, "", f"Error! Could not find module source directory.\nDirectory: {sources} does not exist.\n"
            self._add(tree, name, version, sources)
        elif argv[0] == "build":
            if not (self.root / f"lib/modules/{kernel}/build").exists():
                return 21, "", f"\nError! Your kernel headers for kernel {kernel} cannot be found.\n"
            self._build(tree, name, version, kernel)
        elif argv[0] == "install":
            if kernel in self._in_place(name, version) and "--force" not in argv:
                return 0, f"Module {name}/{version} already installed on kernel {kernel} (x86_64), skip.\n", ""
            self._install(name, version, kernel)
        elif argv[0] == "remove":
            for place in (self.root / "lib/modules").glob("*"):
                if self.module(place.name, name) == version:
                    (place / f"updates/dkms/{name}.ko").unlink()
                (place / f"updates/dkms/.{name}-{version}").unlink(missing_ok=True)
            shutil.rmtree(tree / name / version, ignore_errors=True)
        else:
            return 0, self._status(tree, name, version), ""
        return 0, "", ""

    def _status(self, tree: Path, name: str, version: str) -> str:
        text = ""
        for folder in sorted((tree / name / version).glob("*/x86_64")):
            kernel = folder.parent.name
            state = "built"
            if kernel in self._in_place(name, version):
                same = self.module(kernel, name) == version
                state = "installed" if same else "installed (Differences between built and installed modules)"
            text += f"{name}/{version}, {kernel}, x86_64: {state}\n"
        return text or (f"{name}/{version}: added\n" if (tree / name / version).exists() else "")

    def _in_place(self, name: str, version: str) -> set[str]:
        """Return the kernels for which DKMS remembers an installation, whatever became of the file."""
        return {path.parents[2].name for path in (self.root / "lib/modules").glob(f"*/updates/dkms/.{name}-{version}")}

    def _add(self, tree: Path, name: str, version: str, sources: Path) -> None:
        folder = tree / name / version
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "source").is_symlink():
            (folder / "source").symlink_to(sources)

    def _build(self, tree: Path, name: str, version: str, kernel: str) -> None:
        self._add(tree, name, version, self.root / f"usr/src/{name}-{version}")
        for place, text in ((f"module/{name}.ko", version), ("log/make.log", "done\n")):
            path = tree / name / version / kernel / "x86_64" / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def _install(self, name: str, version: str, kernel: str) -> None:
        built = self.root / f"var/lib/dkms/{name}/{version}/{kernel}/x86_64/module/{name}.ko"
        self.write(f"lib/modules/{kernel}/updates/dkms/{name}.ko", built.read_text())
        self.write(f"lib/modules/{kernel}/updates/dkms/.{name}-{version}", "")
