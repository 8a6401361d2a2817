"""What preflight says about hosts, judged by the policy that the role's own defaults give."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from preflight import preflight_findings, preflight_report

ROOT = Path(__file__).parents[2]
ROLE = ROOT / "roles/preflight"

A40 = {
    "address": "0000:17:00.0",
    "id": "10de:2235",
    "subsystem": "10de:145a",
    "class": "0302",
    "driver": "nvidia",
    "numa_node": 0,
}
LISTED = {"name": "NVIDIA A40", "uuid": "GPU-1a", "address": "0000:17:00.0"}

# A GPU node on which everything is right.
HEALTHY = {
    "gpus": [A40],
    "nvswitch": {"present": False, "addresses": [], "nvlink5": False},
    "driver": {"modules": ["nvidia", "nvidia_uvm"], "version": "580.178.04", "flavour": "open"},
    "nvidia_smi": {
        "path": "/usr/bin/nvidia-smi",
        "exit_code": 0,
        "timed_out": False,
        "message": None,
        "gpus": [LISTED],
    },
    "secure_boot": False,
    "kernel": {"running": "6.8.0-90-generic", "installed": ["6.8.0-90-generic"], "headers": ["6.8.0-90-generic"]},
    "memory_mib": 257_000,
    "root_filesystem": {"size_mib": 400_000, "used_percent": 40},
    "swap": [],
    "cgroup": "v2",
    "distribution": {"id": "ubuntu", "version_id": "24.04", "codename": "noble"},
    "architecture": "amd64",
    "virtualization": {"container": None, "hypervisor": False, "vendor": "Supermicro"},
    "python": "3.12.3",
    "clock_synchronized": True,
    "reachable": [{"endpoint": "mirror.example.com:443", "error": None}],
}
NO_DRIVER = {"driver": {"modules": [], "version": None, "flavour": None}}


def variables(**settings):
    """Return the role's variables as a play has them."""
    files = [ROLE / "defaults/main.yml", ROLE / "vars/main.yml"]
    defaults, internal = (DataLoader().load_from_file(str(path), trusted_as_template=True) for path in files)
    return defaults | internal | settings


def policy(**settings):
    values = variables(**settings)
    return Templar(loader=DataLoader(), variables=values).template(values["__preflight_policy"])


def host(**changes):
    facts = copy.deepcopy(HEALTHY)
    for name, value in changes.items():
        facts[name] = facts[name] | value if isinstance(value, dict) else value
    return facts


def checks(facts, **settings):
    return [finding["check"] for finding in preflight_findings(facts, policy(**settings))]


def test_a_healthy_host_has_no_findings():
    assert preflight_findings(HEALTHY, policy(preflight_gpu_required=True, preflight_driver_required=True)) == []


