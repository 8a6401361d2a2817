"""Model archives (.mar) and the set of them that a TorchServe host serves: pure functions, usable without Ansible.

Facts are those of TorchServe 0.12.0: it takes a file that is no zip for an empty archive, an archive without a version
for version 1.0, and tells nobody but its log when a model does not load. Hence all checks are made here, before.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

MANIFEST = "MAR-INF/MANIFEST.json"
# Names end up in file names, URLs and a comma-separated list; TorchServe refuses any URL with two dots in a row.
SAFE_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9_.-]*")
OUR_FILE = re.compile(r".+-.+-[0-9a-f]{12}\.mar")
PENDING = "not-yet-there"

# What a manifest has to say, and the option of torch-model-archiver that makes it.
ARCHIVER_OPTIONS = {
    "modelName": "--model-name",
    "modelVersion": "--version (the git commit)",
    "serializedFile": "--serialized-file",
    "handler": "--handler",
}
# Option of a declared model: (TorchServe's key, least value).
LIMITS = {
    "workers": ("minWorkers", 1),
    "batch_size": ("batchSize", 1),
    "max_batch_delay_ms": ("maxBatchDelay", 0),
    "response_timeout_seconds": ("responseTimeout", 1),
    "startup_timeout_seconds": ("startupTimeout", 1),
}


class ArchiveError(Exception):
    """An archive that TorchServe could not serve; the message says why and what to do."""


@dataclass(frozen=True)
class Archive:
    """What an archive says of itself, and the SHA-256 of it and of its weights, in hexadecimal."""

    sha256: str
    name: str
    version: str
    weights_file: str
    weights_sha256: str
    config_file: str | None


@dataclass(frozen=True)
class Served:
    """A declared model and its archive, which is None while an earlier task has yet to make it (check mode)."""

    declared: Mapping[str, Any]
    archive: Archive | None

    @property
    def file(self) -> str:
        """Name in the store: by content, because TorchServe keeps its unpacked copy of a file that is replaced."""
        digest = self.archive.sha256[:12] if self.archive else PENDING
        return f"{self.declared['name']}-{self.declared['version']}-{digest}.mar"


def sha256(stream: IO[bytes]) -> str:
    """Return the SHA-256 of a binary stream in hexadecimal."""
    digest = hashlib.sha256()
    while block := stream.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def read_archive(path: Path) -> Archive:
    """Return what the archive at the path holds, or raise ArchiveError for one that could not be served."""
    try:
        with path.open("rb") as stream:
            digest = sha256(stream)
        with zipfile.ZipFile(path) as container:
            return _read_container(container, digest)
    except OSError as error:
        raise ArchiveError(f"cannot be read ({error.strerror or error}); check the path and its permissions") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise ArchiveError(f"is no usable zip file ({error}); build it again with torch-model-archiver") from None


def _read_container(container: zipfile.ZipFile, digest: str) -> Archive:
    names = set(container.namelist())
    for name in sorted(names):
        if name.startswith("/") or "\\" in name or ".." in PurePosixPath(name).parts:
            raise ArchiveError(f"holds the entry {name!r}, which would leave the folder it is unpacked to")
    if MANIFEST not in names:
        raise ArchiveError(f"has no {MANIFEST}; build it with torch-model-archiver")
    try:
        model = json.loads(container.read(MANIFEST))["model"]
        fields = {key: model.get(key) for key in (*ARCHIVER_OPTIONS, "configFile")}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ArchiveError(f'{MANIFEST} is no JSON object with an object "model" in it') from None
    for key, option in ARCHIVER_OPTIONS.items():
        if not isinstance(fields[key], str) or not fields[key].strip():
            raise ArchiveError(f"{MANIFEST} has no {key}; give torch-model-archiver the option {option}")
    for key in ("serializedFile", "handler", "configFile"):
        # A handler may name a function ("handler.py:entry") or one of TorchServe's own ("text_classifier").
        file = str(fields[key] or "").split(":")[0]
        if file and file not in names and (key != "handler" or file.endswith(".py")):
            raise ArchiveError(f"{MANIFEST} names the {key} {file!r}, which the archive does not hold")
    with container.open(fields["serializedFile"]) as stream:
        weights = sha256(stream)
    return Archive(digest, fields["modelName"], fields["modelVersion"], fields["serializedFile"], weights, fields["configFile"])


def declaration_faults(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with the declared models in themselves."""
    faults = []
    seen: set[tuple[str, str]] = set()
    for index, model in enumerate(models):
        label = f"models[{index}] {model['name']} {model['version']}"
        for field in ("name", "version"):
            if not SAFE_NAME.fullmatch(model[field]):
                faults.append(
                    f"{label}: {field} is {model[field]!r}, expected letters, digits, '_', '.' and '-' with "
                    "no two dots in a row, beginning with a letter or a digit; rename it here and in the archive"
                )
        for option, (_, least) in LIMITS.items():
            if model[option] < least:
                faults.append(f"{label}: {option} is {model[option]}, expected at least {least}")
        identity = (model["name"], model["version"])
        if identity in seen:
            faults.append(f"{label}: declared twice; keep one of the entries or give them different versions")
        seen.add(identity)
    return faults


