"""What the variables of the role cuda_toolkit come to, or why they can't work; judged before any host is changed.

An entry is one of cuda_toolkit_versions or cuda_toolkit_cudnn; `sources` are the `locks` (the folder of the lock files), the
`staging` (the folder of archives on hosts), and the `runfiles` (version -> file and md5).
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils import gpu_catalog as catalog
from ansible.module_utils.versions import numbers

Entry = dict[str, Any]
Map = Mapping[str, Any]

DRIVER_BY = "it brings a driver of its own choice, or follows the newest toolkit"
#: Distribution and release -> the gcc that nvcc calls unless it is told otherwise.
SYSTEM_GCC = {("debian", "12"): 12, ("debian", "13"): 14, ("ubuntu", "22.04"): 11, ("ubuntu", "24.04"): 13}
#: The machine as the kernel calls it -> as dpkg does.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def plan(settings: Map, sources: Map, facts: Map) -> dict[str, Any]:
    """Return `faults`, and without any what the modules of the role are asked for.

    Args:
        settings: the role's variables, and those with which nvidia_driver chooses its source, if it has a say on the host.
        sources: see above.
        facts: Ansible's.

    Returns:
        toolkits, cudnn: for the module cuda_toolkits.
        wheels: their `name`, the `lock` file and the `archive`'s name, which changes with the lock file.
        compilers: packages; Debian's have the names of the programs.
        packages, parts: for the module held_packages.
        repository: for the module apt_source, without the key; None if no package is asked for.
    """
    versions, cudnn = _texts(settings["cuda_toolkit_versions"]), _texts(settings["cuda_toolkit_cudnn"])
    settings = {**settings, "cuda_toolkit_versions": versions, "cuda_toolkit_cudnn": cudnn}
    if found := faults(settings, sources, facts):
        return {"faults": found}
    by_apt = [entry for entry in versions if entry["method"] == "apt"]
    return {
        "faults": [],
        "toolkits": [_tree(entry, settings, sources, facts) for entry in versions],
        "cudnn": [_tree(entry, settings, sources, facts) for entry in cudnn],
        "wheels": [_wheels(entry, sources) for entry in (*versions, *cudnn) if entry["method"] == "wheel"],
        "compilers": sorted({entry.get("host_compiler") or "g++" for entry in versions if _has_nvcc(entry)}),
        "packages": [name for entry in by_apt for name in _packages(entry)],
        "parts": [f"-{_dashed(entry)}(-|$)" for entry in by_apt],
        "repository": _repository(settings, facts) if by_apt else None,
    }


def _texts(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries with texts where YAML may have read numbers, as in `cuda: 13`."""
    return [{key: str(value) if key in ("version", "cuda") else value for key, value in entry.items()} for entry in entries]


def _series(entry: Entry) -> str:
    return ".".join(entry["version"].split(".")[:2])


def _dashed(entry: Entry) -> str:
    return _series(entry).replace(".", "-")


def _label(entry: Entry) -> str:
    """Return the name of an entry's lock file, without its suffix."""
    return f"cudnn-{entry['version']}-cuda{entry['cuda']}" if "cuda" in entry else f"cuda-{entry['version']}"


def _name(entry: Entry) -> str:
    """Return the name of the tree."""
    return _label(entry) if "cuda" in entry else f"cuda-{_series(entry)}"


def _lock(entry: Entry, sources: Map) -> Path:
    """Return the lock file that says which wheels make an entry."""
    return Path(entry.get("lock") or f"{sources['locks']}/{_label(entry)}.lock")


def _packages(entry: Entry) -> list[str]:
    """Return the packages of an entry, each with its version, as apt takes them."""
    return entry.get("packages") or [f"cuda-toolkit-{_dashed(entry)}={entry['version']}-*"]


def _address(entry: Entry, settings: Map, sources: Map, facts: Map) -> str:
    """Return where an entry comes from."""
    if entry.get("url"):
        return str(entry["url"])
    downloads, version = settings["cuda_toolkit_downloads"], entry["version"]
    if entry["method"] == "redist":
        product = "cudnn" if "cuda" in entry else "cuda"
        return f"{downloads}/{product}/redist/redistrib_{'.'.join(version.split('.')[:3])}.json"
    file = sources["runfiles"][version]["file"]
    if facts["architecture"] != "x86_64":
        file = file.replace("_linux.run", "_linux_sbsa.run")
    return f"{downloads}/cuda/{version}/local_installers/{file}"


