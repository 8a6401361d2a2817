#!/usr/bin/python
"""Set the mode of NVIDIA's container runtime, and make it known to container engines."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.container_toolkit import backup_folder, table_value
from ansible.module_utils.files import replace

DOCUMENTATION = r"""
module: container_toolkit_config
short_description: Set the mode of NVIDIA's container runtime, and make it known to container engines
description:
  - Everything is written by C(nvidia-ctk), and only where something differs.
  - containerd and CRI-O get a drop-in; containerd's own file is only made to import it. Docker has no drop-ins, so its
    C(daemon.json) is merged. A file that was there is copied to C(/var/backups/groundwork/nvidia_container_toolkit) before.
  - Restarts nothing. In a dry run on a host without C(nvidia-ctk), it counts on the mode auto, which the package sets.
options:
  mode:
    description: How GPUs get into containers.
    type: str
    choices: [auto, cdi, legacy]
    required: true
  engines:
    description: Engines that get a runtime called nvidia beside their own.
    type: list
    elements: str
    choices: [containerd, crio, docker]
    default: []
author: Groundwork maintainers
"""

EXAMPLES = r"""
- name: Give GPUs to containers by CDI, under Docker too
  container_toolkit_config:
    mode: cdi
    engines: [docker]
"""

RETURN = r"""
changed_paths:
  description: Files that were written, or would be in check mode.
  returned: success
  type: list
  elements: str
read_paths:
  description: Engine -> the files of its settings, which it reads at its start.
  returned: success
  type: dict
"""

#: The directory under which everything is read and written; tests put a made-up tree in its place.
ROOT = Path("/")
CONFIG = "/etc/nvidia-container-runtime/config.toml"
PACKAGED_MODE = "auto"


class Engine(NamedTuple):
    """Where an engine's settings are: its own file, and the drop-in, if it has such."""

    main: str
    drop_in: str


ENGINES = {
    "containerd": Engine("/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"),
    "crio": Engine("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/99-nvidia.toml"),
    "docker": Engine("/etc/docker/daemon.json", ""),
}


def read(path: str) -> str:
    """Return the text of a file; nothing if there is none."""
    file = ROOT / path.lstrip("/")
    return file.read_text(errors="surrogateescape") if file.exists() else ""


def ask(module: AnsibleModule, *arguments: str) -> str:
    """Run nvidia-ctk; return its output."""
    code, output, error = module.run_command([module.get_bin_path("nvidia-ctk", required=True), *arguments])
    if code != 0:
        module.fail_json(f"`nvidia-ctk {' '.join(arguments)}` failed: {error.strip()}")
    return str(output)


def back_up(path: str) -> None:
    """Copy a file, if it exists, into a directory of its own."""
    if (file := ROOT / path.lstrip("/")).exists():
        shutil.copy2(file, backup_folder(ROOT))


def set_mode(module: AnsibleModule) -> dict[str, tuple[str, str]]:
    """Set the mode; return the changed file, before and after."""
    before, mode = read(CONFIG), module.params["mode"]
    if (table_value(before, "nvidia-container-runtime", "mode") or PACKAGED_MODE) == mode:
        return {}
    after = ask(module, "config", f"--config-file={ROOT / CONFIG.lstrip('/')}", "--set", f"nvidia-container-runtime.mode={mode}")
    if not module.check_mode:
        back_up(CONFIG)
        # Not by its --in-place, which empties the file first and then fills it.
        replace(ROOT / CONFIG.lstrip("/"), after)
    return {CONFIG: (before, after)}


def is_known(engine: Engine, wanted: str) -> bool:
    """Tell whether an engine has what `nvidia-ctk runtime configure --dry-run` printed."""
    if not engine.drop_in:
        return bool(read(engine.main)) and json.loads(read(engine.main)) == json.loads(wanted)
    drop_in = read(engine.drop_in).strip()
    # What is printed is the drop-in, and for containerd its own file after it, which must import the drop-in.
    imports = re.search(r"^\s*imports\s*=\s*\[([^\]]*)\]", read(engine.main), re.MULTILINE)
    imported = engine is not ENGINES["containerd"] or (imports and f"{Path(engine.drop_in).parent}/*.toml" in imports[1])
    return bool(drop_in) and wanted.strip().startswith(drop_in) and bool(imported)


def add_runtime(module: AnsibleModule, name: str) -> dict[str, tuple[str, str]]:
    """Make the runtime known to an engine; return the changed file, before and after."""
    engine, arguments = ENGINES[name], ["runtime", "configure", f"--runtime={name}"]
    path = engine.drop_in or engine.main
    before, wanted = read(path), ask(module, *arguments, "--dry-run")
    if is_known(engine, wanted):
        return {}
    if not module.check_mode:
        for file in filter(None, engine):
            back_up(file)
        ask(module, *arguments)
        if not is_known(engine, wanted):
            module.fail_json(f"`nvidia-ctk {' '.join(arguments)}` did not write {path} as its --dry-run printed it")
    return {path: (before, wanted)}


def main() -> None:
    """Compare and write, one file after the other."""
    module = AnsibleModule(
        argument_spec={
            "mode": {"type": "str", "choices": ["auto", "cdi", "legacy"], "required": True},
            "engines": {"type": "list", "elements": "str", "choices": list(ENGINES), "default": []},
        },
        supports_check_mode=True,
    )
    mode, engines = module.params["mode"], module.params["engines"]
    changes: dict[str, tuple[str, str]] = {}
    if module.check_mode and not module.get_bin_path("nvidia-ctk"):
        if mode != PACKAGED_MODE:
            changes[CONFIG] = (f'mode = "{PACKAGED_MODE}"\n', f'mode = "{mode}"\n')
        changes |= {ENGINES[name].drop_in or ENGINES[name].main: ("", "the runtime nvidia\n") for name in engines}
    else:
        changes |= set_mode(module)
        for name in engines:
            changes |= add_runtime(module, name)
    diff = [
        {"before_header": path, "after_header": path, "before": before, "after": after}
        for path, (before, after) in changes.items()
    ]
    read = {name: [path for path in ENGINES[name] if path] for name in engines}
    module.exit_json(changed=bool(changes), changed_paths=list(changes), read_paths=read, diff=diff)


if __name__ == "__main__":
    main()