@pytest.mark.parametrize(
    ("changes", "settings", "check", "message"),
    [
        ({"distribution": {"id": "pop", "version_id": "22.04"}}, {}, "distribution", "the system is pop 22.04"),
        ({"distribution": {"id": "ubuntu", "version_id": "20.04"}}, {}, "distribution", "ubuntu 22.04, 24.04"),
        ({"distribution": {"id": "debian", "version_id": None}}, {}, "distribution", "debian None"),
        ({"architecture": "riscv64"}, {}, "architecture", "riscv64"),
        ({"python": "3.9.2"}, {}, "python", "3.9.2"),
        ({"memory_mib": 30_719}, {}, "memory", "30.0 GiB"),
        ({"memory_mib": None}, {}, "memory", "0.0 GiB"),
        ({"root_filesystem": {"used_percent": 86}}, {}, "root_filesystem", "86 %"),
        ({"clock_synchronized": False}, {}, "clock", "clock"),
        ({"cgroup": "v1"}, {}, "cgroup", "cgroup v1"),
        ({"cgroup": "hybrid"}, {}, "cgroup", "cgroup hybrid"),
        ({"gpus": []}, {"preflight_gpu_required": True}, "gpu", "no NVIDIA GPU"),
        (NO_DRIVER, {"preflight_driver_required": True}, "driver", "not loaded"),
        (NO_DRIVER | {"secure_boot": True}, {}, "secure_boot", "Secure Boot is on"),
        ({"nvidia_smi": {"path": None}}, {}, "driver", "no nvidia-smi"),
        ({"nvidia_smi": {"timed_out": True, "exit_code": None, "gpus": []}}, {}, "driver", "hangs"),
        ({"nvidia_smi": {"message": "No devices found.", "gpus": []}}, {}, "driver", "0 of 1 GPUs, missing: 0000:17"),
        ({"reachable": [{"endpoint": "mirror:443", "error": "refused"}]}, {}, "reachable", "mirror:443"),
        ({}, {"preflight_cuda_versions": ["14.0"]}, "cuda_compatibility", "not in the catalog"),
    ],
)
def test_each_fault_is_found_and_comes_with_a_remedy(changes, settings, check, message):
    [finding] = preflight_findings(host(**changes), policy(**settings))
    assert finding["check"] == check
    assert message in finding["message"]
    assert finding["remedy"]


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_mib": 31_000},  # what is left of 32 GiB
        {"root_filesystem": {"used_percent": 85}},
        {"clock_synchronized": None},
        {"cgroup": None},
        {"gpus": []} | NO_DRIVER,
        NO_DRIVER,
        {"secure_boot": True},  # a loaded driver is a signed driver
        {"secure_boot": None} | NO_DRIVER,
        {"swap": [{"name": "/swapfile", "type": "file", "size_mib": 2047, "used_mib": 0}]},
        {"gpus": [A40, A40 | {"address": "0000:65:00.0", "driver": "vfio-pci"}]},
    ],
)
def test_what_may_be_is_no_finding(changes):
    assert checks(host(**changes)) == []


def test_all_faults_of_a_host_are_found_at_once():
    facts = host(
        distribution={"id": "centos", "version_id": "7"}, memory_mib=8000, gpus=[], clock_synchronized=False, **NO_DRIVER
    )
    assert checks(facts, preflight_gpu_required=True) == ["distribution", "clock", "memory", "gpu"]


@pytest.mark.parametrize(("setting", "expected"), [("no", []), ("yes", ["gpu"])])
def test_booleans_that_came_as_text_mean_what_they_say(setting, expected):
    assert checks(host(gpus=[]), preflight_gpu_required=setting) == expected


def test_versions_that_came_as_numbers_are_judged_like_text():
    settings = {"preflight_cuda_versions": [13.0], "preflight_driver_version": 535, "preflight_python_min": 3.13}
    assert checks(host(), **settings) == ["python", "cuda"]


def test_a_version_mismatch_names_the_loaded_version_and_how_to_mend_it():
    """Unattended upgrades moved the libraries, the loaded module stayed."""
    facts = host(
        driver={"version": "580.65.06"},
        nvidia_smi={
            "exit_code": 18,
            "message": "Failed to initialize NVML: Driver/library version mismatch NVML library version: 580.95",
            "gpus": [],
        },
    )
    [finding] = preflight_findings(facts, policy())
    assert "module 580.65.06" in finding["message"]
    assert "NVML library version: 580.95" in finding["message"]
    assert "reboot" in finding["remedy"]


@pytest.mark.parametrize(
    ("driver", "shown"), [(None, "0000:65:00.0 (10de:1b06, bound to nothing)"), ("nouveau", "bound to nouveau")]
)
def test_a_gpu_that_the_loaded_driver_does_not_drive_is_told_once_with_the_likely_causes(driver, shown):
    """A GPU of a generation that the driver left behind, beside one that it drives."""
    facts = host(gpus=[A40, A40 | {"address": "0000:65:00.0", "id": "10de:1b06", "driver": driver}])
    [finding] = preflight_findings(facts, policy())
    assert "the nvidia module 580.178.04 (open) is loaded, but does not drive" in finding["message"]
    assert shown in finding["message"]
    assert [cause for cause in ("Blackwell", "Pascal", "journalctl -k") if cause not in finding["remedy"]] == []


def test_a_gpu_without_known_address_is_counted_but_not_named():
    facts = host(gpus=[A40, A40 | {"address": "0000:65:00.0"}], nvidia_smi={"gpus": [LISTED | {"address": None}]})
    [finding] = preflight_findings(facts, policy())
    assert "1 of 2 GPUs, missing: unknown" in finding["message"]


