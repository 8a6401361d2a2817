"""The files of the role torchserve, rendered by Ansible's own engine with the role's own defaults."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ROLE = Path(__file__).parents[2] / "roles/torchserve"
FACTS = {
    "distribution_release": "bookworm",
    "architecture": "x86_64",
    "python": {"version": {"major": 3, "minor": 11}},
}

sys.path.insert(0, str(ROLE / "files"))
serving_ctl = importlib.import_module("serving_ctl")


def evaluate(text, facts=None, **settings):
    files = [ROLE / "defaults/main.yml", ROLE / "vars/main.yml"]
    defaults, internal = (DataLoader().load_from_file(str(path), trusted_as_template=True) for path in files)
    variables = {"ansible_managed": "Ansible managed", "ansible_facts": FACTS | (facts or {}), "__torchserve_lock_hash": "0" * 64}
    templar = Templar(loader=DataLoader(), variables=defaults | internal | variables | settings)
    return templar.template(trust_as_template(text))


def render(template, facts=None, **settings):
    return evaluate((ROLE / "templates" / template).read_text(), facts, **settings)


def properties(**settings):
    lines = [line for line in render("config.properties.j2", **settings).splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines if line)


def unit(facts=None, **settings):
    """Return the lines of the service's unit, continued ones joined and comments left out."""
    text = render("torchserve.service.j2", facts, **settings).replace("\\\n", "")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


# --- config.properties


def test_the_defaults_are_those_of_the_specification():
    wanted = {
        "inference_address": "http://127.0.0.1:8080",
        "management_address": "http://127.0.0.1:8081",
        "metrics_address": "http://127.0.0.1:8082",
        "number_of_netty_threads": "32",
        "job_queue_size": "1000",
        "enable_envvars_config": "true",
        "install_py_dep_per_model": "false",
        "metrics_mode": "prometheus",
        "models": "$$GROUNDWORK_MODELS$$",
        "allowed_urls": "file:///var/lib/torchserve/model-store/.*",
    }
    found = properties()
    assert {key: found.get(key) for key in wanted} == wanted


@pytest.mark.parametrize(("auth", "disabled"), [("token", "false"), ("disabled", "true")])
def test_token_authorisation_is_always_said(auth, disabled):
    assert properties(torchserve_auth=auth)["disable_token_authorization"] == disabled


def test_the_management_port_stays_on_loopback():
    found = properties(torchserve_inference_address="10.0.0.7", torchserve_metrics_address="10.0.0.7")
    assert found["inference_address"] == "http://10.0.0.7:8080"
    assert found["grpc_inference_address"] == "10.0.0.7"
    assert (found["management_address"], found["grpc_management_address"]) == ("http://127.0.0.1:8081", "127.0.0.1")


def test_further_keys_are_added():
    found = properties(torchserve_config={"async_logging": True, "max_request_size": 1000})
    assert (found["async_logging"], found["max_request_size"]) == ("true", "1000")


def test_a_further_key_that_the_role_sets_is_refused():
    with pytest.raises(AnsibleError, match="job_queue_size: the role sets it"):
        properties(torchserve_config={"job_queue_size": 5})


def test_no_line_ends_with_a_blank():
    """TorchServe reads "true " as false and stops at "5 "."""
    assert [line for line in render("config.properties.j2").splitlines() if line != line.rstrip()] == []


# --- unit


