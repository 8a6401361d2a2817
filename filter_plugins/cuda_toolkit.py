"""Turn the variables of the role cuda_toolkit into what its module installs, refusing what would not work."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ansible.module_utils

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# ansible.cfg makes module_utils/ known to modules; a filter, which runs on the controller, has to find it itself.
ansible.module_utils.__path__.append(str(Path(__file__).parents[1] / "module_utils"))
catalog = importlib.import_module("ansible.module_utils.gpu_catalog")

DOCUMENTATION = r"""
name: cuda_toolkit_trees
short_description: Complete the wished toolkits, or cuDNN versions, for the module cuda_toolkits
positional: sources
options:
  _input:
    description: C(cuda_toolkit_versions) or C(cuda_toolkit_cudnn).
    type: list
    elements: dict
    required: true
  sources:
    description:
      - C(mirror), the address below which NVIDIA's files lie; C(locks), the folder of the lock files; C(staging), the folder on
        the host; C(runfiles), version -> C(file) and C(md5); C(architecture), the host's machine.
    type: dict
    required: true
"""

EXAMPLES = r"""
toolkits: "{{ cuda_toolkit_versions | cuda_toolkit_trees(__cuda_toolkit_sources) }}"
"""

RETURN = r"""
_value:
  description: Entries of the module's options C(toolkits) or C(cudnn).
  type: list
  elements: dict
"""

Entry = dict[str, Any]
DRIVER_BY = "it brings a driver of its own choice, or follows the newest toolkit"


def _texts(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries with texts where YAML may have read numbers, as in `cuda: 13`."""
    return [{key: str(value) if key in ("version", "cuda") else value for key, value in entry.items()} for entry in entries]


def series(version: str) -> str:
    """Return major and minor number of a version."""
    return ".".join(str(version).split(".")[:2])


def label(entry: Entry) -> str:
    """Return the name of an entry's lock file, without its suffix."""
    return f"cudnn-{entry['version']}-cuda{entry['cuda']}" if "cuda" in entry else f"cuda-{entry['version']}"


def lock(entry: Entry, sources: Mapping[str, Any]) -> Path:
    """Return the lock file that says which wheels make an entry."""
    return Path(entry.get("lock") or f"{sources['locks']}/{label(entry)}.lock")


def packages(entry: Entry) -> list[str]:
    """Return the packages of an entry, each with its version, as apt takes them."""
    return entry.get("packages") or [f"cuda-toolkit-{series(entry['version']).replace('.', '-')}={entry['version']}-*"]


def address(entry: Entry, sources: Mapping[str, Any]) -> str | None:
    """Return where an entry comes from; None for a runfile that is not known."""
    if entry.get("url"):
        return str(entry["url"])
    if entry["method"] == "redist":
        version, product = str(entry["version"]), "cudnn" if "cuda" in entry else "cuda"
        return f"{sources['mirror']}/{product}/redist/redistrib_{'.'.join(version.split('.')[:3])}.json"
    known = sources["runfiles"].get(entry["version"])
    if not known:
        return None
    name = known["file"] if sources["architecture"] == "x86_64" else known["file"].replace("_linux.run", "_linux_sbsa.run")
    return f"{sources['mirror']}/cuda/{entry['version']}/local_installers/{name}"


def trees(entries: Iterable[Entry], sources: Mapping[str, Any]) -> list[Entry]:
    """Return the entries as the module takes them."""
    result = []
    for entry in _texts(entries):
        tree = {key: entry[key] for key in ("version", "method", "cuda", "host_compiler", "components") if entry.get(key)}
        if entry["method"] == "wheel":
            name = label(entry) if "cuda" in entry else f"cuda-{series(entry['version'])}"
            file = lock(entry, sources)
            lines = re.sub(r"#.*", "", file.with_suffix(".in").read_text()).split()
            hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", file.read_text())
            tree |= {"wheels": f"{sources['staging']}/{name}.tar", "sha256s": hashes, "components": lines}
        elif entry["method"] != "apt":
            tree |= {"url": address(entry, sources)}
            if entry.get("sha256"):
                tree["sha256"] = entry["sha256"]
            elif not entry.get("url"):
                tree["md5"] = sources["runfiles"][entry["version"]]["md5"]
        result.append(tree)
    return result


def wheels(entries: Iterable[Entry], sources: Mapping[str, Any], missing: list[str]) -> list[dict[str, str]]:
    """Return what has to be fetched for the trees that are missing: their `name`, the `lock` file, and the `archive`'s name.

    The name of an archive changes with its lock file, so that one of an older lock is not taken for it.
    """
    found = {
        Path(tree["wheels"]).stem: entry
        for entry in _texts(entries)
        if entry["method"] == "wheel"
        for tree in trees([entry], sources)
    }
    locks = {name: lock(entry, sources) for name, entry in found.items() if name in missing}
    return [
        {"name": name, "lock": str(file), "archive": f"{label(found[name])}-{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"}
        for name, file in locks.items()
    ]


