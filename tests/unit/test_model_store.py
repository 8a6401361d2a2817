"""The module model_store, run in-process on a store of its own."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path

import model_store
import pytest


@pytest.fixture
def host(tmp_path, run_module):
    """A host with an empty model store; `publish` runs the module on it."""

    class Host:
        store = tmp_path / "store"
        environment = tmp_path / "models.env"

        def archive(self, version="1.0", weights=b"weights", name="echo"):
            """Write an archive outside the store and return its declaration."""
            path = tmp_path / f"{name}-{version}.source"
            model = {"modelName": name, "modelVersion": version, "serializedFile": "model.pt", "handler": "handler.py"}
            with zipfile.ZipFile(path, "w") as container:
                container.writestr(zipfile.ZipInfo("MAR-INF/MANIFEST.json"), json.dumps({"model": model}))
                container.writestr(zipfile.ZipInfo("model.pt"), weights)
                container.writestr(zipfile.ZipInfo("handler.py"), "")
            return {"name": name, "version": version, "archive": str(path)}

        def publish(self, *models, **options):
            paths = {"store": str(self.store), "environment_file": str(self.environment)}
            return run_module(model_store, models=list(models), **paths, **options)

        def files(self):
            return sorted(path.name for path in self.store.iterdir())

    Host.store.mkdir()
    return Host()


def stored_name(model):
    content = Path(model["archive"]).read_bytes()
    return f"{model['name']}-{model['version']}-{hashlib.sha256(content).hexdigest()[:12]}.mar"


def test_an_archive_is_placed_under_a_name_that_holds_its_content(host):
    model = host.archive()
    result = host.publish(model)
    assert result["changed"] is True
    assert host.files() == [stored_name(model)]
    assert (host.store / stored_name(model)).read_bytes() == Path(model["archive"]).read_bytes()
    assert result["models"] == [
        {
            "name": "echo",
            "version": "1.0",
            "file": stored_name(model),
            "sha256": hashlib.sha256(Path(model["archive"]).read_bytes()).hexdigest(),
            "weights_sha256": hashlib.sha256(b"weights").hexdigest(),
        }
    ]


def test_the_environment_file_names_the_placed_archive(host):
    model = host.archive()
    host.publish(model)
    assert f"TS_LOAD_MODELS=echo={stored_name(model)}\n" in host.environment.read_text()


def test_a_second_run_changes_nothing(host):
    model = host.archive()
    host.publish(model)
    before = (host.store / stored_name(model)).stat()
    result = host.publish(model)
    assert (result["changed"], result["diff"]) == (False, [])
    assert (host.store / stored_name(model)).stat() == before


def test_new_content_under_the_same_version_gets_a_new_name_and_the_old_one_goes(host):
    host.publish(host.archive(weights=b"old"))
    model = host.archive(weights=b"new")
    host.publish(model)
    assert host.files() == [stored_name(model)]


def test_a_model_that_did_not_change_is_not_written_again(host):
    kept = host.archive(name="kept")
    host.publish(kept, host.archive("1.0"))
    before = (host.store / stored_name(kept)).stat()
    host.publish(kept, host.archive("2.0"))
    assert (host.store / stored_name(kept)).stat() == before


def test_a_damaged_archive_in_the_store_is_repaired(host):
    model = host.archive()
    host.publish(model)
    (host.store / stored_name(model)).write_bytes(b"damaged")
    assert host.publish(model)["changed"] is True
    assert (host.store / stored_name(model)).read_bytes() == Path(model["archive"]).read_bytes()


def test_files_that_are_not_ours_stay(host):
    (host.store / "by-hand.mar").write_bytes(b"")
    host.publish(host.archive())
    host.publish()
    assert host.files() == ["by-hand.mar"]


def test_no_models_is_a_legal_state(host):
    result = host.publish()
    assert (result["changed"], result["models"]) == (True, [])
    assert "TS_LOAD_MODELS=\n" in host.environment.read_text()
    assert host.publish()["changed"] is False


def test_nothing_is_written_when_one_archive_has_a_fault(host):
    good, bad = host.archive(), host.archive("2.0") | {"weights_sha256": "0" * 64}
    result = host.publish(good, bad)
    assert result["failed"] is True
    assert [fault.split(":")[0] for fault in result["faults"]] == ["models[1] echo 2.0"]
    assert result["msg"].startswith("No model was published.")
    assert (host.files(), host.environment.exists()) == ([], False)


def test_a_missing_archive_is_a_fault_in_a_run(host):
    result = host.publish(host.archive() | {"archive": "/nowhere/echo.mar"})
    assert "/nowhere/echo.mar cannot be read (No such file or directory)" in result["msg"]


@pytest.mark.parametrize("option", ["store", "environment_file"])
def test_a_missing_folder_is_a_fault_with_a_remedy(host, tmp_path, run_module, option):
    paths = {"store": str(host.store), "environment_file": str(host.environment)}
    result = run_module(model_store, models=[], **paths | {option: str(tmp_path / "absent" / "models.env")})
    assert f"{option}: {tmp_path}/absent" in result["msg"]
    assert "create it first" in result["msg"]


def test_check_mode_plans_what_the_run_does_and_writes_nothing(host):
    host.publish(host.archive("1.0"))
    host.environment.chmod(0o600)
    before = host.environment.read_text(), host.files()
    planned = host.publish(host.archive("2.0"), mode="0640", check=True)
    assert (host.environment.read_text(), host.files()) == before
    done = host.publish(host.archive("2.0"), mode="0640")
    assert planned == done


def test_check_mode_on_a_host_without_store_and_archive_is_a_change_and_no_failure(tmp_path, run_module):
    paths = {"store": str(tmp_path / "store"), "environment_file": str(tmp_path / "etc/models.env")}
    model = {"name": "echo", "version": "1.0", "archive": str(tmp_path / "echo.mar")}
    result = run_module(model_store, models=[model], check=True, **paths)
    assert result["changed"] is True
    assert result["models"][0]["sha256"] is None
    assert f"{tmp_path}/echo.mar is not there yet; it will be checked" in str(result["warnings"])


def test_the_diff_lists_the_archives_and_both_environment_files(host):
    old, new = host.archive("1.0"), host.archive("2.0")
    host.publish(old)
    text = host.environment.read_text()
    store, environment = host.publish(new)["diff"]
    assert store["before"].startswith(stored_name(old))
    assert store["after"].startswith(stored_name(new))
    assert (environment["before"], environment["after"]) == (text, host.environment.read_text())


@pytest.mark.parametrize(("options", "mode"), [({}, 0o644), ({"mode": "0640"}, 0o640)], ids=["default", "asked for"])
def test_files_are_readable_for_the_services_user_whatever_the_umask(host, options, mode):
    previous = os.umask(0o077)
    try:
        model = host.archive()
        host.publish(model, **options)
    finally:
        os.umask(previous)
    placed = (host.store / stored_name(model), host.environment)
    assert [path.stat().st_mode & 0o777 for path in placed] == [mode, mode]


def test_a_wrong_mode_is_a_change_in_check_mode_and_is_corrected_in_a_run(host):
    model = host.archive()
    host.publish(model)
    path = host.store / stored_name(model)
    path.chmod(0o600)
    planned = host.publish(model, check=True)
    assert planned["diff"] == [
        {"before_header": str(path), "after_header": str(path), "before": {"mode": "0600"}, "after": {"mode": "0644"}}
    ]
    assert path.stat().st_mode & 0o777 == 0o600
    host.publish(model)
    assert path.stat().st_mode & 0o777 == 0o644


def test_an_archive_that_changes_while_it_is_copied_is_not_published(host, monkeypatch):
    model = host.archive()
    monkeypatch.setattr(model_store.shutil, "copyfile", lambda _, target: Path(target).write_bytes(b"half"))
    assert "changed while it was copied" in host.publish(model)["msg"]
    assert (host.files(), host.environment.exists()) == ([], False)


def test_an_archives_own_configuration_is_warned_about(host, tmp_path):
    model = {"modelName": "echo", "modelVersion": "1.0", "serializedFile": "model.pt", "handler": "image_classifier"}
    path = tmp_path / "configured.mar"
    with zipfile.ZipFile(path, "w") as container:
        container.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": model | {"configFile": "model-config.yaml"}}))
        container.writestr("model.pt", b"weights")
        container.writestr("model-config.yaml", "minWorkers: 1")
    result = host.publish({"name": "echo", "version": "1.0", "archive": str(path)})
    assert "model-config.yaml wins over the declared workers" in str(result["warnings"])


@pytest.mark.parametrize("check", [True, False])
def test_archives_that_no_model_names_are_removed_from_their_folder(host, tmp_path, check):
    model = host.archive()
    folder = tmp_path / "archives"
    folder.mkdir()
    used = folder / "echo-1.0.mar"
    used.write_bytes(Path(model["archive"]).read_bytes())
    for name in ("echo-0.9.mar", "notes.txt"):
        (folder / name).write_text("old")
    model["archive"] = str(used)
    result = host.publish(model, archives=str(folder), check=check)
    (removed,) = [entry for entry in result["diff"] if entry["before_header"] == "archives"]
    assert (removed["before"], removed["after"]) == ("echo-0.9.mar\n", "")
    left = ["echo-0.9.mar", "echo-1.0.mar", "notes.txt"] if check else ["echo-1.0.mar", "notes.txt"]
    assert sorted(path.name for path in folder.iterdir()) == left