def test_the_cache_is_for_the_service_alone_and_only_what_a_crash_leaves_is_removed():
    """On Debian 13 /tmp is in memory, and cleared of old files under a service that still has its models there."""
    lines, temporary = unit(), "/var/cache/torchserve/tmp"
    assert [line for line in lines if line.startswith("CacheDirectory")] == [
        "CacheDirectory=torchserve torchserve/tmp",
        "CacheDirectoryMode=0700",
    ]
    [start] = [line for line in lines if line.startswith("ExecStart=")]
    assert f" -Djava.io.tmpdir={temporary} " in start
    assert [line for line in lines if line.startswith("ExecStartPre=")] == [
        f"ExecStartPre=-/usr/bin/find {temporary} -mindepth 1 -delete"
    ]
    environment = dict(
        setting.split("=", 1)
        for line in lines
        if line.startswith("Environment=")
        for setting in line.removeprefix("Environment=").split()
    )
    kept = ("HOME", "CUDA_CACHE_PATH", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    assert environment["TMPDIR"] == temporary
    assert [name for name in kept if not environment[name].startswith("/var/cache/torchserve")] == []
    assert [name for name in kept if environment[name].startswith(temporary)] == []
    assert "PrivateTmp=yes" in lines


def test_a_worker_that_was_killed_for_its_memory_does_not_end_the_service():
    assert "OOMPolicy=continue" in unit()


def test_the_module_behind_the_devices_of_cuda_is_loaded_before():
    """With a dash, systemd 249 would make "nvidia/uvm" of it."""
    named = [line.split("=")[0] for line in unit() if "modprobe@nvidia_uvm.service" in re.split("[= ]", line)]
    assert named == ["After", "Wants"]


def test_the_gpus_are_the_only_devices():
    """PrivateDevices would hide them, and whether a host has some must not depend on which playbook ran before."""
    lines = unit()
    assert [line for line in lines if "Device" in line] == ["DevicePolicy=closed", "DeviceAllow=char-nvidia* rw"]


def test_no_cuda_environment_is_named_unless_asked():
    assert [line for line in unit() if "CUDA_VISIBLE_DEVICES" in line or "groundwork/cuda" in line] == []
    lines = unit(torchserve_cuda_environment="/etc/groundwork/cuda/12.8.env")
    assert "EnvironmentFile=/etc/groundwork/cuda/12.8.env" in lines


@pytest.mark.parametrize("devices", ["0", 0, "0,1"], ids=repr)
def test_the_visible_gpus_are_set(devices):
    assert f"Environment=CUDA_VISIBLE_DEVICES={devices}" in unit(torchserve_cuda_visible_devices=devices)


@pytest.mark.parametrize(("limit", "lines"), [("24G", ["MemoryMax=24G"]), ("", [])])
def test_a_memory_limit_is_set_where_one_is_declared(limit, lines):
    assert [line for line in unit(torchserve_memory_max=limit) if line.startswith("MemoryMax")] == lines


@pytest.mark.parametrize(
    ("release", "architecture", "java"),
    [
        ("bookworm", "x86_64", "/usr/lib/jvm/java-17-openjdk-amd64/bin/java"),
        ("trixie", "aarch64", "/usr/lib/jvm/java-21-openjdk-arm64/bin/java"),
        ("jammy", "x86_64", "/usr/lib/jvm/java-17-openjdk-amd64/bin/java"),
        ("noble", "x86_64", "/usr/lib/jvm/java-17-openjdk-amd64/bin/java"),
    ],
)
def test_java_is_started_itself_with_the_version_of_the_release(release, architecture, java):
    """TorchServe's wrapper ends with 0 whatever happened."""
    [start] = [
        line for line in unit({"distribution_release": release, "architecture": architecture}) if line.startswith("ExecStart=")
    ]
    assert start.startswith(f"ExecStart={java} ")
    assert start.endswith(" -ncs")


def test_the_tokens_lie_in_a_folder_of_the_service_alone():
    lines = unit()
    wanted = ["User=torchserve", "RuntimeDirectory=torchserve", "RuntimeDirectoryMode=0700", "WorkingDirectory=/run/torchserve"]
    assert [line for line in wanted if line not in lines] == []


def test_the_unit_leaves_out_what_breaks_java_and_psutil():
    lines = unit()
    assert "NoNewPrivileges=yes" in lines
    assert [line for line in lines if line.startswith(("MemoryDenyWriteExecute", "ProcSubset", "KillMode"))] == []


@pytest.mark.parametrize(("minutes", "seconds"), [(60, 1200), (5, 100), ("60", 1200)], ids=repr)
def test_tokens_are_renewed_at_a_third_of_their_life(minutes, seconds):
    """Text is what -e and INI inventories give."""
    timer = render("serving-tokens.timer.j2", torchserve_token_lifetime_minutes=minutes)
    assert re.findall(r"^On\w+Sec=(.*)$", timer, re.MULTILINE) == [f"{seconds}s"] * 2


@pytest.mark.parametrize(("auth", "started"), [("token", True), ("disabled", False)])
def test_each_start_of_the_service_starts_the_renewal_of_its_tokens(auth, started):
    """PartOf carries a stop over to the timer, and no start."""
    assert ("Wants=serving-tokens.timer" in unit(torchserve_auth=auth)) is started
    timer = render("serving-tokens.timer.j2", torchserve_auth=auth)
    assert "PartOf=torchserve.service" in timer.splitlines()
    assert "[Install]" not in timer


# --- tasks/run.yml


@pytest.fixture
def sync_task():
    tasks = DataLoader().load_from_file(str(ROLE / "tasks/run.yml"))
    return next(task for task in tasks if task.get("register") == "__torchserve_sync")


@pytest.mark.parametrize(("check", "more"), [(False, []), (True, ["--dry-run", "--models-file", "/dev/stdin"])])
def test_a_dry_run_asks_serving_ctl_what_sync_would_do(sync_task, check, more):
    argv = evaluate(sync_task["ansible.builtin.command"]["argv"], ansible_check_mode=check)
    assert argv == ["/usr/local/sbin/serving-ctl", "sync", "--wait", 120, *more]
    assert sync_task["check_mode"] is False


@pytest.mark.parametrize(("check", "service_changes", "runs"), [(False, True, True), (True, True, False), (True, False, True)])
def test_a_dry_run_leaves_out_the_sync_where_the_service_would_start(sync_task, check, service_changes, runs):
    """There may be neither program nor service yet, and what starts loads what is declared."""
    known = {"ansible_check_mode": check, "__torchserve_service": {"changed": service_changes}}
    assert evaluate(f"{{{{ {sync_task['when']} }}}}", **known) is runs


# --- serving.json


def serving(**settings):
    return json.loads(render("serving.json.j2", **settings))


def test_the_host_side_of_the_contract_says_where_things_are():
    assert serving(torchserve_inference_address="10.0.0.7") == {
        "engine": "torchserve",
        "unit": "torchserve.service",
        "inference": "http://10.0.0.7:8080",
        "grpc_inference": "10.0.0.7:7070",
        "management": "http://127.0.0.1:8081",
        "metrics": "http://127.0.0.1:8082/metrics",
        "token_file": "/run/torchserve/key_file.json",
        "models_file": "/etc/torchserve/models.env",
        "probes": {"text_classifier": {"text": "The deployment went well."}},
    }


def test_ports_may_be_text():
    found = serving(torchserve_inference_port="8090", torchserve_grpc_inference_port="7090")
    assert (found["inference"], found["grpc_inference"]) == ("http://127.0.0.1:8090", "127.0.0.1:7090")


def test_there_is_no_token_file_without_tokens():
    assert serving(torchserve_auth="disabled")["token_file"] is None


def test_only_models_with_a_probe_are_asked():
    models = [{"name": "a", "probe": {"text": "x"}}, {"name": "b"}]
    assert serving(torchserve_models=models)["probes"] == {"a": {"text": "x"}}


def test_serving_ctl_finds_what_it_needs(tmp_path):
    path = tmp_path / "serving.json"
    path.write_text(render("serving.json.j2"))
    assert serving_ctl.load_settings(path).unit == "torchserve.service"


# --- log4j2.xml


def logging(**settings):
    return ElementTree.fromstring(render("log4j2.xml.j2", **settings))  # noqa: S314 -- the role's own file


def appender(name):
    return next(console for console in logging().iter("Console") if console.get("name") == name)


def test_a_line_of_the_log_is_json_with_its_free_text_escaped():
    layout = appender("log").find("PatternLayout")
    pattern = layout.get("pattern")
    converted = re.sub(r"%(enc\{.*?\}\{JSON\}|d\{[^}]*\}|c\{1\}|p|n)", "x", pattern).removesuffix("x")
    assert list(json.loads(converted)) == ["time", "level", "logger", "thread", "message"]
    assert '"thread":"%enc{%t}{JSON}"' in pattern
    assert '"message":"%enc{%m%notEmpty{ %xEx{5}}}{JSON}"' in pattern
    assert "%d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX}" in pattern
    # Otherwise log4j adds the trace of an exception below, as plain text.
    assert layout.get("alwaysWriteExceptions") == "false"


@pytest.mark.parametrize(
    ("message", "written_by"),
    [
        ('{"event": "inference_failed", "request_id": "a"}', ["events"]),
        ('{"event":"model_loaded"}', ["events"]),
        ("Backend received inference at: 1764500000", []),
        ("RuntimeError: PytorchStreamReader failed reading zip archive", ["log"]),
        ('an error with {"event": in it', ["log"]),
    ],
)
def test_each_line_of_a_model_is_written_once_or_not_at_all(message, written_by):
    def accepts(name):
        results = {True: "onMatch", False: "onMismatch"}
        filters = appender(name).iter("RegexFilter")
        verdicts = [entry.get(results[bool(re.fullmatch(entry.get("regex"), message))]) for entry in filters]
        return "DENY" not in verdicts

    assert [name for name in ("events", "log") if accepts(name)] == written_by


@pytest.mark.parametrize(("wanted", "level"), [(True, "info"), (False, "warn"), ("true", "info"), ("false", "warn")], ids=repr)
def test_requests_are_logged_where_that_is_wanted(wanted, level):
    levels = {logger.get("name"): logger.get("level") for logger in logging(torchserve_access_log=wanted).iter("Logger")}
    assert levels["ACCESS_LOG"] == level
    # At warn the reason of a failed load would be lost.
    assert levels["MODEL_LOG"] == "info"
