"""What the role torchserve's filters write for TorchServe, and what they refuse."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible.module_utils import model_archive
from torchserve import BOOLEAN, IGNORED, INTEGER, SAFE_NAME, TEXT, torchserve_archives, torchserve_properties

WEIGHTS = "22cdd18979c31d73125fac5754c4e5ff51fb2b40a826d559066b6f3a444457db"
SAMPLE = {"name": "text_classifier", "version": "1.0.0", "archive": "sample"}
MODEL = {"name": "echo", "version": "3f9c2d1", "archive": "/srv/models/echo.mar", "weights_sha256": WEIGHTS}


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
    assert INTEGER & BOOLEAN | INTEGER & TEXT | BOOLEAN & TEXT | IGNORED.keys() & (INTEGER | BOOLEAN | TEXT) == set()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (SAMPLE, ("sample", "/archives/text_classifier-1.0.0.mar")),
        (MODEL, ("controller", "/archives/echo-3f9c2d1-22cdd18979c3.mar")),
        (MODEL | {"archive": "models/echo.mar"}, ("controller", "/archives/echo-3f9c2d1-22cdd18979c3.mar")),
        (MODEL | {"archive": "https://example.com/e.mar"}, ("url", "/archives/echo-3f9c2d1-22cdd18979c3.mar")),
        (MODEL | {"archive": "http://example.com/e.mar"}, ("url", "/archives/echo-3f9c2d1-22cdd18979c3.mar")),
    ],
    ids=["sample", "path", "relative path", "https", "http"],
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


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ([MODEL, MODEL], "torchserve_models[1] (echo): version 3f9c2d1 stands more than once"),
        (
            [{**MODEL, "weights_sha256": None}],
            "weights_sha256 is missing; take it from the training job or from sha256sum of the weights file",
        ),
        (
            [{**MODEL, "weights_sha256": WEIGHTS.upper()}],
            f"weights_sha256 must be 64 lower-case hexadecimal digits, got '{WEIGHTS.upper()}'",
        ),
        ([{**MODEL, "name": "echo model"}], "torchserve_models[0] (echo model): name is 'echo model', expected letters, digits"),
        ([{**MODEL, "version": "1/2"}], "torchserve_models[0] (echo): version is '1/2', expected letters, digits"),
        ([{**MODEL, "name": "token_classifier"}], "choose one that does not begin with token"),
    ],
    ids=["twice", "no checksum", "upper case", "name", "version", "token"],
)
def test_a_model_that_could_not_be_served_is_refused_with_its_remedy(models, expected):
    assert expected in refusal(torchserve_archives, models, "/archives")


def test_all_faults_of_all_models_are_told_at_once():
    models = [{**MODEL, "weights_sha256": None}, {**MODEL, "name": "a b"}, {**SAMPLE, "version": ""}]
    message = refusal(torchserve_archives, models, "/archives")
    assert [f"torchserve_models[{number}]" in message for number in range(3)] == [True] * 3


def test_several_versions_of_a_model_are_welcome():
    results = torchserve_archives([MODEL, MODEL | {"version": "4a0d3e2"}], "/archives")
    assert len({result["archive"] for result in results}) == 2


def test_the_filter_and_the_module_accept_the_same_names():
    assert SAFE_NAME.pattern == model_archive.SAFE_NAME.pattern
