"""The stand-in for nvidia-smi. Its texts and exit codes are those of nvidia-smi 535.309.01 on a made-up NVML library."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.module_utils import nvidia_state, pci

STANDINS = Path(__file__).parents[2] / "tests/standins"
PROGRAM = STANDINS / "nvidia_smi.py"
sys.path.insert(0, str(STANDINS))
standin = importlib.import_module("nvidia_smi")

CSV = ["--query-gpu=index,name", "--format=csv"]
LOST = "GPU is lost.  Reboot the system to recover this GPU\n\n\n"


def host(**changes) -> dict:
    """Return the state of a host with two A40."""
    gpus = [
        {"address": "0000:17:00.0", "id": "10de:2235", "name": "NVIDIA A40", "uuid": "GPU-1a", "compute_cap": "8.6"},
        {"address": "0000:65:00.0", "id": "10de:2235", "name": "NVIDIA A40", "uuid": "GPU-2b", "memory.total": 46068},
    ]
    return {"driver_version": "535.309.01", "cuda_version": "12.2", "flavour": "proprietary", "gpus": gpus, **changes}


def failing(*failures: int) -> dict:
    """Return the state of a host whose GPUs can't be opened, with NVML's return value for each."""
    state = host()
    for gpu, failure in zip(state["gpus"], failures, strict=True):
        gpu["failure"] = failure
    return state


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Run the stand-in for a state; return exit code, output, and the state it leaves."""
    path = tmp_path / "gpu.json"
    monkeypatch.setenv("GROUNDWORK_STANDIN_STATE", str(path))

    def run(state: dict, *arguments: str) -> tuple[int, str, dict]:
        path.write_text(json.dumps(state))
        result = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)
        assert not result.stderr
        return result.returncode, result.stdout, json.loads(path.read_text())

    return run