def test_with_nouveau_loaded_the_missing_driver_is_reported_with_it():
    facts = host(driver={"modules": ["nouveau"], "version": None, "flavour": None})
    [finding] = preflight_findings(facts, policy(preflight_driver_required=True))
    assert "nouveau" in finding["message"]


@pytest.mark.parametrize(
    ("driver", "cuda", "expected"),
    [
        ("580.178.04", "12.1", []),
        ("535.104.05", "12.2.2", []),
        ("535.54.03", "12.2.2", ["cuda_compatibility"]),
        ("535.309.01", "12.8", ["cuda_compatibility"]),
        ("535.309.01", "13.0", ["cuda"]),
        ("580.65.06", "13.1", ["cuda_compatibility"]),
        ("470.256.02", "11.8", ["cuda_compatibility"]),
        ("450.51.06", "11.8", ["cuda"]),
        ("525.60.12", "12.99", ["cuda"]),
    ],
)
def test_cuda_versions_are_held_against_the_loaded_driver(driver, cuda, expected):
    assert checks(host(driver={"version": driver}), preflight_cuda_versions=[cuda]) == expected


def test_a_declared_driver_is_judged_in_place_of_the_loaded_one():
    settings = {"preflight_cuda_versions": ["13.0"], "preflight_driver_version": "535.309.01"}
    assert checks(HEALTHY, **settings) == ["cuda"]


def test_without_any_driver_cuda_is_not_judged():
    assert checks(host(**NO_DRIVER), preflight_cuda_versions=["13.0"]) == []


def test_the_lab_profile_only_warns_of_size_clock_and_missing_gpus():
    profiles = variables()["__preflight_warn_only"]
    assert set(profiles["lab"]) - set(profiles["production"]) == {"clock", "gpu", "memory", "root_filesystem"}


def test_every_finding_of_the_report_stands_with_its_remedy():
    findings = preflight_findings(host(memory_mib=8000, clock_synchronized=False), policy())
    lines = preflight_report(findings).splitlines()
    assert [line.split(":")[0] for line in lines] == ["- clock", "  Remedy", "- memory", "  Remedy"]


def test_the_faults_of_all_roles_are_told_in_one_run_which_ends_before_the_first_change(tmp_path):
    """Through the playbook itself, on this machine: it only reads."""
    wrong = {
        "sysctl_tuning_parameters": [{"name": "no.such", "value": 1}],
        "host_limits_shm_min": "lots",
        "torchserve_memory_max": "24GB",
        "torchserve_models": [{"name": "echo", "version": "1", "archive": "sample"}],
    }
    general = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
        "preflight_warn_only": list(checks_that_may_warn()),
        "sysctl_tuning_apply": False,
        "sysctl_tuning_on_override": "warn",
    }
    inventory = {
        "all": {"hosts": {"right": {}, "wrong": wrong}, "vars": general, "children": {"serving": {"hosts": {"wrong": {}}}}}
    }
    (tmp_path / "hosts.json").write_text(json.dumps(inventory))
    plays = [
        {"name": "Preflight", "ansible.builtin.import_playbook": str(ROOT / "playbooks/preflight.yml")},
        {"name": "Change", "hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.debug": {"msg": "too late"}}]},
    ]
    (tmp_path / "site.yml").write_text(json.dumps(plays))
    run = subprocess.run(
        [sys.executable, "-m", "ansible", "playbook", tmp_path / "site.yml", "-i", tmp_path / "hosts.json"],
        env=os.environ | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    told = ["no.such: /proc/sys/no/such", "'lots' is no size", "torchserve_memory_max is '24GB'", "torchserve_models[0] (echo)"]
    output = " ".join((run.stdout + run.stderr).replace("''", "'").split())
    assert run.returncode != 0
    assert [fault for fault in told if fault not in output] == []
    assert "No host was changed. Correct first" in output
    assert "too late" not in output
    assert "changed=0" in output
    assert "changed=1" not in output


def checks_that_may_warn():
    specs = DataLoader().load_from_file(str(ROLE / "meta/argument_specs.yml"))
    return specs["argument_specs"]["main"]["options"]["preflight_warn_only"]["choices"]