def _tree(entry: Entry, settings: Map, sources: Map, facts: Map) -> Entry:
    """Return an entry as the module cuda_toolkits takes it."""
    tree = {key: entry[key] for key in ("version", "method", "cuda", "host_compiler", "components") if entry.get(key)}
    if entry["method"] == "wheel":
        file = _lock(entry, sources)
        lines = re.sub(r"#.*", "", file.with_suffix(".in").read_text()).split()
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", file.read_text())
        tree |= {"wheels": f"{sources['staging']}/{_name(entry)}.tar", "sha256s": hashes, "components": lines}
    elif entry["method"] != "apt":
        tree["url"] = _address(entry, settings, sources, facts)
        if entry.get("sha256"):
            tree["sha256"] = entry["sha256"]
        else:
            tree["md5"] = sources["runfiles"][entry["version"]]["md5"]
    return tree


def _wheels(entry: Entry, sources: Map) -> dict[str, str]:
    file = _lock(entry, sources)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    return {"name": _name(entry), "lock": str(file), "archive": f"{_label(entry)}-{digest}"}


def _has_nvcc(entry: Entry) -> bool:
    """Tell whether a toolkit brings nvcc, which needs a host compiler."""
    return bool(entry["method"] != "wheel" or numbers(entry["version"])[0] >= catalog.CUDA_WHEEL_NVCC_FROM)


def _system(facts: Map) -> tuple[str, str]:
    """Return distribution and release as /etc/os-release has them: debian 12, ubuntu 22.04."""
    name, release = str(facts["distribution"]).lower(), str(facts["distribution_version"])
    return name, release if name == "ubuntu" else release.split(".", maxsplit=1)[0]


def _repository(settings: Map, facts: Map) -> dict[str, Any] | None:
    """Return what the module apt_source declares, None where nobody knows; the role nvidia_driver declares the same."""
    known = catalog.repository(*_system(facts), ARCHITECTURES.get(facts["architecture"], ""))
    mirror, key, fingerprints = (settings[f"cuda_toolkit_mirror{part}"] for part in ("", "_key", "_fingerprints"))
    if not known and not (mirror and key and fingerprints):
        return None
    known = known or {}
    return {
        "name": "cuda-mirror" if mirror else "cuda",
        "uris": [mirror or known["url"]],
        "key_url": "" if key else known["key_url"],
        "fingerprints": fingerprints or known["fingerprints"],
        "conflicts": known.get("conflicts", []),
        "obsolete_keys": known.get("obsolete_keys", []),
    }


# ---- What can't work


def faults(settings: Map, sources: Map, facts: Map) -> list[str]:
    """Return all that is wrong with the role's variables."""
    versions, cudnn = settings["cuda_toolkit_versions"], settings["cuda_toolkit_cudnn"]
    forms = (("versions", versions, r"\d+\.\d+\.\d+", "13.0.2"), ("cudnn", cudnn, r"\d+\.\d+\.\d+\.\d+", "9.27.0.42"))
    bad = [
        f"cuda_toolkit_{name}: {entry['version']} is no full version such as {sample}"
        for name, entries, form, sample in forms
        for entry in entries
        if not re.fullmatch(form, entry["version"])
    ]
    return bad or list(_faults(settings, sources, facts))


def _faults(settings: Map, sources: Map, facts: Map) -> Iterator[str]:
    versions, cudnn = settings["cuda_toolkit_versions"], settings["cuda_toolkit_cudnn"]
    if versions and settings["cuda_toolkit_accept_eula"] is not True:
        yield "cuda_toolkit_accept_eula: read NVIDIA's license at docs.nvidia.com/cuda/eula, and set it to true if you accept it"
    for name, entries in (("versions", versions), ("cudnn", cudnn)):
        for entry in entries:
            yield from (f"cuda_toolkit_{name}: {text}" for text in _faults_of_source(entry, sources, facts["architecture"]))
    gcc = SYSTEM_GCC.get(_system(facts))
    for entry in versions:
        yield from (f"cuda_toolkit_versions: {text}" for text in _faults_of_compiler(entry, gcc))
    for name in _twice(_series(entry) for entry in versions):
        yield f"cuda_toolkit_versions: {name} is listed twice; both would be /usr/local/cuda-{name}"
    for name in _twice(_label(entry) for entry in cudnn):
        yield f"cuda_toolkit_cudnn: {name} is listed twice"
    default, known = str(settings["cuda_toolkit_default"]), [_series(entry) for entry in versions]
    if default and default not in known:
        yield f"cuda_toolkit_default: {default} is none of {', '.join(known) or 'no toolkits'}"
    majors = sorted({name.split(".")[0] for name in known})
    for entry in cudnn:
        if entry["cuda"] not in majors:
            yield (
                f"cuda_toolkit_cudnn: {entry['version']} is for CUDA {entry['cuda']}, and the toolkits here are of "
                f"{', '.join(majors) or 'none'}; a program would load a cuDNN that was built for another CUDA"
            )
    if any(entry["method"] == "apt" for entry in versions):
        yield from _faults_of_repository(settings, facts)


