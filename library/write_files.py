#!/usr/bin/python
"""Ansible module: all directories and files of a role in one call."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: write_files
short_description: Write a role's directories and files in one call
description:
  - Makes directories and writes files with given content, owner and mode, each file as a whole and at once.
  - A loop over C(template) costs two round trips per file. Here a role's files, rendered on the controller by the
    C(template) and C(file) lookups, cost one together.
  - What is as wanted is not touched. Check mode and diff are exact.
options:
  directories:
    description: Directories, in the order in which they are made.
    type: list
    elements: dict
    default: []
    suboptions: &entry
      path: {description: Absolute path., type: path, required: true}
      mode: {description: Octal mode as a string., type: str, required: true}
      owner: {description: Owner., type: str, default: root}
      group: {description: Group., type: str, default: root}
  files:
    description: Files. Their directories must exist or be listed above.
    type: list
    elements: dict
    default: []
    suboptions:
      <<: *entry
      content: {description: The whole content; it ends with a newline., type: str, required: true}
"""

EXAMPLES = r"""
- name: Configure the exporter
  write_files:
    directories:
      - {path: /etc/exporter, mode: "0755"}
    files:
      - path: /etc/exporter/config.yml
        mode: "0640"
        group: exporter
        content: "{{ lookup('ansible.builtin.template', 'config.yml.j2') }}"
"""

RETURN = r"""
changed_paths:
  description: Directories and files that were made, written, or given another owner or mode.
  returned: success
  type: list
  elements: str
"""


def attributes(module: AnsibleModule, entry: dict[str, Any], diff: dict[str, Any]) -> bool:
    """Give a path its owner and mode; tell whether they were others. A path that does not exist yet (check mode) is no change."""
    if not os.path.lexists(entry["path"]):
        return False
    arguments = module.load_file_common_arguments({**module.params, **entry}, path=entry["path"])
    return bool(module.set_fs_attributes_if_different(arguments, False, diff=diff))


def make_directory(module: AnsibleModule, entry: dict[str, Any], diff: dict[str, Any]) -> bool:
    """Make one directory; tell whether it changed."""
    path = Path(entry["path"])
    missing = not path.is_dir()
    if missing:
        diff["before"], diff["after"] = {"state": "absent"}, {"state": "directory", "mode": entry["mode"]}
        if path.exists():
            module.fail_json(msg=f"{path} is to be a directory and is something else; move it away")
        if not module.check_mode:
            path.mkdir(mode=0o700)
    return attributes(module, entry, {} if missing else diff) or missing


def write_file(module: AnsibleModule, entry: dict[str, Any], diff: dict[str, Any]) -> bool:
    """Write one file under its name only when it is complete and has its owner and mode; tell whether it changed."""
    path = Path(entry["path"])
    if path.is_dir():
        module.fail_json(msg=f"{path} is to be a file and is a directory; move it away")
    # A final newline is what the file lookup takes off and what every reader of these files expects.
    wanted = entry["content"].rstrip("\n") + "\n"
    before = path.read_text(errors="surrogateescape") if path.exists() else ""
    differs = not path.exists() or before != wanted
    if differs:
        diff["before"], diff["after"] = before, wanted
        if not module.check_mode:
            handle, name = tempfile.mkstemp(dir=module.tmpdir)
            with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(wanted)
            attributes(module, {**entry, "path": name}, {})
            # Without the attributes of the file that it replaces: it has its own.
            module.atomic_move(name, str(path), keep_dest_attrs=False)
    return attributes(module, entry, {} if differs else diff) or differs


def main() -> None:
    """Go through the entries in order."""
    entry = {
        "path": {"type": "path", "required": True},
        "mode": {"type": "str", "required": True},
        "owner": {"type": "str", "default": "root"},
        "group": {"type": "str", "default": "root"},
    }
    file = {**entry, "content": {"type": "str", "required": True}}
    module = AnsibleModule(
        argument_spec={
            "directories": {"type": "list", "elements": "dict", "default": [], "options": entry},
            "files": {"type": "list", "elements": "dict", "default": [], "options": file},
        },
        supports_check_mode=True,
    )
    changed, diffs = [], []
    for key, apply in (("directories", make_directory), ("files", write_file)):
        for item in module.params[key]:
            diff: dict[str, Any] = {}
            if apply(module, item, diff):
                changed.append(item["path"])
                header = {"before_header": item["path"], "after_header": item["path"]}
                diffs.append({**header, "before": "", "after": "", **diff})
    module.exit_json(changed=bool(changed), changed_paths=changed, diff=diffs)


if __name__ == "__main__":
    main()
