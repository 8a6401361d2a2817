#!/usr/bin/python
"""Ansible module: one apt repository, with its key by fingerprint."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from ansible.module_utils import apt_sources, files
from ansible.module_utils.apt_sources import Move, Repository, Step, Write
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.openpgp import KeyringError, dearmor, fingerprints
from ansible.module_utils.urls import fetch_url

DOCUMENTATION = r"""
module: apt_source
short_description: Declare one apt repository, with its key by fingerprint
description:
  - Writes C(/usr/share/keyrings/groundwork-<name>.gpg) and C(/etc/apt/sources.list.d/groundwork-<name>.sources), and fetches
    the lists of this repository alone.
  - The key is accepted by its fingerprint, and only if the file holds no other key.
  - apt tries the repository before anything is written. If it refuses, the host stays as it was, and the message says why.
  - Other declarations of the same repository would make apt refuse all its work. They are disabled, and V(absent) brings them
    back. A file in which nothing else is left is renamed to C(<file>.groundwork-<name>.disabled); in another one, their lines
    get the mark C(#groundwork-<name>#).
  - On a host that is as wanted, nothing is run and no network is used.
options:
  name:
    description: A short name for the files; small letters, digits and dashes.
    type: str
    required: true
  uris:
    description: Addresses, as in C(URIs) of sources.list(5). C(file:/path) is a local mirror, C($(ARCH)) apt's architecture.
    type: list
    elements: str
    default: []
  suites:
    description: Suites. One that ends with a slash is a folder, as in NVIDIA's flat repositories, and has no components.
    type: list
    elements: str
    default: [/]
  components:
    description: Components of the suites.
    type: list
    elements: str
    default: []
  architectures:
    description: Architectures; without, those of the host.
    type: list
    elements: str
    default: []
  key:
    description: The public key or keys, as the text of an armored file.
    type: str
  key_url:
    description: Where the host fetches the key, armored or not. It is fetched again only when this or O(key_sha256) changes.
    type: str
  key_sha256:
    description: Checksum of what O(key_url) gives.
    type: str
  fingerprints:
    description: Fingerprints of the primary keys that may sign, 40 hexadecimal digits each; spaces do not matter.
    type: list
    elements: str
    default: []
  conflicts:
    description: Patterns of addresses. Declarations by others of such an address are disabled too.
    type: list
    elements: str
    default: []
  obsolete_keys:
    description:
      - Fingerprints of keys that must no longer be trusted for every repository.
      - A file of C(/etc/apt/trusted.gpg.d) that holds nothing else is renamed. A key in a file with others is reported.
    type: list
    elements: str
    default: []
  state:
    description: V(absent) removes the two files and brings back what was disabled for them.
    type: str
    choices: [present, absent]
    default: present
author: Groundwork maintainers
"""

EXAMPLES = r"""
- name: Take packages from NVIDIA's CUDA repository
  apt_source:
    name: cuda
    uris: [https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64]
    key_url: https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/3bf863cc.pub
    fingerprints: [EB69 3B30 35CD 5710 E231 E123 A4B4 6996 3BF8 63CC]
    conflicts: ["https://developer.download.nvidia.com/compute/cuda/repos/*"]
"""

RETURN = r"""
sources:
  description: The source file.
  returned: success
  type: str
keyring:
  description: The keyring.
  returned: success
  type: str
fingerprints:
  description: Fingerprints of the keys in the keyring.
  returned: success
  type: list
refreshed:
  description: Whether the lists of the repository were fetched, or would be in check mode.
  returned: success
  type: bool
notes:
  description: What was disabled or brought back, and what is left to do by hand, in sentences.
  returned: success
  type: list
"""

#: The directory under which everything is read and written; tests put a made-up tree in its place.
ROOT = Path("/")
#: How often, and after how many seconds, a refresh is tried again while another apt works.
LOCKED_TRIES = 13
LOCKED_PAUSE = 5


class Plan(NamedTuple):
    """What to do in order, what to tell, the keyring (empty if removed), and whether to fetch the lists first."""

    steps: list[Step]
    notes: list[str]
    keyring: bytes
    lists: bool


def paths(name: str) -> tuple[str, str]:
    """Return the source file and the keyring of a repository."""
    return f"/{apt_sources.FOLDER}/groundwork-{name}.sources", f"/{apt_sources.KEYRINGS}/groundwork-{name}.gpg"


def real(path: str) -> Path:
    """Return where a file of the host lies."""
    return ROOT / path.lstrip("/")


def read(path: str) -> bytes | None:
    """Return the content of a file, or None."""
    return real(path).read_bytes() if real(path).is_file() else None


def replace(path: str, data: bytes | None) -> None:
    """Write a file as a whole, or remove it. Another one may hold a password and be readable by root alone; it stays so."""
    if data is None:
        real(path).unlink()
    else:
        # Not atomic_move, which would end the module with the steps before it done.
        files.replace(real(path), data)


def normal(texts: list[str], faults: list[str]) -> list[str]:
    """Return fingerprints without spaces and in capitals."""
    found = []
    for text in texts:
        found.append("".join(text.split()).upper())
        if not re.fullmatch(r"[0-9A-F]{40}", found[-1]):
            faults.append(f"{text!r} is no fingerprint of 40 hexadecimal digits, and a shorter key id can be forged")
    return found


def accept(module: AnsibleModule, data: bytes, source: str, allowed: list[str]) -> bytes:
    """Return the keyring in binary form, if it holds allowed keys and no others."""
    try:
        keyring = bytes(dearmor(data))
        found = fingerprints(keyring)
    except KeyringError as error:
        module.fail_json(f"Nothing was changed. {source} is no usable key: {error}.")
    if strangers := sorted(set(found) - set(allowed)):
        module.fail_json(
            f"Nothing was changed. {source} holds the key {', '.join(strangers)}, and expected is {' or '.join(allowed)}. If the "
            "owner of the repository changed its key, compare the new fingerprint with the owner's announcement and add it to "
            "`fingerprints`; otherwise this is not the owner's key."
        )
    return keyring


def fetch_key(module: AnsibleModule) -> bytes:
    """Fetch the key, and compare its checksum if there is one."""
    url, wanted = module.params["key_url"], module.params["key_sha256"]
    response, info = fetch_url(module, url, timeout=30)
    if response is None or info["status"] not in (200, None):
        module.fail_json(f"Nothing was changed. The key can't be fetched from {url}: {info['msg']}. Or give its text as `key`.")
    data = bytes(response.read())
    found = hashlib.sha256(data).hexdigest()
    if wanted and found != wanted.lower():
        module.fail_json(f"Nothing was changed. The key from {url} has the checksum {found}, and expected is {wanted}.")
    return data


def wanted_keyring(module: AnsibleModule, repository: Repository, allowed: list[str]) -> bytes:
    """Return the keyring to have; the one on the host, if it came from the wanted address and holds allowed keys."""
    sources, ring = paths(repository.name)
    if module.params["key"]:
        return accept(module, module.params["key"].encode(), "`key`", allowed)
    present = read(ring)
    if present and f"# Key: {repository.key}\n".encode() in (read(sources) or b""):
        try:
            if set(fingerprints(present)) <= set(allowed):
                return present
        except KeyringError:
            pass  # damaged: a new copy takes its place
    return accept(module, fetch_key(module), module.params["key_url"], allowed)


def refresh(module: AnsibleModule, repository: Repository, keyring: bytes) -> None:
    """Let apt fetch the lists of this repository alone, by drafts of its two files."""
    folder = Path(tempfile.mkdtemp(prefix="groundwork-apt-"))
    try:
        folder.chmod(0o755)  # apt verifies as the user _apt
        (folder / "draft.gpg").write_bytes(keyring)
        (folder / "draft.sources").write_text(repository.text(str(folder / "draft.gpg")))
        for file in folder.iterdir():
            file.chmod(0o644)
        options = {
            "Dir::Etc::sourcelist": folder / "draft.sources",
            "Dir::Etc::sourceparts": "-",
            "APT::Get::List-Cleanup": 0,
            # Otherwise old lists would hide that the new ones were refused.
            "APT::Update::Error-Mode": "any",
        }
        command = ["apt-get", "update", "-q", *(word for pair in options.items() for word in ("-o", "{}={}".format(*pair)))]
        for _ in range(LOCKED_TRIES):
            code, out, error = module.run_command(command, environ_update={"LC_ALL": "C"})
            if code == 0 or "Could not get lock" not in error:
                break
            time.sleep(LOCKED_PAUSE)
    finally:
        shutil.rmtree(folder)
    if code != 0:
        reason = apt_sources.refusal(out + error, fingerprints(keyring))
        module.fail_json(f"Nothing was changed. apt refuses {' '.join(repository.uris)}: {reason}.", stdout=out, stderr=error)


def carry_out(module: AnsibleModule, plan: list[Step]) -> None:
    """Do all steps; if apt can't read its sources afterwards, undo them."""
    done: list[Step] = []
    try:
        for step in plan:
            if isinstance(step, Write):
                replace(step.path, step.after)
            elif isinstance(step, Move):
                real(step.path).rename(real(step.target))
            done.append(step)
        code, out, error = module.run_command(["apt-get", "indextargets"], environ_update={"LC_ALL": "C"})
    except OSError as fault:
        code, out, error = 1, "", f"E: {fault}"
    if code == 0:
        return
    for step in reversed(done):
        if isinstance(step, Write):
            replace(step.path, step.before)
        elif isinstance(step, Move):
            real(step.target).rename(real(step.path))
    reason = apt_sources.refusal(out + error, [])
    module.fail_json(f"Everything was put back. As planned, apt can't read its sources: {reason}.", stderr=error)


def declaration(module: AnsibleModule) -> tuple[Repository, list[str], list[str]]:
    """Return the repository, the keys that may sign it and those that are obsolete, or refuse all faults together."""
    params, faults = module.params, list[str]()
    origin = f"{params['key_url']} {params['key_sha256'] or ''}".rstrip() if params["key_url"] else ""
    fields = ("name", "uris", "suites", "components", "architectures")
    repository = Repository(*(params[field] for field in fields), key=origin)
    allowed, obsolete = normal(params["fingerprints"], faults), normal(params["obsolete_keys"], faults)
    if params["state"] == "present" and not (allowed and (params["key"] or params["key_url"])):
        faults.append("`fingerprints`, and one of `key` and `key_url`: without them nobody knows who may sign the packages")
    faults += repository.faults(present=params["state"] == "present")
    if faults:
        module.fail_json(f"Nothing was changed. Correct first: {'; '.join(faults)}.")
    return repository, allowed, obsolete


def make_plan(module: AnsibleModule, repository: Repository, allowed: list[str], obsolete: list[str]) -> Plan:
    """Compare the host with what is wanted."""
    sources, ring = paths(repository.name)
    if module.params["state"] == "absent":
        back, notes = apt_sources.bring_back(ROOT, repository.name)
        steps = [Write(sources, read(sources), None), Write(ring, read(ring), None), *back]
        keyring = b""
    else:
        keyring = wanted_keyring(module, repository, allowed)
        retired, notes = apt_sources.retire_keys(ROOT, repository.name, obsolete)
        others = apt_sources.put_aside(ROOT, repository, module.params["conflicts"], sources) + retired
        # apt needs the key with the source file, and must not find two declarations.
        own = Write(sources, read(sources), repository.text(ring).encode())
        steps = [Write(ring, read(ring), keyring), *others, own]
    steps = [step for step in steps if not isinstance(step, Write) or step.before != step.after]
    for step in steps:
        if isinstance(step, Write):
            if step.path not in (ring, sources):
                notes.append(f"{step.path}: its entries of this repository were {'disabled' if keyring else 'enabled'}")
        elif isinstance(step, Move) and read(step.target) not in (None, read(step.path)):
            fault = f"{step.path} is to become {step.target}, which is there with another content"
            module.fail_json(f"Nothing was changed. {fault}; remove one of the two.")
        elif isinstance(step, Move):
            notes.append(f"{step.path} is now {step.target}")
    lists = bool(keyring) and (bool(steps) or repository.lists_missing(ROOT))
    return Plan(steps, notes, keyring, lists)


def main() -> None:
    """Plan, let apt try, act."""
    words = {"type": "list", "elements": "str", "default": []}
    lists = ("uris", "components", "architectures", "fingerprints", "conflicts", "obsolete_keys")
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            **dict.fromkeys(lists, words),
            "suites": {**words, "default": ["/"]},
            **{field: {"type": "str"} for field in ("key", "key_url", "key_sha256")},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        mutually_exclusive=[("key", "key_url"), ("key", "key_sha256")],
        supports_check_mode=True,
    )
    repository, allowed, obsolete = declaration(module)
    plan = make_plan(module, repository, allowed, obsolete)
    if plan.lists and not module.check_mode:
        refresh(module, repository, plan.keyring)
    if plan.steps and not module.check_mode:
        carry_out(module, plan.steps)
    sources, ring = paths(repository.name)
    changed = bool(plan.steps) or plan.lists
    for path in (ring, sources):
        changed = module.set_mode_if_different(str(real(path)), 0o644, changed) if real(path).exists() else changed
    shown = [(step.path, *step.diff()) for step in plan.steps] + [("lists of apt", "", "fetched\n")] * plan.lists
    module.exit_json(
        changed=changed,
        diff=[{"before_header": what, "after_header": what, "before": old, "after": new} for what, old, new in shown],
        sources=sources,
        keyring=ring,
        fingerprints=fingerprints(plan.keyring) if plan.keyring else [],
        refreshed=plan.lists,
        notes=plan.notes,
    )


if __name__ == "__main__":
    main()
