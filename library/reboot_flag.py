#!/usr/bin/python
"""Say that the host needs a reboot, and why."""

from __future__ import annotations

import re
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: reboot_flag
short_description: Say that the host needs a reboot, and why
description:
  - Roles do not reboot. Each flags the need with a reason, and C(playbooks/reboot.yml) acts on it.
  - The reasons are the files in C(/run/groundwork/reboot-required.d), one for each role. While there is one,
    C(/run/reboot-required) exists, which the tools and the login message of Debian and Ubuntu know.
  - Takes C(/run/reboot-required) away with the last reason, but only if this module made it, nobody wrote to it since, and
    no package is named in C(/run/reboot-required.pkgs), so that the wish of a kernel package is never lost.
  - C(/run) is empty after a boot, so that the flags go by themselves.
options:
  source:
    description: Who needs the reboot; the name of the role.
    type: str
    required: true
  reason:
    description: Why. Empty if the source needs no reboot any more.
    type: str
    default: ""
author: Groundwork maintainers
"""

EXAMPLES = r"""
- name: Flag a reboot
  reboot_flag:
    source: nouveau_blacklist
    reason: nouveau stays loaded until the next boot
"""

RETURN = r"""
reasons:
  description: All reasons that the host then has, by their source.
  returned: success
  type: dict
"""

#: The directory under which everything is read and written; tests put a made-up tree in its place.
ROOT = Path("/")
FLAG_TEXT = "*** System restart required ***\n"


def current_reasons(folder: Path) -> dict[str, str]:
    """Return the reasons by their source."""
    return {file.name: file.read_text().strip() for file in sorted(folder.glob("[!.]*"))}


def is_ours(flag: Path, mark: Path) -> bool:
    """Tell whether this module made the flag; the mark holds when. Whoever wants a reboot too writes the flag anew."""
    return mark.exists() and flag.exists() and mark.read_text() == str(flag.stat().st_mtime_ns)


def main() -> None:
    """Bring reason, flag and mark to the wanted state, each from what is there."""
    module = AnsibleModule(
        argument_spec={"source": {"type": "str", "required": True}, "reason": {"type": "str", "default": ""}},
        supports_check_mode=True,
    )
    source, reason = module.params["source"], " ".join(module.params["reason"].split())
    if not re.fullmatch(r"\w[\w-]*", source):
        module.fail_json(f"source: {source!r} is no name of a role; use letters, digits and underscores")
    folder, flag = ROOT / "run/groundwork/reboot-required.d", ROOT / "run/reboot-required"
    mark = folder / ".made"
    before = current_reasons(folder)
    after = {**before, source: reason}
    if not reason:
        del after[source]
    make_flag = bool(after) and not flag.exists()
    remove_flag = not after and is_ours(flag, mark) and not flag.with_name("reboot-required.pkgs").exists()
    if not module.check_mode:
        if before != after and reason:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / source).write_text(f"{reason}\n")
        if make_flag:
            # The mark first: a flag without it would be taken for another's if the run is killed, and stay.
            draft = folder / ".flag"
            draft.write_text(FLAG_TEXT)
            mark.write_text(str(draft.stat().st_mtime_ns))
            draft.replace(flag)
        if before != after and not reason:
            (folder / source).unlink()
        if remove_flag:
            flag.unlink()
            mark.unlink()
    module.exit_json(
        changed=before != after or make_flag or remove_flag,
        reasons=after,
        diff={
            "before_header": str(folder),
            "after_header": str(folder),
            "before": "".join(f"{name}: {text}\n" for name, text in before.items()),
            "after": "".join(f"{name}: {text}\n" for name, text in sorted(after.items())),
        },
    )


if __name__ == "__main__":
    main()
