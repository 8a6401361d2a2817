"""What holds on every host that the role torchserve was applied to."""

import json

import pytest


@pytest.fixture(scope="module")
def serving(host):
    """What the host itself says about its engine."""
    with host.sudo():
        return json.loads(host.file("/etc/groundwork/serving.json").content_string)


@pytest.fixture(scope="module")
def status(host):
    return json.loads(host.run("serving-ctl status").stdout)


def test_the_service_runs_and_starts_at_boot(host):
    service = host.service("torchserve.service")
    assert service.is_running
    assert service.is_enabled


def test_every_declared_model_has_its_workers_and_answers(status):
    assert status["problems"] == []
    assert all(model["workers_ready"] >= model["workers_wanted"] for model in status["models"])


def test_the_load_time_of_each_model_is_known(status, figure):
    """Printed here; the scenario of the role holds the sample model to its 3 s, since a busy host may take longer."""
    for model in status["models"]:
        figure(f"{model['name']} {model['version']} loads in {model['load_seconds']} s")
    assert all(model["load_seconds"] > 0 for model in status["models"])


def test_management_listens_on_loopback_only(host, serving):
    port = serving["management"].rpartition(":")[2]
    listeners = host.check_output(f"ss -Hltn 'sport = :{port}'").split()
    assert f"127.0.0.1:{port}" in " ".join(listeners).replace("[::ffff:127.0.0.1]", "127.0.0.1")
    assert not any(entry.startswith(("0.0.0.0:", "*:", "[::]:")) and entry.endswith(f":{port}") for entry in listeners)


def test_a_call_without_token_is_refused(host, serving):
    """TorchServe answers 400 where others answer 401."""
    if not serving["token_file"]:
        pytest.skip("tokens are disabled on this host, so it listens on loopback only")
    code = "import sys, urllib.request as u\ntry: print(u.urlopen(sys.argv[1]).status)\nexcept u.HTTPError as e: print(e.code)"
    assert (
        host.check_output(
            "python3 -c %s %s",
            code.replace("u.HTTPError", "__import__('urllib.error').error.HTTPError"),
            serving["inference"] + "/ping",
        )
        == "400"
    )


def test_the_token_file_is_for_the_service_alone(host, serving):
    if not serving["token_file"]:
        pytest.skip("tokens are disabled on this host")
    with host.sudo():
        file = host.file(serving["token_file"])
        assert (file.user, file.mode) == ("torchserve", 0o600)
        assert host.file("/run/torchserve").mode == 0o700


def test_the_folder_of_unpacked_models_is_for_the_service_alone(host):
    with host.sudo():
        folders = [host.file(path) for path in ("/var/cache/torchserve", "/var/cache/torchserve/tmp")]
        assert [(folder.user, folder.mode) for folder in folders] == [("torchserve", 0o700)] * 2
        assert host.file("/var/cache/torchserve/tmp/models").is_directory


def test_metrics_are_exported(host, serving):
    text = host.check_output(
        "python3 -c %s %s", "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())", serving["metrics"]
    )
    assert "ts_inference_requests_total" in text


def test_the_unit_is_valid_and_hardened(host):
    checked = host.run("systemd-analyze verify /etc/systemd/system/torchserve.service")
    assert (checked.rc, checked.stderr) == (0, "")
    exposure = host.check_output("systemd-analyze security torchserve.service --no-pager").splitlines()[-1]
    assert float(exposure.split(":")[1].split()[0]) < 3
