#!/usr/bin/python
"""Keep a file of the host, as it is, inside the initramfs images of all kernels."""

from __future__ import annotations

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.initramfs import (
    HOOKS,
    PENDING,
    Builder,
    ImageError,
    Kernel,
    NoRoomError,
    find_builder,
    find_kernels,
    little_space,
)

DOCUMENTATION = r"""
module: initramfs_current
short_description: Rebuild the initramfs images whose copy of a file is not the wanted one
description:
  - Looks for one file inside the initramfs image of each installed kernel, compares its content, and rebuilds only those
    images that differ. An image that can't be read is rebuilt too.
  - Takes the place of a handler that rebuilds all images, since the state decides. A run that was interrupted, or an image
    that somebody built without the file, is put right by the next run.
  - Works with initramfs-tools and dracut. Whether they copy the file is a matter of their settings, not of this module.
  - Looks into each image again after it was rebuilt. If the file is not as wanted, that is an error which names the reason.
  - An image is replaced only by a complete one. The old one stays if the disk is full or the run is killed.
  - Images are built with the hooks in C(/etc/initramfs/post-update.d), by which boot loaders take their copies. A rebuild
    that was killed, or whose hook failed, is noted in C(/var/lib/groundwork/initramfs-pending), and the next run repeats it.
  - A rebuild takes up to a minute for each kernel. A kernel without an image is reported and gets none.
options:
  path:
    description: The file, as it is called on the host and inside the images.
    type: path
    required: true
  content:
    description: What the file holds. Given, not read, so that check mode knows it where an earlier task would write the file.
    type: str
    default: ""
  state:
    description: Whether the images hold the file.
    type: str
    choices: [present, absent]
    default: present
author: Groundwork maintainers
"""

EXAMPLES = r"""
- name: Keep the blacklist in the initramfs of each kernel
  initramfs_current:
    path: /etc/modprobe.d/groundwork-nouveau.conf
    content: "{{ lookup('ansible.builtin.template', 'modprobe.conf.j2') }}"
"""

RETURN = r"""
rebuilt:
  description: Images that were rebuilt; in check mode, those that would be.
  returned: always
  type: list
  elements: str
seconds:
  description: How long that took.
  returned: always
  type: float
notes:
  description: Kernels that were left out, and why.
  returned: always
  type: list
  elements: str
"""

#: The directory under which the host is read; tests put a made-up tree in its place.
ROOT = Path("/")


def read(builder: Builder, kernel: Kernel, path: str) -> str:
    """Return what an image holds of the file, for comparison and diff."""
    try:
        return str(builder.read(kernel.image, path))
    except NoRoomError:
        raise
    except ImageError as error:
        return f"(the image can't be read: {error})\n"


def rebuild(builder: Builder, kernel: Kernel, path: str, wanted: str, pending: Path) -> None:
    """Rebuild an image; the mark goes only when its hooks have ended too."""
    pending.parent.mkdir(parents=True, exist_ok=True)
    pending.touch()
    builder.rebuild(kernel, path, wanted)
    pending.unlink()


def main() -> None:
    """Look into each image, rebuild those that differ."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "content": {"type": "str", "default": ""},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    path, present = module.params["path"], module.params["state"] == "present"
    wanted = module.params["content"].rstrip("\n") + "\n" if present else ""  # as write_files ends the file
    if present and not wanted.strip():
        module.fail_json("content: the images are searched for what the file holds, so it must not be empty")
    kernels, notes = find_kernels(ROOT)
    builder = find_builder(module, ROOT)
    if kernels and builder is None:
        names = ", ".join(str(kernel.image) for kernel in kernels)
        module.fail_json(f"{names}: neither initramfs-tools nor dracut is installed to look into it; install initramfs-tools")
    diffs, faults, rebuilt, start = [], [], [], time.monotonic()
    for kernel in kernels if builder else []:
        pending = ROOT / PENDING / kernel.image.name
        try:
            before = read(builder, kernel, path)
            if before == wanted:
                if not pending.exists():
                    continue
                before += f"(its last rebuild did not end, or a hook in /{HOOKS} failed)\n"
            header = f"{path} inside {kernel.image}"
            diffs.append({"before_header": header, "after_header": header, "before": before, "after": wanted})
            if not module.check_mode:
                rebuild(builder, kernel, path, wanted, pending)
            rebuilt.append(str(kernel.image))
        except (ImageError, OSError) as error:
            faults.append(f"{kernel.image}: {error}.{little_space(kernel)}")
    result = {"changed": bool(rebuilt), "diff": diffs, "rebuilt": rebuilt, "notes": notes}
    result["seconds"] = round(time.monotonic() - start, 1)
    if faults:
        module.fail_json("An initramfs is not as wanted; correct the reason and repeat the run. " + " ".join(faults), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