def archive_faults(model: Mapping[str, Any], archive: Archive) -> list[str]:
    """Return where an archive is not the declared one."""
    faults = []
    for field in ("name", "version"):
        found = getattr(archive, field)
        if found != model[field]:
            faults.append(
                f"{field} is {model[field]!r} but {model['archive']} says {found!r} in {MANIFEST}; correct the "
                f"declaration, or build the archive with that {field}"
            )
    expected = (model.get("weights_sha256") or archive.weights_sha256).lower()
    if expected != archive.weights_sha256:
        faults.append(
            f"weights_sha256 is {expected} but {archive.weights_file} inside {model['archive']} has "
            f"{archive.weights_sha256}; fetch the archive again, or declare the new checksum if the weights are meant"
        )
    return faults


def verify(models: Sequence[Mapping[str, Any]], *, missing_is_pending: bool) -> tuple[list[Served], list[str]]:
    """Return the models with their archives, in order, and all faults of all of them.

    With `missing_is_pending` an archive that does not exist is none: in check mode an earlier task, which would have
    built or fetched it, did nothing.
    """
    served, faults = [], declaration_faults(models)
    for index, model in enumerate(models):
        label = f"models[{index}] {model['name']} {model['version']}"
        path = Path(model["archive"])
        if missing_is_pending and not path.exists():
            served.append(Served(model, None))
            continue
        try:
            archive = read_archive(path)
        except ArchiveError as error:
            faults.append(f"{label}: archive {path} {error}")
            continue
        faults += [f"{label}: {fault}" for fault in archive_faults(model, archive)]
        served.append(Served(model, archive))
    return served, faults


def load_order(models: Iterable[Served]) -> list[Served]:
    """Return the models in the order in which TorchServe has to load them.

    Of several versions of a name the one loaded first becomes the default, whatever `defaultVersion` says; the last
    one declared is meant to be.
    """
    by_name: dict[str, list[Served]] = {}
    for model in models:
        by_name.setdefault(model.declared["name"], []).insert(0, model)
    return [model for versions in by_name.values() for model in versions]


def environment(models: Iterable[Served]) -> str:
    """Return the systemd environment file that makes TorchServe load the models.

    TorchServe reads TS_LOAD_MODELS when `enable_envvars_config=true`, and puts GROUNDWORK_MODELS where its
    configuration says `models=$$GROUNDWORK_MODELS$$`. Safe names leave nothing to escape in either.
    """
    ordered = load_order(models)
    settings: dict[str, dict[str, dict[str, bool | int | str]]] = {}
    for model in ordered:
        versions = settings.setdefault(model.declared["name"], {})
        versions[model.declared["version"]] = {
            "defaultVersion": not versions,
            "marName": model.file,
            "maxWorkers": model.declared["workers"],
            **{key: model.declared[option] for option, (key, _) in LIMITS.items()},
        }
        if model.archive and model.archive.config_file:  # for serving-ctl: it wins over the settings above
            versions[model.declared["version"]]["configFile"] = True
    loads = ",".join(f"{model.declared['name']}={model.file}" for model in ordered)
    return (
        "# Written by Groundwork's module model_store: change the declared models instead.\n"
        f"TS_LOAD_MODELS={loads}\n"
        f"GROUNDWORK_MODELS='{json.dumps(settings, separators=(',', ':'))}'\n"
    )
