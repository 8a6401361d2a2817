"""CDI specs, the files that tell container engines which device nodes and driver files belong to a GPU.

A spec names the driver's files by their version. Nothing updates one that was made by hand, and a container that gets it fails
to start once the driver has moved on. So a host shall have exactly one, and that one made from the driver that runs.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

from ansible.module_utils.nvidia_state import loaded_driver

#: Where engines look. Of two specs that describe a device, that of the later directory wins; the other one still answers for
#: devices that the winner lacks, and whenever the winner is missing (container-device-interface, pkg/cdi/cache.go).
FOLDERS = ("etc/cdi", "var/run/cdi")
GENERATED_IN = "var/run/cdi"
#: What nvidia-cdi-refresh.service writes there; the latter two only for GPUs that share their memory with the CPU, or may.
GENERATED = ("nvidia.yaml", "nvidia.coherent.yaml", "nvidia.noncoherent.yaml")
KIND = re.compile(r"nvidia\.com/gpu(\.(non)?coherent)?")
#: nvidia-cdi-refresh.service does nothing on a host without one of these.
PROGRAMS = ("usr/bin/nvidia-smi", "usr/sbin/nvidia-smi")
LIBRARIES = ("usr/lib/*-linux-gnu/libnvidia-ml.so.1", "usr/lib64/libnvidia-ml.so.1")
ENTRY = re.compile(r"[\s-]*(hostPath|path): (/.*)")


def generated(folder: Path) -> dict[str, str]:
    """Return the specs that nvidia-ctk wrote into a directory, by name."""
    return {name: (folder / name).read_text(errors="replace") for name in GENERATED if (folder / name).is_file()}


def kind(text: str) -> str:
    """Return the kind of a spec, in YAML or JSON; empty if it has none, or can't be read."""
    if not text.lstrip().startswith("{"):
        found = re.search(r"""^kind:\s*["']?([^"'\s]+)""", text, re.MULTILINE)
        return found[1] if found else ""
    try:
        return str(json.loads(text).get("kind", ""))
    except ValueError:
        return ""


def others(root: Path) -> list[str]:
    """Return the absolute paths of all other specs of GPUs. Those of other kinds belong to other programs."""
    files = [file for folder in FOLDERS for file in sorted((root / folder).glob("*")) if file.suffix in (".yaml", ".json")]
    ours = [root / GENERATED_IN / name for name in GENERATED]
    foreign = [file for file in files if file not in ours and file.is_file()]
    return [f"/{file.relative_to(root)}" for file in foreign if KIND.fullmatch(kind(file.read_text(errors="replace")))]


def host_paths(text: str) -> list[str]:
    """Return the paths on the host that a generated spec needs: device nodes, mounts and hooks, each once.

    A host need not have a YAML parser, so the text is read line by line, as nvidia-ctk writes it: one key a line. `path` is a
    path on the host too (of a hook, or of a node that has the same name in the container) unless `hostPath` says otherwise.
    """
    found: list[str] = []
    previous = ""
    for line in text.splitlines():
        match = ENTRY.match(line)
        # In a device node, hostPath comes right after the path in the container, and takes its place.
        if match and match[1] == "hostPath" and previous == "path" and not line.lstrip().startswith("-"):
            found.pop()
        if match:
            found.append(match[2])
        previous = match[1] if match else ""
    return list(dict.fromkeys(found))


def missing_paths(root: Path, text: str) -> list[str]:
    """Return those paths of a spec that the host does not have."""
    return [path for path in host_paths(text) if not os.path.lexists(root / path.lstrip("/"))]


def library_version(root: Path) -> str | None:
    """Return the version of the driver's libraries; None if there are none, or if their name does not tell it."""
    for pattern in LIBRARIES:
        for file in root.glob(pattern):
            if match := re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", os.path.realpath(file)):
                return match[1]
    return None


def no_driver(root: Path) -> str:
    """Return why no spec can be made on this host now; empty if the driver is there."""
    loaded, library = loaded_driver(root)["version"], library_version(root)
    later = "nvidia-cdi-refresh writes the spec at the next boot with a driver"
    if not any((root / program).exists() for program in PROGRAMS):
        return f"there is no CDI spec, since this host has no nvidia-smi, so no complete NVIDIA driver; {later}"
    if not loaded:
        return f"there is no CDI spec, since the NVIDIA driver is not loaded; {later}"
    if library not in (None, loaded):
        return f"there is no new CDI spec, since the loaded driver is {loaded} and its libraries are {library}; reboot the host"
    return ""


def environment(shown: str, file: str) -> dict[str, str]:
    """Return the variables of a service.

    Args:
        shown: what `systemctl show --property=Environment` prints.
        file: the text of its EnvironmentFile, which takes precedence.
    """
    assigned = shlex.split(shown.strip().partition("=")[2])
    lines = [line.strip() for line in file.splitlines()]
    assigned += [word for line in lines if line and line[0] not in "#;" for word in shlex.split(line)[:1]]
    return dict(word.split("=", 1) for word in assigned if "=" in word)
