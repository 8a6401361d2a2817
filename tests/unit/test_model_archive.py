"""Model archives: what is read from them, what is refused, and what TorchServe is told to load."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import replace

import pytest
from ansible.module_utils import model_archive

WEIGHTS = b"serialized weights"
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
MANIFEST = {"modelName": "echo", "modelVersion": "3f9c2d1", "serializedFile": "model.pt", "handler": "handler.py"}


def mar(path, model=MANIFEST, **entries):
    """Write an archive; entries set to None are left out."""
    files = {"MAR-INF/MANIFEST.json": json.dumps({"model": model}), "model.pt": WEIGHTS, "handler.py": "", **entries}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as container:
        for name, content in files.items():
            if content is not None:
                container.writestr(name, content)
    return path


def declare(archive, **options):
    """Return a declared model as the module hands it over, defaults included."""
    model = {"name": "echo", "version": "3f9c2d1", "archive": str(archive), "weights_sha256": None}
    defaults = {"workers": 2, "batch_size": 1, "max_batch_delay_ms": 100}
    timeouts = {"response_timeout_seconds": 120, "startup_timeout_seconds": 120}
    return model | defaults | timeouts | options


def faults(*models, missing_is_pending=False):
    return model_archive.verify(models, missing_is_pending=missing_is_pending)[1]


def served(*identities, **options):
    """Return models with archives that were never read, whose checksums are made up from their names."""
    models = []
    for name, version in identities:
        checksum = hashlib.sha256(f"{name} {version}".encode()).hexdigest()
        archive = model_archive.Archive(checksum, name, version, "model.pt", SHA256, None)
        models.append(model_archive.Served(declare("unread.mar", name=name, version=version, **options), archive))
    return models


def test_an_archive_tells_name_version_and_checksums(tmp_path):
    path = mar(tmp_path / "echo.mar")
    assert model_archive.read_archive(path) == model_archive.Archive(
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        name="echo",
        version="3f9c2d1",
        weights_file="model.pt",
        weights_sha256=SHA256,
        config_file=None,
    )


@pytest.mark.parametrize("handler", ["image_classifier", "handler.py:entry"])
def test_built_in_handlers_and_handler_functions_are_accepted(tmp_path, handler):
    assert model_archive.read_archive(mar(tmp_path / "echo.mar", MANIFEST | {"handler": handler})).name == "echo"


@pytest.mark.parametrize("content", [b"", b"random bytes", b"PK\x03\x04 a zip that ends here"])
def test_a_file_that_is_no_zip_is_refused(tmp_path, content):
    (tmp_path / "echo.mar").write_bytes(content)
    with pytest.raises(model_archive.ArchiveError, match="is no usable zip file"):
        model_archive.read_archive(tmp_path / "echo.mar")


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_truncated_archive_is_refused(tmp_path, kept):
    content = mar(tmp_path / "echo.mar").read_bytes()
    (tmp_path / "echo.mar").write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(model_archive.ArchiveError, match="is no usable zip file"):
        model_archive.read_archive(tmp_path / "echo.mar")


def test_damaged_weights_are_refused(tmp_path):
    path = tmp_path / "echo.mar"
    with zipfile.ZipFile(path, "w") as container:
        container.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": MANIFEST}))
        container.writestr("model.pt", WEIGHTS)
        container.writestr("handler.py", "")
    path.write_bytes(path.read_bytes().replace(WEIGHTS, WEIGHTS.upper()))
    with pytest.raises(model_archive.ArchiveError, match="CRC"):
        model_archive.read_archive(path)


@pytest.mark.parametrize(
    ("model", "entries", "message"),
    [
        (MANIFEST, {"MAR-INF/MANIFEST.json": None}, "has no MAR-INF/MANIFEST.json"),
        (MANIFEST, {"MAR-INF/MANIFEST.json": "{broken"}, "is no JSON object"),
        (MANIFEST, {"MAR-INF/MANIFEST.json": "[]"}, "is no JSON object"),
        (None, {}, "is no JSON object"),
        (MANIFEST | {"modelVersion": None}, {}, r"has no modelVersion; give torch-model-archiver the option --version"),
        (MANIFEST | {"modelVersion": " "}, {}, "has no modelVersion"),
        (MANIFEST | {"modelVersion": 1.0}, {}, "has no modelVersion"),
        ({"modelName": "echo", "modelVersion": "1"}, {}, "has no serializedFile"),
        (MANIFEST, {"model.pt": None}, "names the serializedFile 'model.pt', which the archive does not hold"),
        (MANIFEST, {"handler.py": None}, "names the handler 'handler.py', which the archive does not hold"),
        (MANIFEST | {"configFile": "model-config.yaml"}, {}, "names the configFile 'model-config.yaml'"),
        (MANIFEST, {"../../etc/passwd": ""}, "holds the entry '../../etc/passwd'"),
        (MANIFEST, {"/etc/passwd": ""}, "holds the entry '/etc/passwd'"),
        (MANIFEST, {"..\\evil": ""}, "would leave the folder"),
    ],
)
def test_an_archive_that_torchserve_could_not_serve_is_refused(tmp_path, model, entries, message):
    with pytest.raises(model_archive.ArchiveError, match=message):
        model_archive.read_archive(mar(tmp_path / "echo.mar", model, **entries))


def test_a_right_declaration_has_no_faults(tmp_path):
    assert faults(declare(mar(tmp_path / "echo.mar"), weights_sha256=SHA256.upper())) == []


def test_a_wrong_checksum_is_reported_with_both_values_the_file_and_a_remedy(tmp_path):
    path = mar(tmp_path / "echo.mar")
    (fault,) = faults(declare(path, weights_sha256="0" * 64))
    assert fault == (
        f"models[0] echo 3f9c2d1: weights_sha256 is {'0' * 64} but model.pt inside {path} has {SHA256}; fetch the "
        "archive again, or declare the new checksum if the weights are meant"
    )


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"name": "other"}, "name is 'other' but"),
        ({"version": "2.0"}, "version is '2.0' but"),
        ({"name": "../echo"}, "name is '../echo', expected letters"),
        ({"name": "echo,all"}, "name is 'echo,all', expected letters"),
        ({"version": "1..0"}, "version is '1..0', expected letters"),
        ({"version": "-1"}, "version is '-1', expected letters"),
        ({"version": ""}, "version is '', expected letters"),
        ({"workers": 0}, "workers is 0, expected at least 1"),
        ({"batch_size": 0}, "batch_size is 0, expected at least 1"),
        ({"max_batch_delay_ms": -1}, "max_batch_delay_ms is -1, expected at least 0"),
    ],
)
def test_a_declaration_that_cannot_hold_is_reported(tmp_path, options, part):
    found = faults(declare(mar(tmp_path / "echo.mar"), **options))
    assert any(part in fault for fault in found)


def test_a_version_declared_twice_is_reported(tmp_path):
    model = declare(mar(tmp_path / "echo.mar"))
    assert faults(model, model) == [
        "models[1] echo 3f9c2d1: declared twice; keep one of the entries or give them different versions"
    ]


def test_faults_of_all_models_are_reported_together(tmp_path):
    (tmp_path / "no.mar").write_bytes(b"no zip")
    found = faults(
        declare(mar(tmp_path / "echo.mar"), weights_sha256="0" * 64),
        declare(tmp_path / "no.mar", version="2"),
        declare(tmp_path / "absent.mar", version="3"),
    )
    assert [fault.split(":")[0] for fault in found] == ["models[0] echo 3f9c2d1", "models[1] echo 2", "models[2] echo 3"]
    assert "No such file or directory" in found[2]


def test_an_absent_archive_is_pending_where_that_is_allowed(tmp_path):
    model = declare(tmp_path / "absent.mar")
    (pending,), found = model_archive.verify([model], missing_is_pending=True)
    assert (pending.archive, found) == (None, [])
    assert pending.file == "echo-3f9c2d1-not-yet-there.mar"


def test_a_file_name_holds_name_version_and_content():
    (model,) = served(("echo", "1.0"))
    assert model.file == f"echo-1.0-{model.archive.sha256[:12]}.mar"
    assert model_archive.OUR_FILE.fullmatch(model.file)


@pytest.mark.parametrize("name", ["echo.mar", "resnet-18.mar", "echo-1.0-53317d042b9.mar", "echo-1.0-53317d042b90.mar.bak"])
def test_other_files_of_the_store_are_not_ours(name):
    assert not model_archive.OUR_FILE.fullmatch(name)


def read_environment(text):
    """Parse the file as systemd does, for the two forms that occur in it."""
    pairs = (line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: value.removeprefix("'").removesuffix("'") for name, value in pairs}


def test_the_environment_names_every_model_with_its_settings():
    (model,) = served(("echo", "1.0"), workers=3, batch_size=8, max_batch_delay_ms=50, startup_timeout_seconds=19)
    variables = read_environment(model_archive.environment([model]))
    assert variables["TS_LOAD_MODELS"] == f"echo={model.file}"
    assert json.loads(variables["GROUNDWORK_MODELS"]) == {
        "echo": {
            "1.0": {
                "defaultVersion": True,
                "marName": model.file,
                "minWorkers": 3,
                "maxWorkers": 3,
                "batchSize": 8,
                "maxBatchDelay": 50,
                "responseTimeout": 120,
                "startupTimeout": 19,
            }
        }
    }


def test_the_environment_says_which_archive_has_settings_of_its_own():
    (plain,) = served(("echo", "1.0"))
    own = model_archive.Served(plain.declared | {"version": "2.0"}, replace(plain.archive, config_file="it's $$mine$$.yaml"))
    settings = json.loads(read_environment(model_archive.environment([plain, own]))["GROUNDWORK_MODELS"])
    assert {version: values.get("configFile") for version, values in settings["echo"].items()} == {"1.0": None, "2.0": True}


def test_the_last_declared_version_is_loaded_first_and_so_becomes_the_default():
    models = served(("echo", "1.0"), ("other", "1.0"), ("echo", "2.0"))
    assert [model.declared["version"] for model in model_archive.load_order(models)] == ["2.0", "1.0", "1.0"]
    settings = json.loads(read_environment(model_archive.environment(models))["GROUNDWORK_MODELS"])
    assert {version: values["defaultVersion"] for version, values in settings["echo"].items()} == {"2.0": True, "1.0": False}


def test_a_host_without_models_gets_an_environment_that_loads_nothing():
    assert read_environment(model_archive.environment([])) == {"TS_LOAD_MODELS": "", "GROUNDWORK_MODELS": "{}"}


def test_nothing_in_the_environment_needs_escaping():
    """TorchServe puts the value through a Java replacement, to which backslash and dollar are special."""
    values = read_environment(model_archive.environment(served(("a_b.c-d", "v1"))))
    assert not set("\\$'") & set("".join(values.values()))
