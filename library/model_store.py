#!/usr/bin/python
"""Ansible module: the set of model archives that a TorchServe host serves."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.model_archive import OUR_FILE, PENDING, Served, environment, load_order, sha256, verify

DOCUMENTATION = r"""
module: model_store
short_description: Check a host's model archives and place them in the model store
description:
  - One call for all models of a host. It checks every archive first and reports all faults together before anything
    is written.
  - Each archive is placed as C(<name>-<version>-<first 12 digits of its SHA-256>.mar); archives of that form that are
    no longer declared are removed, other files are left alone. What is already there is not written again.
  - Writes the environment file from which the TorchServe unit learns what to load.
  - TorchServe reads the environment file at its start; C(serving-ctl sync) brings a change into the running service.
options:
  models:
    description:
      - The models, all of them. Of several versions of a name the last one is the default; the others answer under
        C(/predictions/<name>/<version>).
    type: list
    elements: dict
    required: true
    suboptions:
      name: {description: Model name in URLs and in the archive's manifest., type: str, required: true}
      version: {description: Model version as in the archive's manifest., type: str, required: true}
      archive:
        description: The .mar file on the host. In check mode it may not exist yet.
        type: path
        required: true
      weights_sha256:
        description: SHA-256 of the serialized file inside the archive. Not compared when left out.
        type: str
      workers: {description: Worker processes., type: int, default: 2}
      batch_size: {description: Requests that a worker takes at once., type: int, default: 1}
      max_batch_delay_ms: {description: How long a worker waits for a batch to fill., type: int, default: 100}
      response_timeout_seconds: {description: When a silent worker is replaced., type: int, default: 120}
      startup_timeout_seconds: {description: How long a model may load., type: int, default: 120}
  store:
    description: The model store, an existing directory.
    type: path
    required: true
  archives:
    description: A folder for the archives of O(models) alone; other .mar files in it are removed.
    type: path
  environment_file:
    description: The environment file to write.
    type: path
    default: /etc/torchserve/models.env
  mode:
    description: Mode of the archives and of the environment file; the service's user must be able to read both.
    default: "0644"
extends_documentation_fragment:
  - ansible.builtin.files
"""

EXAMPLES = r"""
- name: Serve the models of this host
  model_store:
    store: /var/lib/torchserve/model-store
    models:
      - name: text_classifier
        version: 3f9c2d1
        archive: /srv/models/text_classifier.mar
        weights_sha256: 22cdd18979c31d73125fac5754c4e5ff51fb2b40a826d559066b6f3a444457db
"""

RETURN = r"""
environment:
  description: The content of the environment file, as it is or, in check mode, would be.
  returned: success
  type: str
models:
  description:
    - The models in the order in which TorchServe loads them, each with C(name), C(version), C(file), C(sha256) and
      C(weights_sha256). The checksums are null for an archive that is not there yet (check mode only).
  returned: success
  type: list
faults:
  description: Everything that is wrong with the declared models and their archives.
  returned: failure
  type: list
"""

MODEL = {
    "name": {"type": "str", "required": True},
    "version": {"type": "str", "required": True},
    "archive": {"type": "path", "required": True},
    "weights_sha256": {"type": "str"},
    "workers": {"type": "int", "default": 2},
    "batch_size": {"type": "int", "default": 1},
    "max_batch_delay_ms": {"type": "int", "default": 100},
    "response_timeout_seconds": {"type": "int", "default": 120},
    "startup_timeout_seconds": {"type": "int", "default": 120},
}


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return str(sha256(stream))


def place(module: AnsibleModule, path: Path, fill: Callable[[Path], object]) -> None:
    """Make the file at the path in one step: a reader sees the old file or the new one, both whole."""
    is_new = not path.exists()
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as stream:
        module.add_cleanup_file(stream.name)
    fill(Path(stream.name))
    module.atomic_move(stream.name, str(path))
    if is_new:  # a file that was there keeps its attributes until they are compared
        module.set_fs_attributes_if_different(module.load_file_common_arguments(module.params, path=str(path)), False)


def publish(module: AnsibleModule, store: Path, model: Served) -> None:
    """Copy one archive into the store, and see that what arrived is what was checked."""

    def copy(path: Path) -> None:
        shutil.copyfile(model.declared["archive"], path)
        if model.archive and digest(path) != model.archive.sha256:
            module.fail_json(msg=f"{model.declared['archive']} changed while it was copied; let its build finish first")

    place(module, store / model.file, copy)


def main() -> None:
    """Check everything, compare, act, report."""
    module = AnsibleModule(
        argument_spec={
            "models": {"type": "list", "elements": "dict", "required": True, "options": MODEL},
            "store": {"type": "path", "required": True},
            "archives": {"type": "path"},
            "environment_file": {"type": "path", "default": "/etc/torchserve/models.env"},
            "mode": {"type": "raw", "default": "0644"},
        },
        add_file_common_args=True,
        supports_check_mode=True,
    )
    store, environment_file = Path(module.params["store"]), Path(module.params["environment_file"])
    served, faults = verify(module.params["models"], missing_is_pending=module.check_mode)
    for option, folder in (("store", store), ("environment_file", environment_file.parent)):
        if not folder.is_dir() and not module.check_mode:
            faults.append(f"{option}: {folder} is no directory; create it first")
    if faults:
        module.fail_json(msg="\n".join(["No model was published. To be corrected:", *faults]), faults=faults)

    wanted = {model.file: model.archive.sha256 if model.archive else PENDING for model in served}
    present = {path.name: digest(path) for path in store.glob("*.mar") if OUR_FILE.fullmatch(path.name)}
    before = environment_file.read_text(errors="replace") if environment_file.is_file() else ""
    after = environment(served)
    unused = unused_archives(module, served)
    if not module.check_mode:
        # New archives come first and old ones go last, so that whatever the environment file names is there.
        try:
            for model in served:
                if present.get(model.file) != wanted[model.file]:
                    publish(module, store, model)
            if before != after:
                place(module, environment_file, lambda path: path.write_text(after))
            for path in [*(store / name for name in present.keys() - wanted.keys()), *unused]:
                path.unlink()
        except OSError as error:
            module.fail_json(msg=f"Cannot publish to {store}: {error}; free space or correct the permissions")
    removed = ("".join(f"{path.name}\n" for path in unused), "")
    report(
        module, served, {store: tuple(map(listing, (present, wanted))), environment_file: (before, after), "archives": removed}
    )


def unused_archives(module: AnsibleModule, served: list[Served]) -> list[Path]:
    """Return the archives of the archives folder that no model names."""
    folder = module.params["archives"]
    used = {Path(model.declared["archive"]) for model in served}
    return sorted(set(Path(folder).glob("*.mar")) - used) if folder else []


def listing(archives: dict[str, str]) -> str:
    """Return the text that stands for the store in a diff."""
    return "".join(f"{name} {checksum}\n" for name, checksum in sorted(archives.items()))


def report(module: AnsibleModule, served: list[Served], texts: dict[Path | str, tuple[str, ...]]) -> None:
    """Bring owner, group and mode in line, and exit with what changed; `texts`: what -> text before and after."""
    store, environment_file = module.params["store"], module.params["environment_file"]
    diff: list[dict[str, object]] = [
        {"before_header": str(what), "after_header": str(what), "before": old, "after": new}
        for what, (old, new) in texts.items()
        if old != new
    ]
    for path in [environment_file, *(f"{store}/{model.file}" for model in served)]:
        if Path(path).exists():
            attributes: dict[str, dict[str, str]] = {}
            arguments = module.load_file_common_arguments(module.params, path=path)
            if module.set_fs_attributes_if_different(arguments, False, attributes):
                diff.append({"before_header": path, "after_header": path, **attributes})
    for model in served:
        if model.archive is None:
            module.warn(f"{model.declared['archive']} is not there yet; it will be checked once an earlier task made it")
        elif model.archive.config_file:
            module.warn(
                f"{model.file}: its {model.archive.config_file} wins over the declared workers and batch settings, and "
                "over the declared timeouts even where it sets none (TorchServe then takes 120 seconds)"
            )
    module.exit_json(
        changed=bool(diff),
        diff=diff,
        environment=texts[Path(environment_file)][-1],
        models=[
            {
                "name": model.declared["name"],
                "version": model.declared["version"],
                "file": model.file,
                "sha256": model.archive and model.archive.sha256,
                "weights_sha256": model.archive and model.archive.weights_sha256,
            }
            for model in load_order(served)
        ],
    )


if __name__ == "__main__":
    main()
