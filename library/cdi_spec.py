#!/usr/bin/python
"""Give a host exactly one CDI spec of its GPUs, made from the driver that runs."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from ansible.module_utils import cdi
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.container_toolkit import BACKUPS, backup_folder

DOCUMENTATION = r"""
module: cdi_spec
short_description: Give a host exactly one CDI spec of its GPUs, made from the driver that runs
description:
  - The one spec is C(/var/run/cdi/nvidia.yaml), which the toolkit's own C(nvidia-cdi-refresh.service) writes.
  - Generates a spec aside and compares. Where the files differ, because of another driver, another GPU, other MIG instances or
    other settings of the service, the service is started again.
  - Moves any other spec of the kind nvidia.com/gpu, whatever made it, to C(/var/backups/groundwork/nvidia_container_toolkit).
    Specs of other kinds are left alone.
  - Without a driver that is loaded and complete there is nothing to describe. That is no failure; the result says so, and a
    spec that names files which are gone is removed.
author: Groundwork maintainers
"""

EXAMPLES = r"""
- name: Describe the GPUs to container engines
  cdi_spec:
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode, each with its reason.
  returned: success
  type: list
  elements: str
notes:
  description: Why there is no spec, if there is none.
  returned: success
  type: list
  elements: str
"""

#: The directory under which everything is read and written; tests put a made-up tree in its place.
ROOT = Path("/")
SPEC = f"/{cdi.GENERATED_IN}/nvidia.yaml"
SERVICE = "nvidia-cdi-refresh.service"
ENVIRONMENT_FILE = "etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
LISTED = 3  # missing files that a message names


def generate(module: AnsibleModule, program: str) -> dict[str, str]:
    """Return the specs that the service would write now."""
    shown = module.run_command(["systemctl", "show", SERVICE, "--property=Environment"], check_rc=True)[1]
    file = ROOT / ENVIRONMENT_FILE
    variables = cdi.environment(shown, file.read_text() if file.exists() else "")
    folder = Path(tempfile.mkdtemp(dir=module.tmpdir))
    command = [program, "cdi", "generate", f"--output={folder}/nvidia.yaml"]
    code, _, error = module.run_command(command, environ_update=variables)
    fresh: dict[str, str] = cdi.generated(folder)
    shutil.rmtree(folder)
    if code != 0 or not fresh:
        module.fail_json(
            f"The NVIDIA driver is loaded, but `nvidia-ctk cdi generate` could not describe its GPUs: {error.strip()}\n"
            "Nothing was changed. `nvidia-smi` shows whether the driver answers; repeat the run when it does."
        )
    return fresh


def refresh(module: AnsibleModule, fresh: dict[str, str]) -> None:
    """Let the service write the specs, and see that it did."""
    # Systemd counts starts, and refuses the sixth one within 10 s.
    module.run_command(["systemctl", "reset-failed", SERVICE])
    error = module.run_command(["systemctl", "restart", SERVICE])[2].strip()
    written = cdi.generated(ROOT / cdi.GENERATED_IN)
    if any(written.get(name) != text for name, text in fresh.items()):
        log = module.run_command(["journalctl", f"--unit={SERVICE}", "--lines=15", "--no-pager", "--output=cat"])[1]
        module.fail_json(
            f"{SERVICE} did not write {SPEC} as `nvidia-ctk cdi generate` does. {error}\n"
            f"Look at /{ENVIRONMENT_FILE}, which may send it elsewhere, and at the end of its log:\n{log}"
        )


def reason(present: dict[str, str]) -> str:
    """Return what is wrong with the specs that are there."""
    gone = [path for text in present.values() for path in cdi.missing_paths(ROOT, text)]
    if "nvidia.yaml" not in present:
        return "there is none"
    if gone:
        return f"it names files that do not exist ({', '.join(gone[:LISTED])}{', …' if len(gone) > LISTED else ''})"
    return "it is not what the driver, its GPUs and the settings of the service make now"


def plan(module: AnsibleModule, before: dict[str, str], notes: list[str]) -> dict[str, str]:
    """Return the specs that the host is to have."""
    if why := cdi.no_driver(ROOT):
        notes.append(why)
        return {name: text for name, text in before.items() if not cdi.missing_paths(ROOT, text)}
    if program := module.get_bin_path("nvidia-ctk"):
        return generate(module, program)
    if not module.check_mode:
        module.fail_json("nvidia-ctk is not installed; install the package nvidia-container-toolkit-base first")
    return {"nvidia.yaml": "what nvidia-ctk, which is not installed yet, makes of the driver\n"}


def main() -> None:
    """Compare, plan, act."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    folder = ROOT / cdi.GENERATED_IN
    notes: list[str] = []
    before, others = cdi.generated(folder), cdi.others(ROOT)
    after = plan(module, before, notes)
    surplus = sorted(before.keys() - after.keys())
    write = any(before.get(name) != text for name, text in after.items())
    actions = [f"write {SPEC} anew: {reason(before)}"] if write else []
    actions += [f"remove /{cdi.GENERATED_IN}/{name}: {reason({'nvidia.yaml': before[name]})}" for name in surplus]
    actions += [f"move {path} to {BACKUPS}: {SERVICE} keeps the one spec of this host's GPUs" for path in others]
    if not module.check_mode:
        if write:
            refresh(module, after)
        for name in surplus:
            (folder / name).unlink()
        # Last, so that a host whose own spec can't be made keeps the one that it has.
        for path in others:
            shutil.move(ROOT / path.lstrip("/"), backup_folder(ROOT))
    changes = {SPEC: ("".join(before.values()), "".join(after.values())), "actions": ("", "".join(f"{a}\n" for a in actions))}
    diff = [
        {"before_header": header, "after_header": header, "before": old, "after": new}
        for header, (old, new) in changes.items()
        if old != new
    ]
    module.exit_json(changed=bool(actions), actions=actions, notes=notes, diff=diff)


if __name__ == "__main__":
    main()
