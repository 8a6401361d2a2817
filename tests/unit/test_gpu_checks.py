"""The checks for machines with a GPU, on machines without: they pass where all is well and notice what is not.

The GPU is a stand-in (tests/standins/nvidia_smi.py), and so are the file trees.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.module_utils import pci

ROOT = Path(__file__).parents[2]


def load(name: str, path: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


checks = load("gpu_checks", "tests/gpu/checks.py")
standin = load("nvidia_smi", "tests/standins/nvidia_smi.py")
#: Asked of the machine that the tests run on.
ABOUT_THIS_MACHINE = checks.CHECKS[0]
RELEASE = "6.1.0-57-amd64"


def host(**changes) -> dict:
    gpus = [
        {"address": f"0000:{bus}:00.0", "id": "10de:2235", "name": "NVIDIA A40", "uuid": uuid, "compute_cap": "8.6"}
        for bus, uuid in (("17", "GPU-1a"), ("65", "GPU-2b"))
    ]
    return {"driver_version": "580.95.05", "cuda_version": "13.0", "flavour": "open", "gpus": gpus, **changes}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Make a machine; `kernel` is the state that its files show, `smi` the one that its nvidia-smi shows."""
    monkeypatch.setenv("GROUNDWORK_STANDIN_STATE", str(tmp_path / "gpu.json"))

    def make(kernel: dict, smi: dict, packages: str = "580.95.05", module: str = "580.95.05"):
        standin.write_host(tmp_path, kernel)
        (tmp_path / "gpu.json").write_text(json.dumps(smi))
        status = f"Package: libnvidia-compute-580\nStatus: install ok installed\nVersion: {packages}-1ubuntu1\n"
        texts = {
            "proc/sys/kernel/osrelease": RELEASE,
            "proc/812/cmdline": "/usr/bin/nvidia-persistenced\0--user\0nvpd\0" if kernel.get("daemon") else "",
            "etc/os-release": "ID=debian\nVERSION_ID=12\nVERSION_CODENAME=bookworm\n",
            "var/lib/dpkg/status": status,
            f"lib/modules/{RELEASE}/modules.dep": "updates/nvidia.ko:\n",
            f"lib/modules/{RELEASE}/updates/nvidia.ko": f"\0version={module}\0",
            f"lib/modules/{RELEASE}/build/Makefile": "",
            f"boot/vmlinuz-{RELEASE}": "",
        }
        for name, text in texts.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return checks.Machine(tmp_path, {"nvidia-smi": str(ROOT / "tests/standins/nvidia_smi.py")}.get)

    return make


def outcome(machine) -> dict[str, list[str]]:
    """Return the checks by result."""
    found: dict[str, list[str]] = {"ok": [], "FAILED": [], "skipped": []}
    for entry in checks.results(machine, tuple(check for check in checks.CHECKS if check is not ABOUT_THIS_MACHINE)):
        found[entry["result"]].append(entry["check"])
    return found


def test_a_machine_without_gpu_is_passed_over_in_a_sentence():
    if pci.gpus(Path("/")):
        pytest.skip("this machine has an NVIDIA GPU")
    result = subprocess.run([ROOT / "tests/gpu/run.sh"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "skipped: no NVIDIA GPU on this machine\n", "")


def test_all_checks_pass_on_a_host_in_order(machine):
    state = host()
    for gpu in state["gpus"]:
        gpu["persistence_mode"] = "Enabled"
    found = outcome(machine({**state, "daemon": True}, state))
    assert (found["FAILED"], found["skipped"], len(found["ok"])) == ([], [], len(checks.CHECKS) - 1)


@pytest.mark.parametrize(
    ("kernel", "smi", "versions", "failed"),
    [
        ({"driver_version": "580.65.06"}, {}, {"module": "580.65.06"}, "the loaded version is that of nvidia smi"),
        ({}, {}, {"module": "580.65.06"}, "the loaded version is that of the module file"),
        ({}, {}, {"packages": "580.65.06"}, "the installed driver is in order"),
        ({"daemon": True}, {}, {}, "persistence is what nvidia smi says"),
        ({}, {"gpus": host()["gpus"][:1]}, {}, "nvidia smi lists every gpu on the bus"),
        ({}, {"failure": 18}, {}, "nvidia smi lists every gpu on the bus"),
        ({}, {"failure": 18}, {}, "a bad field ends with exit code 2"),
        (
            {},
            {"gpus": [{**gpu, "compute_cap": "[N/A]"} for gpu in host()["gpus"]]},
            {},
            "the compute capability fits the generation",
        ),
        ({"driver_version": None}, {}, {}, "the flavour is told"),
    ],
)
def test_a_deviation_fails_its_check(machine, kernel, smi, versions, failed):
    assert failed in outcome(machine(host(**kernel), host(**smi), **versions))["FAILED"]


def test_a_card_that_the_running_combination_does_not_suit_is_noticed(machine):
    """10de:1db6 is a V100 of the generation Volta, compute capability 7.0, which the open modules don't drive."""
    made = machine(host(), host())
    made.facts["gpus"][0]["id"] = "10de:1db6"
    assert outcome(made)["FAILED"] == ["the compute capability fits the generation", "the solver accepts what runs"]


def test_a_check_that_breaks_is_a_failed_one_and_the_others_go_on(machine):
    def breaks(_machine):
        raise KeyError("nothing")

    entries = list(checks.results(machine(host(), host()), (breaks, checks.the_flavour_is_told)))
    assert [(entry["result"], entry["detail"]) for entry in entries] == [("FAILED", "KeyError('nothing')"), ("ok", "open")]


@pytest.mark.parametrize(("smi", "code", "word"), [({}, 0, "ok      "), ({"gpus": host()["gpus"][:1]}, 1, "FAILED  ")])
def test_each_check_is_a_line_and_json_ends_it(  # noqa: PLR0913, PLR0917 - fixtures
    machine, tmp_path, monkeypatch, capsys, smi, code, word
):
    machine(host(), host(**smi))
    monkeypatch.setattr(checks, "CHECKS", (checks.the_flavour_is_told, checks.nvidia_smi_lists_every_gpu_on_the_bus))
    assert checks.main(tmp_path, {"nvidia-smi": str(ROOT / "tests/standins/nvidia_smi.py")}.get) == code
    first, second, report = capsys.readouterr().out.split("\n", 2)
    assert first == "ok      the flavour is told: open"
    assert second.startswith(f"{word}nvidia smi lists every gpu on the bus: ")
    assert [entry["result"] for entry in json.loads(report)["checks"]] == ["ok", word.strip()]


def test_no_ansible_is_needed(machine, tmp_path):
    """Python without site-packages stands for a machine without Ansible."""
    machine(host(), host())
    code = (
        f"import pathlib, sys; sys.path.insert(0, {str(ROOT / 'tests/gpu')!r}); import checks; "
        f"machine = checks.Machine(pathlib.Path({str(tmp_path)!r}), {{}}.get); "
        f"print(len(machine.facts['gpus']), machine.loaded, sys.modules['ansible'].__spec__)"
    )
    result = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("2 580.95.05 None\n", "")