def _faults_of_source(entry: Entry, sources: Mapping[str, Any]) -> Iterator[str]:
    """Say what is missing for an entry to be fetched and checked."""
    method, version = entry["method"], entry["version"]
    if method == "wheel" and not (lock(entry, sources).is_file() and lock(entry, sources).with_suffix(".in").is_file()):
        known = sorted(path.stem for path in Path(sources["locks"]).glob(f"{label(entry).split('-')[0]}-*.lock"))
        yield f"{version} has no lock file ({lock(entry, sources)} with its .in); there are {', '.join(known)}; or make one"
    if method == "redist" and not entry.get("sha256"):
        yield f"{version} by redist needs the sha256 of its manifest, which holds the checksums of all the rest"
    if method == "runfile" and not entry.get("sha256"):
        if entry.get("url") or sources["architecture"] != "x86_64":
            yield f"{version} by runfile needs a sha256: NVIDIA's MD5 is known for its own files for x86_64 alone"
        elif version not in sources["runfiles"]:
            yield (
                f"{version} by runfile needs url and sha256, since the file's name can't be derived from the version; "
                f"known are: {', '.join(sources['runfiles'])}"
            )
    for package in packages(entry) if method == "apt" else []:
        name, _, wanted = package.partition("=")
        if re.fullmatch(catalog.CUDA_METAPACKAGE, name):
            yield f"{version} by apt asks for {name}: {DRIVER_BY}; ask for cuda-toolkit-X-Y"
        elif not wanted:
            yield f"{version} by apt asks for {name} in any version; write {name}=<version>, as apt-cache policy shows it"


def has_nvcc(entry: Entry) -> bool:
    """Whether a toolkit brings nvcc, which needs a host compiler."""
    return bool(entry["method"] != "wheel" or catalog.numbers(entry["version"])[0] >= catalog.CUDA_WHEEL_NVCC_FROM)


def compilers(entries: list[Entry]) -> list[str]:
    """Return the packages with the host compilers of toolkits; Debian's package has the name of the program."""
    return sorted({entry.get("host_compiler") or "g++" for entry in entries if has_nvcc(entry)})


def _faults_of_compiler(entry: Entry, gcc: int | None) -> Iterator[str]:
    """Say that the system's compiler is too new for a toolkit's nvcc."""
    most = catalog.cuda_gcc(entry["version"])
    if has_nvcc(entry) and gcc and most and gcc > most and not entry.get("host_compiler"):
        yield (
            f"{entry['version']} takes gcc {most} at most, and the system's is {gcc}; set host_compiler: g++-{most} (or an older "
            "one that the distribution has), or take the method wheel before CUDA 13, which needs none"
        )


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def faults(settings: Mapping[str, Any], sources: Mapping[str, Any], gcc: int | None) -> list[str]:
    """Return all that is wrong with the role's variables; `gcc`: the major version of the system's compiler, if known."""
    versions, cudnn = _texts(settings["cuda_toolkit_versions"]), _texts(settings["cuda_toolkit_cudnn"])
    default = str(settings["cuda_toolkit_default"])
    bad = [f"cuda_toolkit_versions: {entry['version']} is no full version such as 13.0.2" for entry in versions
           if not re.fullmatch(r"\d+\.\d+\.\d+", entry["version"])]  # fmt: skip
    bad += [f"cuda_toolkit_cudnn: {entry['version']} is no full version such as 9.27.0.42" for entry in cudnn
            if not re.fullmatch(r"\d+\.\d+\.\d+\.\d+", entry["version"])]  # fmt: skip
    if bad:
        return bad
    found = []
    if versions and settings["cuda_toolkit_accept_eula"] is not True:
        found.append(
            "cuda_toolkit_accept_eula: read NVIDIA's license at docs.nvidia.com/cuda/eula, and set it to true if you accept it"
        )
    for name, entries in (("versions", versions), ("cudnn", cudnn)):
        found += [f"cuda_toolkit_{name}: {text}" for entry in entries for text in _faults_of_source(entry, sources)]
    found += [f"cuda_toolkit_versions: {text}" for entry in versions for text in _faults_of_compiler(entry, gcc)]
    found += [f"cuda_toolkit_versions: {name} is listed twice; both would be /usr/local/cuda-{name}"
              for name in _twice(series(entry["version"]) for entry in versions)]  # fmt: skip
    found += [f"cuda_toolkit_cudnn: {name} is listed twice" for name in _twice(label(entry) for entry in cudnn)]
    known = [series(entry["version"]) for entry in versions]
    if default and default not in known:
        found.append(f"cuda_toolkit_default: {default} is none of {', '.join(known) or 'no toolkits'}")
    majors = sorted({name.split(".")[0] for name in known})
    found += [f"cuda_toolkit_cudnn: {entry['version']} is for CUDA {entry['cuda']}, and the toolkits here are of "
              f"{', '.join(majors) or 'none'}; a program would load a cuDNN that was built for another CUDA"
              for entry in cudnn if entry["cuda"] not in majors]  # fmt: skip
    return found


class FilterModule:
    """The filters of this file, by name."""

    def filters(self) -> dict[str, Any]:
        """Return them."""
        return {
            "cuda_toolkit_trees": trees,
            "cuda_toolkit_faults": faults,
            "cuda_toolkit_wheels": wheels,
            "cuda_toolkit_compilers": compilers,
            "cuda_toolkit_packages": lambda entries: [name for entry in entries for name in packages(entry)],
        }
