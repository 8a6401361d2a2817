"""What the role torchserve's filters write for TorchServe, and what they refuse."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from torchserve import BOOLEAN, INTEGER, REFUSED, TEXT, torchserve_archives, torchserve_faults, torchserve_properties

ROLE = Path(__file__).parents[2] / "roles/torchserve"
DEFAULTS = yaml.safe_load((ROLE / "defaults/main.yml").read_text())

WEIGHTS = "22cdd18979c31d73125fac5754c4e5ff51fb2b40a826d559066b6f3a444457db"
SAMPLE = {"name": "text_classifier", "version": "1.0.0", "archive": "sample"}
MODEL = {"name": "echo", "version": "3f9c2d1", "archive": "/srv/models/echo.mar", "weights_sha256": WEIGHTS}
REMOTE = MODEL | {"archive": "https://models.example.com/echo.mar"}
OWN = ["10.0.0.7"]


def faults(**settings):
    return torchserve_faults(DEFAULTS | settings, {"job_queue_size": 1000}, OWN)


def refusal(function, *arguments):
    with pytest.raises(AnsibleFilterError) as error_info:
        function(*arguments)
    return str(error_info.value)


def test_the_lines_are_sorted_so_that_only_a_change_changes_the_file():
    config = {"model_store": "/store", "job_queue_size": 1000}
    assert torchserve_properties(config, {"debug": False}) == "debug=false\njob_queue_size=1000\nmodel_store=/store"


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("async_logging", True, "async_logging=true"),
        ("async_logging", False, "async_logging=false"),
        ("io_ratio", 50, "io_ratio=50"),
        ("io_ratio", "50", "io_ratio=50"),
        ("default_workers_per_model", 0, "default_workers_per_model=0"),
        ("token_expiration_min", 0.5, "token_expiration_min=0.5"),
        ("metrics_mode", "legacy", "metrics_mode=legacy"),
        ("keystore", "", "keystore="),
        ("blacklist_env_vars", r"MY_\w+", r"blacklist_env_vars=MY_\\w+"),
    ],
)
def test_a_value_is_written_as_java_reads_it(key, value, line):
    assert torchserve_properties({}, {key: value}) == line


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("async_logging", "true", "async_logging: expected true or false, got 'true'"),
        ("async_logging", "yes ", "async_logging: expected true or false, got 'yes '"),
        ("async_logging", 1, "async_logging: expected true or false, got 1"),
        ("io_ratio", "abc", "io_ratio: expected a whole number of 0 or more, got 'abc'"),
        ("io_ratio", -1, "io_ratio: expected a whole number of 0 or more, got -1"),
        ("io_ratio", 1.5, "io_ratio: expected a whole number of 0 or more, got 1.5"),
        ("io_ratio", "5 ", "io_ratio: expected a whole number of 0 or more, got '5 '"),
        ("io_ratio", True, "io_ratio: expected a whole number of 0 or more, got True"),
        ("io_ratio", None, "io_ratio: expected a whole number of 0 or more, got None"),
        ("job_queue_size", 0, "job_queue_size: expected 1 or more: with 0 TorchServe starts and then refuses every model"),
        ("keystore", "/etc/keys ", "keystore: expected one line without blanks at its ends, got '/etc/keys '"),
        ("keystore", "\t/etc/keys", "keystore: expected one line without blanks at its ends, got '\\t/etc/keys'"),
        ("keystore", "a\nb=c", "keystore: expected one line without blanks at its ends, got 'a\\nb=c'"),
        ("keystore", None, "keystore: expected text, got None"),
        ("keystore", False, "keystore: expected text, got False"),
        ("blacklist_env_vars", ["A", "B"], "blacklist_env_vars: expected text, got ['A', 'B']"),
        ("metrics_mode", "bogus", "metrics_mode: expected prometheus, log or legacy, got 'bogus'"),
        ("batch_size", 4, "batch_size: TorchServe ignores it here; set batch_size of the model in torchserve_models"),
        ("use_env_allowed", True, "use_env_allowed: the key is called use_env_allowed_urls"),
        ("asinc_logging", True, "asinc_logging: TorchServe 0.12 reads no such key; did you mean async_logging?"),
        ("zzz", 1, "zzz: TorchServe 0.12 reads no such key"),
    ],
)
def test_a_key_that_would_be_misread_is_refused_with_its_remedy(key, value, expected):
    assert refusal(torchserve_properties, {}, {key: value}) == f"torchserve_config: {expected}"


def test_a_key_of_the_role_is_refused_even_with_the_same_value():
    message = refusal(torchserve_properties, {"job_queue_size": 1000}, {"job_queue_size": 1000})
    assert message == "torchserve_config: job_queue_size: the role sets it; use its own variable instead (see the role's README)"


def test_all_faults_are_told_at_once():
    message = refusal(torchserve_properties, {}, {"io_ratio": "x", "debug": "no", "ioratio": 1, "max_idle_time": 60})
    assert [key for key in ("io_ratio", "debug", "ioratio", "max_idle_time") if f" {key}: " not in message] == []


def test_each_key_is_of_one_kind():
    assert INTEGER & BOOLEAN | INTEGER & TEXT | BOOLEAN & TEXT | REFUSED.keys() & (INTEGER | BOOLEAN | TEXT) == set()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (SAMPLE, ("sample", "/archives/text_classifier-1.0.0.mar")),
        (MODEL, ("controller", "/archives/echo-3f9c2d1-22cdd18979c3.mar")),
        (MODEL | {"archive": "https://example.com/e.mar"}, ("url", "/archives/echo-3f9c2d1-22cdd18979c3.mar")),
        (MODEL | {"archive": "http://example.com/e.mar"}, ("url", "/archives/echo-3f9c2d1-22cdd18979c3.mar")),
    ],
    ids=["sample", "path", "https", "http"],
)
def test_an_archive_has_an_origin_and_a_place_on_the_host(model, expected):
    [result] = torchserve_archives([model], "/archives")
    assert (result["origin"], result["archive"]) == expected
    assert result["source"] == model["archive"]


def test_other_options_of_a_model_are_kept():
    [result] = torchserve_archives([SAMPLE | {"workers": 4, "probe": {"text": "x"}}], "/archives")
    assert (result["workers"], result["probe"]) == (4, {"text": "x"})


def test_another_checksum_is_another_file_so_that_it_is_fetched_again():
    paths = [torchserve_archives([MODEL | {"weights_sha256": digit * 64}], "/a")[0]["archive"] for digit in "ab"]
    assert paths[0] != paths[1]


def test_several_versions_of_a_model_are_welcome():
    models = [REMOTE, REMOTE | {"version": "4a0d3e2"}]
    assert faults(torchserve_models=models) == []
    assert len({result["archive"] for result in torchserve_archives(models, "/archives")}) == 2


# All that is wrong with a host's settings


def test_the_defaults_have_no_faults():
    assert faults() == []


@pytest.mark.parametrize(
    "settings",
    [
        {"torchserve_inference_address": "10.0.0.7", "torchserve_metrics_address": "127.0.0.2"},
        {"torchserve_inference_port": "9080"},
        {"torchserve_inference_port": 1024, "torchserve_metrics_port": 65535},
        {"torchserve_auth": "disabled"},
        {"torchserve_auth": "disabled", "torchserve_inference_address": "127.0.0.2"},
        {"torchserve_java_heap": "4g"},
        *({"torchserve_memory_max": limit} for limit in ("24G", "1.5T", "80%", "100%", "infinity")),
        *({"torchserve_cuda_visible_devices": devices} for devices in (0, "0", "0,1")),
        {"torchserve_models": []},
        {"torchserve_models": [REMOTE | {"workers": "1", "batch_size": 1, "max_batch_delay_ms": 0}]},
        {"torchserve_config": {"async_logging": True}},
    ],
    ids=str,
)
def test_what_can_be_run_is_no_fault(settings):
    assert faults(**settings) == []


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("token_lifetime_minutes", 2, "is 2, expected a whole number of 3 or more: it is renewed before it ends"),
        ("netty_threads", 0, "is 0, expected a whole number of 1 or more"),
        ("netty_threads", "-4", "is '-4', expected a whole number of 1 or more"),
        ("job_queue_size", 0, "is 0, expected a whole number of 1 or more: with 0 TorchServe starts and then refuses"),
        ("max_text_characters", 0, "is 0, expected a whole number of 1 or more"),
        ("ready_timeout", 0, "is 0, expected a whole number of 1 or more"),
        ("inference_port", 443, "is 443, expected a whole number from 1024 to 65535: the service is not root"),
        ("metrics_port", "65536", "is '65536', expected a whole number from 1024 to 65535"),
        ("metrics_port", "http", "is 'http', expected a whole number from 1024 to 65535"),
        ("metrics_port", "8080", "and torchserve_metrics_port are both 8080; each port needs a number of its own"),
        ("grpc_inference_port", 8081, "torchserve_management_port and torchserve_grpc_inference_port are both 8081"),
        ("inference_address", "0.0.0.0", "is 0.0.0.0, which no client can use, and clients are told it"),  # noqa: S104 -- refused
        ("inference_address", "::1", "is '::1', expected an IPv4 address in digits: TorchServe can't bind IPv6"),
        ("inference_address", "gpu1.example.com", "is 'gpu1.example.com', expected an IPv4 address in digits"),
        ("inference_address", "127.0.0.256", "is '127.0.0.256', expected an IPv4 address in digits"),
        ("inference_address", "10.0.0.8", "is 10.0.0.8, which is no address of this host; it has 10.0.0.7"),
        ("metrics_address", "224.0.0.1", "is 224.0.0.1, which no client can use"),
        ("java_heap", "512", "is '512', expected a size such as 512m or 4g"),
        ("java_heap", "0m", "is '0m', expected a size"),
        ("java_heap", "50%", "is '50%', expected a size"),
        ("memory_max", "24GB", "is '24GB', expected a size such as 24G, a share such as 80%, infinity, or nothing"),
        ("memory_max", "24g", "is '24g', expected"),
        ("memory_max", "0G", "is '0G', expected"),
        ("memory_max", "101%", "is '101%', expected"),
        ("cuda_visible_devices", "GPU-8f6d1e5a", "is 'GPU-8f6d1e5a', expected numbers of GPUs such as 0 or 0,1: TorchServe"),
        ("cuda_visible_devices", "0, 1", "is '0, 1', expected numbers of GPUs"),
        ("cuda_visible_devices", "0,", "is '0,', expected numbers of GPUs"),
        ("config", {"io_ratio": "x"}, "io_ratio: expected a whole number of 0 or more, got 'x'"),
        ("config", {"job_queue_size": 5}, "job_queue_size: the role sets it; use its own variable instead"),
    ],
)  # fmt: skip
def test_what_could_not_be_run_is_told_with_variable_value_and_expectation(name, value, expected):
    [fault] = faults(**{f"torchserve_{name}": value})
    assert f"torchserve_{name}" in fault
    assert expected in fault


def test_no_token_is_allowed_on_loopback_only():
    [fault] = faults(torchserve_auth="disabled", torchserve_inference_address="10.0.0.7")
    assert fault.startswith("torchserve_auth is disabled while torchserve_inference_address is 10.0.0.7: anybody")
    assert "set torchserve_auth to token, or listen on 127.0.0.1" in fault


def test_an_address_is_not_compared_where_those_of_the_host_are_unknown():
    assert torchserve_faults(DEFAULTS | {"torchserve_inference_address": "10.0.0.8"}, {}) == []


def test_a_password_is_refused_without_being_shown_and_with_a_better_place():
    [fault] = faults(torchserve_config={"keystore_pass": "s3cret"})
    assert "TS_KEYSTORE_PASS=... into /etc/torchserve/override.env (mode 0600)" in fault
    assert "s3cret" not in fault


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({**REMOTE, "weights_sha256": None}, "weights_sha256 is missing; take it from the training job or from sha256sum"),
        (
            {**REMOTE, "weights_sha256": WEIGHTS.upper()},
            f"weights_sha256 must be 64 lower-case hexadecimal digits, got '{WEIGHTS.upper()}'",
        ),
        ({**REMOTE, "name": "echo model"}, "name is 'echo model', expected letters, digits"),
        ({**REMOTE, "version": "1/2"}, "version is '1/2', expected letters, digits"),
        ({**REMOTE, "name": "token_classifier"}, "choose one that does not begin with token"),
        ({**SAMPLE, "name": "echo"}, "archive sample is a model named text_classifier; use that name, or another archive"),
        ({**REMOTE, "workers": 0}, "workers is 0, expected a whole number of 1 or more"),
        ({**REMOTE, "batch_size": "0"}, "batch_size is '0', expected a whole number of 1 or more"),
        ({**REMOTE, "max_batch_delay_ms": -1}, "max_batch_delay_ms is -1, expected a whole number of 0 or more"),
        ({**REMOTE, "response_timeout_seconds": 0}, "response_timeout_seconds is 0, expected"),
        ({**REMOTE, "startup_timeout_seconds": 0}, "startup_timeout_seconds is 0, expected"),
        ({**MODEL, "archive": "models/echo.mar"}, "archive is 'models/echo.mar', expected sample, an http(s):// URL, or an"),
        ({**MODEL, "archive": "s3://models/echo.mar"}, "archive is 's3://models/echo.mar', expected sample"),
        ({**MODEL, "archive": "/nowhere/echo.mar"}, "archive /nowhere/echo.mar on the controller cannot be read (No such file"),
    ],
)  # fmt: skip
def test_a_model_that_could_not_be_served_is_refused_with_its_remedy(model, expected):
    [fault] = faults(torchserve_models=[model])
    assert fault.startswith(f"torchserve_models[0] ({model['name']}): ")
    assert expected in fault


def test_the_same_model_twice_is_refused():
    [fault] = faults(torchserve_models=[REMOTE, REMOTE])
    assert fault == "torchserve_models[1] (echo): version 3f9c2d1 stands more than once"


@pytest.fixture
def archive(tmp_path):
    manifest = {"modelName": "echo", "modelVersion": "3f9c2d1", "serializedFile": "model.pt", "handler": "text_classifier"}
    path = tmp_path / "echo.mar"
    with zipfile.ZipFile(path, "w") as container:
        container.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": manifest}))
        container.writestr("model.pt", b"weights")
    return MODEL | {"archive": str(path), "weights_sha256": hashlib.sha256(b"weights").hexdigest()}


def test_an_archive_on_the_controller_that_is_as_declared_is_no_fault(archive):
    assert faults(torchserve_models=[archive]) == []


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        ({"weights_sha256": "0" * 64}, f"weights_sha256 is {'0' * 64} but model.pt inside"),
        ({"version": "4a0d3e2"}, "version is '4a0d3e2' but"),
        ({"name": "other"}, "name is 'other' but"),
    ],
)
def test_an_archive_on_the_controller_is_opened_before_any_host_is_changed(archive, difference, expected):
    [fault] = faults(torchserve_models=[archive | difference])
    assert expected in fault


@pytest.mark.parametrize(
    ("release", "architecture", "expected"),
    [
        ("bookworm", "x86_64", []),
        ("focal", "x86_64", ["the system is focal on x86_64, expected bookworm, trixie, jammy, noble on x86_64 or aarch64"]),
        ("noble", "riscv64", ["the system is noble on riscv64, expected"]),
    ],
)
def test_a_system_that_the_role_does_not_know_is_refused_with_a_sentence(release, architecture, expected):
    """The role may be applied by itself, without preflight."""
    files = [ROLE / "defaults/main.yml", ROLE / "vars/main.yml"]
    defaults, internal = (DataLoader().load_from_file(str(path), trusted_as_template=True) for path in files)
    [task] = DataLoader().load_from_file(str(ROLE / "tasks/validate.yml"), trusted_as_template=True)
    facts = {"ansible_facts": {"distribution_release": release, "architecture": architecture}}
    templar = Templar(loader=DataLoader(), variables=defaults | internal | task["vars"] | facts)
    found = templar.template(task["vars"]["__torchserve_platform_faults"])
    assert [fault.startswith(start) for fault, start in zip(found, expected, strict=True)] == [True] * len(expected)


def test_all_faults_are_told_together():
    models = [{**REMOTE, "weights_sha256": None, "workers": 0}, {**REMOTE, "name": "a b"}, {**SAMPLE, "version": ""}]
    found = faults(torchserve_models=models, torchserve_java_heap="1", torchserve_inference_port=1, torchserve_config={"a": 1})
    assert [fault.split()[0].rstrip(":") for fault in found] == [
        "torchserve_inference_port",
        "torchserve_java_heap",
        "torchserve_config",
        "torchserve_models[0]",
        "torchserve_models[0]",
        "torchserve_models[1]",
        "torchserve_models[2]",
    ]
