#!/usr/bin/python
"""Ansible module: the CUDA toolkits and cuDNN versions of a host, and who owns /usr/local/cuda."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils import cuda_plan as plan
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.cuda_host import Host
from ansible.module_utils.cuda_link import Link
from ansible.module_utils.cuda_trees import CudaError

DOCUMENTATION = r"""
module: cuda_toolkits
short_description: Have CUDA toolkits and cuDNN versions side by side
description:
  - One call for all CUDA trees of a host. Each has its own prefix, C(/usr/local/cuda-X.Y) or
    C(/usr/local/cudnn-<version>-cuda<major>).
  - A tree is made under another name, proved by compiling (a toolkit) or by asking the library for its version (cuDNN), and
    gets its name only then. An interrupted run leaves the tree that was there.
  - Owns C(/usr/local/cuda). Where a package registered the group C(cuda) of alternatives, the module sets it in manual mode;
    else the link is a plain one. Whatever flipped it since, it is put back.
  - Writes an environment file for each toolkit. Nothing global is written, neither for the loader nor for shells.
  - The method C(apt) means that packages bring the tree (another task installs them); the module verifies and owns it alike.
options:
  toolkits:
    description: All toolkits of the host. The directory takes the first two numbers of the version, so each pair comes once.
    type: list
    elements: dict
    required: true
    suboptions: &tree
      version: {description: "Full version, such as 13.0.2.", type: str, required: true}
      method: {description: Where it comes from., type: str, choices: [wheel, redist, runfile, apt], required: true}
      components: {description: "Part of the tree's identity: another list makes it anew. For redist, names in the manifest.",
                   type: list, elements: str, default: []}
      wheels: {description: "wheel: archive of tools/wheelhouse.py on the host; removed once it is unpacked.", type: path}
      sha256s: {description: "wheel: checksums of the wheels that may be in it.", type: list, elements: str, default: []}
      url: {description: "redist: address of the manifest. runfile: that of the file. C(file:///path) is on the host.", type: str}
      sha256: {description: "redist and runfile: checksum of what O(toolkits[].url) gives.", type: str}
      md5: {description: "runfile: NVIDIA's checksum, for files of which no SHA-256 is known.", type: str}
      host_compiler: {description: Program that nvcc calls for host code., type: str}
  cudnn:
    description: All cuDNN versions of the host, with O(cudnn[].cuda), the CUDA major.
    type: list
    elements: dict
    default: []
    suboptions:
      <<: *tree
      cuda: {description: CUDA major., type: str, required: true}
  default:
    description: The series, such as V(13.0), that C(/usr/local/cuda) leads to. Without, that of the first toolkit.
    type: str
  architecture:
    description: GPU architecture that the proof compiles for. Without, nothing is compiled.
    type: str
    default: sm_80
  prune:
    description: Remove trees that the module made and that are no longer listed; else a note names them.
    type: bool
    default: false
  staging:
    description: Folder for downloads.
    type: path
    default: /var/cache/groundwork/cuda
"""

EXAMPLES = r"""
- name: Two toolkits
  cuda_toolkits:
    default: "13.0"
    toolkits:
      - version: 13.0.2
        method: wheel
        wheels: /var/cache/groundwork/cuda/cuda-13.0.2.tar
        sha256s: [7c3a32c8ca9866addfd784da363ddee2f6874d560027a296f583e86a61f2d543]
      - version: 12.8.1
        method: runfile
        url: https://developer.download.nvidia.com/compute/cuda/12.8.1/local_installers/cuda_12.8.1_570.124.06_linux.run
        md5: e281945bf4ea42788db29457ebc1e6ae
"""

RETURN = r"""
trees:
  description: Prefix -> C(version), C(method), C(components), C(compiler) (nvcc, nvrtc or none) and C(verified).
  returned: success
  type: dict
missing:
  description:
    - Names of the trees, such as C(cuda-13.0), whose archive of wheels has to be brought to the host first. A run in check mode
      tells them, another one fails for them.
  returned: success
  type: list
unlisted:
  description: Trees of the module that are no longer listed, with C(name), C(version) and C(method).
  returned: success
  type: list
libraries:
  description: Environment file -> the libcudnn that a program gets with it.
  returned: success
  type: dict
notes:
  description: What was repaired, what stays behind, and what a program without an environment file would get.
  returned: success
  type: list
"""

ROOT = Path("/")
ENTRY = {
    "version": {"type": "str", "required": True},
    "method": {"type": "str", "choices": ["wheel", "redist", "runfile", "apt"], "required": True},
    "components": {"type": "list", "elements": "str", "default": []},
    "wheels": {"type": "path"},
    "sha256s": {"type": "list", "elements": "str", "default": []},
    "url": {"type": "str"},
    "sha256": {"type": "str", "no_log": False},
    "md5": {"type": "str"},
    "host_compiler": {"type": "str"},
}
ARGUMENTS = {
    "toolkits": {"type": "list", "elements": "dict", "required": True, "options": ENTRY},
    "cudnn": {"type": "list", "elements": "dict", "default": [], "options": {**ENTRY, "cuda": {"type": "str", "required": True}}},
    "default": {"type": "str"},
    "architecture": {"type": "str", "default": "sm_80"},
    "prune": {"type": "bool", "default": False},
    "staging": {"type": "path", "default": "/var/cache/groundwork/cuda"},
}


def listing(link: Link, trees: dict[str, str]) -> str:
    """Return the text that stands for the host in a diff."""
    return "".join(f"{path}: {what}\n" for path, what in sorted({"/usr/local/cuda": link.describe(), **trees}.items()))


def main() -> None:
    """Judge, make the trees, own the link, write the files, remove, look at the libraries."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    host = Host(module, ROOT)
    try:
        first = host.link()
        if faults := plan.faults(ROOT, [*host.toolkits, *host.cudnn]):
            raise CudaError("; ".join(faults))
        missing = host.make_trees()
        link = host.own_link(first)
        environments = host.write_environments()
        unlisted = host.unlisted()
        if module.params["prune"]:
            link = host.forget(link, [f"/{plan.HOME}/{item['name']}" for item in unlisted])
        libraries = host.libraries()
    except (CudaError, ValueError, OSError) as error:
        module.fail_json(f"{error}. Trees that were there before are as they were.")

    before, after = listing(first, host.before), listing(link, host.listing())
    state = [{"before_header": "CUDA", "after_header": "CUDA", "before": before, "after": after}] if before != after else []
    module.exit_json(
        changed=bool(state or environments),
        diff=[*state, *environments],
        trees={f"/{plan.HOME}/{name}": vars(stamp) for name, stamp in host.stamps.items()},
        missing=missing,
        unlisted=unlisted,
        libraries=libraries,
        notes=host.notes,
    )


if __name__ == "__main__":
    main()