def _faults_of_source(entry: Entry, sources: Map, architecture: str) -> Iterator[str]:
    """Say what is missing for an entry to be fetched and checked."""
    method, version = entry["method"], entry["version"]
    if method == "wheel" and not (_lock(entry, sources).is_file() and _lock(entry, sources).with_suffix(".in").is_file()):
        known = sorted(path.stem for path in Path(sources["locks"]).glob(f"{_label(entry).split('-')[0]}-*.lock"))
        yield f"{version} has no lock file ({_lock(entry, sources)} with its .in); there are {', '.join(known)}; or make one"
    if method == "redist" and not entry.get("sha256"):
        yield f"{version} by redist needs the sha256 of its manifest, which holds the checksums of all the rest"
    if method == "runfile" and not entry.get("sha256"):
        if entry.get("url") or architecture != "x86_64":
            yield f"{version} by runfile needs a sha256: NVIDIA's MD5 is known for its own files for x86_64 alone"
        elif version not in sources["runfiles"]:
            yield (
                f"{version} by runfile needs url and sha256, since the file's name can't be derived from the version; "
                f"known are: {', '.join(sources['runfiles'])}"
            )
    for package in _packages(entry) if method == "apt" else []:
        name, _, wanted = package.partition("=")
        if re.fullmatch(catalog.CUDA_METAPACKAGE, name):
            yield f"{version} by apt asks for {name}: {DRIVER_BY}; ask for cuda-toolkit-X-Y"
        elif not wanted:
            yield f"{version} by apt asks for {name} in any version; write {name}=<version>, as apt-cache policy shows it"


def _faults_of_compiler(entry: Entry, gcc: int | None) -> Iterator[str]:
    """Say that the system's compiler is too new for a toolkit's nvcc."""
    most = catalog.cuda_gcc(entry["version"])
    if _has_nvcc(entry) and gcc and most and gcc > most and not entry.get("host_compiler"):
        yield (
            f"{entry['version']} takes gcc {most} at most, and the system's is {gcc}; set host_compiler: g++-{most} (or an older "
            "one that the distribution has), or take the method wheel before CUDA 13, which needs none"
        )


def _faults_of_repository(settings: Map, facts: Map) -> Iterator[str]:
    """Say that there is no repository for packages, or that the driver comes from another one."""
    if _repository(settings, facts) is None:
        yield (
            f"cuda_toolkit_versions: NVIDIA has no apt repository for {' '.join(_system(facts))} on {facts['architecture']}; "
            "take another method than apt, or set cuda_toolkit_mirror with its _key and _fingerprints"
        )
    for text in settings["cuda_toolkit_mirror_fingerprints"]:
        if not re.fullmatch("[0-9A-Fa-f]{40}", text.replace(" ", "")):
            yield f"cuda_toolkit_mirror_fingerprints: {text} is no fingerprint of 40 hexadecimal digits"
    source = settings.get("nvidia_driver_source", "distribution")
    for part in ("", "_key", "_fingerprints") if source != "distribution" else ():
        own = settings[f"cuda_toolkit_mirror{part}"]
        drivers = settings.get(f"nvidia_driver_mirror{part}") if source == "mirror" else None
        if (own or None) != (drivers or None):
            yield (
                f"cuda_toolkit_mirror{part}: a host has one repository of NVIDIA's packages, and its driver comes from that of "
                f"nvidia_driver_mirror{part} ({drivers or 'NVIDIA'}), not of {own or 'NVIDIA'}; give both roles the same"
            )


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