@pytest.mark.parametrize(
    ("state", "arguments", "code", "start"),
    [
        (host(failure=12), ["-L"], 12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system."),
        (host(driver_version=None), ["-L"], 9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        (
            host(library_version="550.163.01"),
            CSV,
            18,
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.163\n",
        ),
        (host(failure=4), ["-L"], 4, "Failed to initialize NVML: Insufficient Permissions\n"),
        (failing(4, 4), CSV, 4, "No devices were found. Please make sure /dev/nvidia* files are readable by current user.\n"),
        (host(gpus=[]), [], 6, "No devices were found\n"),
        (host(gpus=[]), CSV, 6, "No devices were found\n"),
        (host(gpus=[]), ["-L"], 0, "No devices found.\n"),
        (
            failing(8, 0),
            CSV,
            8,
            "Unable to determine the device handle for GPU0: Unable to communicate with GPU because it is insuff",
        ),
        (
            failing(0, 11),
            CSV,
            11,
            "Unable to determine the device handle for GPU1: The NVIDIA kernel module detected an issue with",
        ),
        (host(failure=14), ["-L"], 14, "Failed to initialize NVML: Corrupted infoROM\n"),
        (failing(0, 15), CSV, 15, f"Unable to determine the device handle for GPU1: {LOST}"),
        (failing(0, 15), [], 15, f"Unable to determine the device handle for GPU1: {LOST}"),
        (failing(15, 0), ["-L"], 15, f"Unable to determine the device handle for gpu 0: {LOST}".rstrip("\n")),
        (host(failure=17), ["-L"], 17, "Failed to initialize NVML: GPU access blocked by the operating system\n"),
        (host(failure=19), ["-L"], 19, "Failed to initialize NVML: In use by another client\n"),
        (host(failure=23), ["-L"], 23, "Failed to initialize NVML: Insufficient Resources\n"),
        (host(), ["--query-gpu=name,bogus", "--format=csv"], 2, 'Field "bogus" is not a valid field to query.\n'),
        (host(), ["--query-gpu=name, uuid", "--format=csv"], 2, 'Field " uuid" is not a valid field to query.\n'),
        (host(), ["--query-gpu=name"], 2, '"--format=" switch is missing.'),
        (host(), ["--query-gpu=name", "--format=json"], 2, "Format modifier is not recognized.\n"),
        (host(), ["-i", "0", "-L"], 2, "ERROR: Option -i is not valid for this command."),
        (host(), ["--bogus"], 255, "ERROR: Option --bogus is not recognized. Please run 'nvidia-smi -h'.\n"),
        (
            failing(16, 0),
            CSV,
            255,
            "Unable to determine the device handle for GPU0: A GPU reset must occur before this GPU can be",
        ),
    ],
)
def test_a_failure_has_the_text_and_exit_code_of_the_real_program(smi, state, arguments, code, start):
    answer = smi(state, *arguments)
    assert (answer[0], answer[1][: len(start)]) == (code, start)


@pytest.mark.parametrize("failure", [1, 5, 7, 10, 16, 20, 21, 22, 24, 25, 999])
def test_return_values_without_an_exit_code_of_their_own_end_with_255(smi, failure):
    assert smi(host(failure=failure), "-L")[0] == 255


def test_gpus_that_are_not_readable_are_passed_over_while_another_one_is(smi):
    assert smi(failing(4, 0), *CSV)[:2] == (0, "index, name\n1, NVIDIA A40\n")


def test_gpus_are_listed(smi):
    assert smi(host(), "-L")[:2] == (0, "GPU 0: NVIDIA A40 (UUID: GPU-1a)\nGPU 1: NVIDIA A40 (UUID: GPU-2b)\n")


@pytest.mark.parametrize(
    ("query", "style", "lines"),
    [
        (
            "index,gpu_name,pci.bus_id,pci.device_id,driver_version,compute_cap",
            "csv",
            [
                "index, name, pci.bus_id, pci.device_id, driver_version, compute_cap",
                "0, NVIDIA A40, 00000000:17:00.0, 0x223510DE, 535.309.01, 8.6",
                "1, NVIDIA A40, 00000000:65:00.0, 0x223510DE, 535.309.01, [N/A]",
            ],
        ),
        (
            "memory.total,power.draw,clocks.sm,utilization.gpu,power.management",
            "csv",
            [
                "memory.total [MiB], power.draw [W], clocks.current.sm [MHz], utilization.gpu [%], power.management",
                "[N/A], [N/A], [N/A], [N/A], [N/A]",
                "46068 MiB, [N/A], [N/A], [N/A], [N/A]",
            ],
        ),
        ("memory.total", "csv,noheader,nounits", ["[N/A]", "46068"]),
        ("clocks_throttle_reasons.active", "csv", ["clocks_event_reasons.active", "[N/A]", "[N/A]"]),
    ],
)
def test_a_query_is_answered_as_csv_with_units(smi, query, style, lines):
    code, output, _ = smi(host(), f"--query-gpu={query}", f"--format={style}")
    assert (code, output.splitlines()) == (0, lines)


@pytest.mark.parametrize("selector", ["1", "GPU-2b", "00000000:65:00.0"])
def test_a_gpu_is_chosen_by_number_uuid_or_bus_id(smi, selector):
    assert smi(host(), "-i", selector, "--query-gpu=uuid", "--format=csv,noheader")[:2] == (0, "GPU-2b\n")


def test_a_gpu_that_is_not_there_is_not_found(smi):
    assert smi(host(), "-i", "7", *CSV)[:2] == (6, "No devices were found\n")


def test_processes_are_listed(smi):
    state = host()
    state["gpus"][1]["processes"] = [{"pid": 4711, "process_name": "python3", "used_gpu_memory": 512}]
    code, output, _ = smi(state, "--query-compute-apps=pid,name,gpu_uuid,used_memory", "--format=csv")
    assert (code, output) == (0, "pid, process_name, gpu_uuid, used_gpu_memory [MiB]\n4711, python3, GPU-2b, 512 MiB\n")


def test_persistence_mode_is_kept_and_said_to_be_set_already(smi):
    code, output, state = smi(host(), "-i", "1", "-pm", "1")
    assert (code, output) == (0, "Enabled persistence mode for GPU 00000000:65:00.0.\nAll done.\n")
    query = ["--query-gpu=persistence_mode", "--format=csv,noheader"]
    assert smi(state, *query)[1] == "Disabled\nEnabled\n"
    assert smi(state, "-i", "1", "-pm", "1")[1] == "Persistence mode is already Enabled for GPU 00000000:65:00.0.\nAll done.\n"


def test_a_wrong_persistence_mode_is_refused(smi):
    assert smi(host(), "-pm", "2")[:2] == (2, "Invalid persistence mode: 2\nTerminating early due to previous errors.\n")


def test_a_reset_brings_a_lost_gpu_back_and_is_counted(smi):
    code, output, state = smi(failing(15, 0), "-r", "-i", "0")
    assert (code, output) == (0, "GPU 00000000:17:00.0 was successfully reset.\nAll done.\n")
    assert [gpu.get("resets", 0) for gpu in state["gpus"]] == [1, 0]
    assert smi(state, "-L")[0] == 0


def test_a_gpu_in_use_is_not_reset(smi):
    state = host()
    state["gpus"][0]["processes"] = [{"pid": 1, "process_name": "nv-hostengine"}]
    code, output, after = smi(state, "--gpu-reset", "-i", "0")
    assert code == 255
    assert output.startswith("The following GPUs could not be reset:\n  GPU 00000000:17:00.0: In use by another client\n")
    assert after == state


def test_the_stand_in_says_that_it_is_one(smi):
    code, output, _ = smi(host(), "--version")
    assert code == 0
    assert output.splitlines()[0] == "NVIDIA-SMI version  : 535.309.01 (STAND-IN, not NVIDIA's program)"


def test_the_overview_names_driver_and_cuda_version(smi):
    code, output, _ = smi(host())
    assert code == 0
    assert "Driver Version: 535.309.01" in output
    assert "CUDA Version: 12.2" in output


def test_the_fields_are_listed(smi):
    code, output, _ = smi(host(gpus=[]), "--help-query-gpu")
    assert (code, '"compute_cap"\n' in output, '"ecc.errors.corrected.volatile.dram"\n' in output) == (0, True, True)


@pytest.mark.parametrize("flavour", ["open", "proprietary"])
def test_the_projects_own_reader_understands_program_and_files(tmp_path, monkeypatch, flavour):
    state = host(flavour=flavour)
    (tmp_path / "gpu.json").write_text(json.dumps(state))
    monkeypatch.setenv("GROUNDWORK_STANDIN_STATE", str(tmp_path / "gpu.json"))
    standin.write_host(tmp_path, state)
    modules = ["nvidia", "nvidia_drm", "nvidia_modeset", "nvidia_uvm"]
    assert nvidia_state.loaded_driver(tmp_path) == {"modules": modules, "version": "535.309.01", "flavour": flavour}
    assert [(gpu["address"], gpu["id"], gpu["driver"]) for gpu in pci.gpus(tmp_path)] == [
        ("0000:17:00.0", "10de:2235", "nvidia"),
        ("0000:65:00.0", "10de:2235", "nvidia"),
    ]
    assert nvidia_state.nvidia_smi(str(PROGRAM), loaded=True, root=tmp_path, timeout=30) == {
        "path": str(PROGRAM),
        "exit_code": 0,
        "timed_out": False,
        "message": None,
        "gpus": [
            {"name": "NVIDIA A40", "uuid": "GPU-1a", "address": "0000:17:00.0"},
            {"name": "NVIDIA A40", "uuid": "GPU-2b", "address": "0000:65:00.0"},
        ],
    }


def test_the_projects_own_reader_reports_a_mismatch(tmp_path, monkeypatch):
    (tmp_path / "gpu.json").write_text(json.dumps(host(library_version="535.320.02")))
    monkeypatch.setenv("GROUNDWORK_STANDIN_STATE", str(tmp_path / "gpu.json"))
    result = nvidia_state.nvidia_smi(str(PROGRAM), loaded=True, root=tmp_path, timeout=30)
    assert (result["exit_code"], result["gpus"], result["message"]) == (
        18,
        [],
        "Failed to initialize NVML: Driver/library version mismatch NVML library version: 535.320",
    )


def test_a_host_without_loaded_driver_has_unbound_gpus_and_no_files_of_the_driver(tmp_path):
    standin.write_host(tmp_path, host(driver_version=None))
    assert nvidia_state.loaded_driver(tmp_path) == {"modules": [], "version": None, "flavour": None}
    assert [gpu["driver"] for gpu in pci.gpus(tmp_path)] == [None, None]
