#!/usr/bin/python
"""Keep one drop-in of sysctl.d, and the live values of its keys."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sysctl_files import (
    KernelRefusedError,
    Plan,
    key_name,
    make_plan,
    make_removal,
    write_live,
)

DOCUMENTATION = r"""
module: sysctl_dropin
short_description: Keep one drop-in of sysctl.d, and the live values of its keys
description:
  - Writes all wanted kernel parameters into one file of C(/etc/sysctl.d) and, with O(apply), into the running kernel.
  - Everything is checked before anything is written, and all faults are reported together.
  - Some illegal values only the kernel knows. With O(apply), live values are therefore written first; if the kernel
    refuses one, those already written are put back and the file is left as it was.
  - Reads the other files of sysctl.d in systemd-sysctl's order, and reports those that would undo this one at boot.
options:
  path:
    description: The file; systemd-sysctl reads C(/etc/sysctl.d/<name>.conf) only.
    type: str
    default: /etc/sysctl.d/90-groundwork.conf
  parameters:
    description: All wanted parameters, in the order of the file. What is not in the list goes out of the file.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description:
          - The key with dots or slashes; the first separator says which one separates.
          - An interface's name may hold the other one, as in C(net.ipv4.conf.eth0/1.forwarding).
        type: str
        required: true
      value:
        description: The value. Several numbers are separated by spaces.
        type: str
        required: true
      rule:
        description:
          - V(exact) sets the value.
          - V(minimum) raises to the value and never lowers; several numbers are compared one by one.
          - V(optional) sets the value if the kernel has the key, and otherwise leaves it out and says so.
        type: str
        choices: [exact, minimum, optional]
        default: exact
  apply:
    description: Write the live values too. Leave it off where the kernel belongs to another host, as in a container.
    type: bool
    default: true
  on_override:
    description: What to do if a later file sets one of the keys otherwise, so that the next boot would undo this file.
    type: str
    choices: [fail, warn]
    default: fail
  state:
    description: V(absent) removes the file; live values stay until the next boot.
    type: str
    choices: [present, absent]
    default: present
author: Groundwork maintainers
"""

EXAMPLES = r"""
- name: Tune the kernel
  sysctl_dropin:
    parameters:
      - {name: vm.swappiness, value: 1}
      - {name: fs.file-max, value: 2097152, rule: minimum}
      - {name: net.ipv4.tcp_rmem, value: 4096 131072 33554432}
"""

RETURN = r"""
settings:
  description: The keys in the file and their values.
  returned: success
  type: dict
missing:
  description: Optional keys that this kernel does not have, each with C(name) and C(reason).
  returned: success
  type: list
released:
  description: Keys that were in the file and are no longer; their live values stay until the next boot.
  returned: success
  type: list
notes:
  description: What was skipped or released, in sentences.
  returned: success
  type: list
overrides:
  description: Lines of later files that set one of the keys otherwise; C(key), C(ours), C(theirs), C(file), C(line).
  returned: always
  type: list
foreign_faults:
  description: Lines of other files that are no assignment or name a missing key.
  returned: success
  type: list
"""

#: The directory under which everything is read and written; tests put a made-up tree in its place.
ROOT = Path("/")


def diff(plan: Plan, path: str, *, apply: bool) -> list[dict[str, str]]:
    """Diff of the file and, if they are written, of the live values."""
    entries = {path: (plan.before or "", plan.after or "")}
    if apply:
        before = "".join(f"{key_name(change.key)} = {change.before}\n" for change in plan.live)
        after = "".join(f"{key_name(change.key)} = {change.after}\n" for change in plan.live)
        entries["live values"] = (before, after)
    return [
        {"before_header": header, "after_header": header, "before": before, "after": after}
        for header, (before, after) in entries.items()
    ]


def notes(plan: Plan) -> list[str]:
    """Sentences about what the run leaves out or lets go."""
    released = "is out of the file: its live value stays, the kernel's default comes back at the next boot"
    skipped = [f"{item['name']} is skipped: {item['reason']}" for item in plan.missing]
    return skipped + [f"{name} {released}" for name in plan.released]


def override_faults(plan: Plan) -> list[str]:
    """Say which lines would undo the file at boot."""
    return [
        f"{item['file']}:{item['line']} is read after this file and "
        + (f"takes {item['key']} back" if item["theirs"] is None else f"sets {item['key']} to {item['theirs']!r}")
        + f" where {item['ours']!r} is wanted; remove that line, or ask for the same value"
        for item in plan.overrides
    ]


def foreign_warnings(plan: Plan) -> list[str]:
    """Say what is odd in other files and does no harm at boot."""
    unread = [
        f"{item['file']}:{item['line']} sets {item['key']} to {item['theirs']!r} where {item['ours']!r} is wanted: "
        "'sysctl --system' would read this, the boot does not"
        for item in plan.unread
    ]
    faults = [f"Lines without effect in other sysctl files: {'; '.join(plan.foreign_faults)}"]
    return unread + (faults if plan.foreign_faults else [])


def write_file(module: AnsibleModule, file: Path, text: str | None) -> None:
    """Replace the file in one step, or remove it."""
    if text is None:
        file.unlink()
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(module.tmpdir) / file.name
    draft.write_text(text)
    module.atomic_move(str(draft), str(file))


def main() -> None:
    """Run the module."""
    parameter = {
        "name": {"type": "str", "required": True},
        "value": {"type": "str", "required": True},
        "rule": {"type": "str", "choices": ["exact", "minimum", "optional"], "default": "exact"},
    }
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "str", "default": "/etc/sysctl.d/90-groundwork.conf"},
            "parameters": {"type": "list", "elements": "dict", "default": [], "options": parameter},
            "apply": {"type": "bool", "default": True},
            "on_override": {"type": "str", "choices": ["fail", "warn"], "default": "fail"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    path, apply, present = module.params["path"], module.params["apply"], module.params["state"] == "present"
    file = ROOT / path.lstrip("/")
    plan = make_plan(ROOT, path, module.params["parameters"], apply=apply) if present else make_removal(ROOT, path)
    faults, warnings = plan.faults, foreign_warnings(plan)
    (faults if module.params["on_override"] == "fail" else warnings).extend(override_faults(plan))
    for text in warnings:
        module.warn(text)
    if faults:
        module.fail_json(f"Nothing was written. Correct first: {'; '.join(faults)}.", overrides=plan.overrides)

    changes = [change for change in plan.live if apply and change.before != change.after]
    rewrite = plan.before != plan.after
    if not module.check_mode:
        try:
            write_live(ROOT, changes)
        except KernelRefusedError as error:
            module.fail_json(f"{error}. All live values are as they were, and {path} was not written.")
        if rewrite:
            write_file(module, file, plan.after)
    changed = bool(changes) or rewrite
    if present:
        changed = module.set_mode_if_different(str(file), 0o644, changed)

    module.exit_json(
        changed=changed,
        diff=diff(plan, path, apply=apply and present),
        notes=notes(plan),
        **{key: getattr(plan, key) for key in ("settings", "missing", "released", "overrides", "foreign_faults")},
    )


if __name__ == "__main__":
    main()
