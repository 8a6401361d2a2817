"""Compare what the project reads and concludes about a GPU host with what nvidia-smi of that host says. Read-only.

tests/gpu/run.sh runs this: one line per check, then all of it as JSON; exit code 0 unless a check failed.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NO_GPU = "skipped: no NVIDIA GPU on this machine"
TIMEOUT = 120  # seconds; the first call on a host with eight GPUs and no persistence mode is slow
#: Compute capabilities of each generation: what nvidia-smi says must fit the generation that the PCI id stands for.
CAPABILITIES = {
    "kepler": r"3\.\d", "maxwell": r"5\.\d", "pascal": r"6\.\d", "volta": r"7\.[02]", "turing": r"7\.5", "ampere": r"8\.[067]",
    "ada": r"8\.9", "hopper": r"9\.0", "blackwell": r"1[0-2]\.\d",
}  # fmt: skip


class SkippedError(Exception):
    """A check that does not apply to this machine; the message says why."""


def project_module(name: str) -> Any:
    """Import one of module_utils, with Ansible's package around it or an empty one where Ansible is missing."""
    try:
        utils = importlib.import_module("ansible.module_utils")
    except ImportError:
        utils = types.ModuleType("ansible.module_utils")
        utils.__path__ = []
        sys.modules |= {"ansible": types.ModuleType("ansible"), utils.__name__: utils}
    if str(ROOT / "module_utils") not in utils.__path__:
        utils.__path__.append(str(ROOT / "module_utils"))
    return importlib.import_module(f"ansible.module_utils.{name}")


class Machine:
    """The facts of a host, and its nvidia-smi."""

    def __init__(self, root: Path, find: Callable[[str], str | None]) -> None:
        """Gather the facts of the host below root; find returns the path of a program."""
        self.facts = project_module("host_facts").gather(root, find, TIMEOUT)
        self.program = find("nvidia-smi")

    def nvidia_smi(self, *arguments: str) -> tuple[int, str]:
        """Return exit code and output of nvidia-smi."""
        assert self.program, "the driver is loaded, but there is no program nvidia-smi"
        result = subprocess.run([self.program, *arguments], capture_output=True, text=True, timeout=TIMEOUT, check=False)
        return result.returncode, result.stdout.strip()

    def query(self, field: str) -> list[str]:
        """Return the value of a field for each GPU."""
        code, output = self.nvidia_smi(f"--query-gpu={field}", "--format=csv,noheader")
        assert code == 0, f"nvidia-smi ended with {code}: {output}"
        return output.splitlines()

    @property
    def loaded(self) -> str:
        """Return the version of the loaded driver."""
        version = self.facts["driver"]["version"]
        assert version, "no NVIDIA driver is loaded"
        return str(version)

    def generations(self) -> list[str | None]:
        """Return the generation of each GPU by its PCI id."""
        if not (ROOT / "module_utils/gpu_catalog.py").exists():
            raise SkippedError("this version of the project has no table of GPU generations")
        return [project_module("gpu_catalog").generation(gpu["id"]) for gpu in self.facts["gpus"]]


# Each check returns what it saw. It fails by an assertion.


def ansible_gathers_the_same_facts(machine: Machine) -> str:
    """A module that Ansible packs up and sends has all it needs."""
    program = shutil.which("ansible") or next((str(path) for path in [ROOT / ".venv/bin/ansible"] if path.exists()), None)
    if program is None:
        raise SkippedError("there is no Ansible on this machine")
    result = subprocess.run(
        [program, "localhost", "-m", "groundwork_facts"],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    facts = json.loads(result.stdout.partition("=>")[2])["ansible_facts"]["groundwork_gpu"]
    for name in ("gpus", "driver", "kernel", "driver_drift"):
        assert facts[name] == machine.facts[name], f"{name}: {facts[name]} instead of {machine.facts[name]}"
    return "gpus, driver, kernel and driver_drift are those of this program"


def every_gpu_belongs_to_a_known_generation(machine: Machine) -> str:
    """The table of PCI ids knows the card."""
    seen = dict(zip((gpu["id"] for gpu in machine.facts["gpus"]), machine.generations(), strict=True))
    assert all(seen.values()), f"not in the table: {[gpu for gpu, generation in seen.items() if not generation]}"
    return ", ".join(f"{gpu} {generation}" for gpu, generation in seen.items())


def the_compute_capability_fits_the_generation(machine: Machine) -> str:
    """The table of PCI ids is right about the card."""
    capabilities = machine.query("compute_cap")
    assert all(re.fullmatch(r"\d+\.\d+", text) for text in capabilities), f"compute_cap is {capabilities}"
    for text, generation in zip(capabilities, machine.generations(), strict=True):
        assert generation is None or re.fullmatch(CAPABILITIES[generation], text), f"{generation} with {text}"
    return ", ".join(sorted(set(capabilities)))


def the_loaded_version_is_that_of_nvidia_smi(machine: Machine) -> str:
    """/proc is read correctly."""
    assert set(machine.query("driver_version")) == {machine.loaded}, f"{machine.query('driver_version')}, not {machine.loaded}"
    return machine.loaded


def the_loaded_version_is_that_of_the_module_file(machine: Machine) -> str:
    """The version inside the file of the running kernel's module is read correctly."""
    release = machine.facts["kernel"]["running"]
    version = machine.facts["driver_drift"]["will_boot"].get(release)
    if version is None:
        raise SkippedError(f"kernel {release} has no module file here, as in a container")
    assert version == machine.loaded, f"{version}, not {machine.loaded}"
    return str(version)


def the_flavour_is_told(machine: Machine) -> str:
    """The first line of the driver's version is understood."""
    flavour = machine.facts["driver"]["flavour"]
    assert flavour in ("open", "proprietary"), f"flavour is {flavour}"
    return str(flavour)


def persistence_is_what_nvidia_smi_says(machine: Machine) -> str:
    """A daemon that runs with persistence mode has it on; without the daemon it may be on by nvidia-smi -pm."""
    modes = machine.query("persistence_mode")
    assert not machine.facts["persistence"] or set(modes) == {"Enabled"}, f"the daemon runs, and nvidia-smi says {modes}"
    return f"daemon {'on' if machine.facts['persistence'] else 'off'}, nvidia-smi: {', '.join(sorted(set(modes)))}"


def nvidia_smi_lists_every_gpu_on_the_bus(machine: Machine) -> str:
    """None fell off, and all have the driver; a container may be given a part of them."""
    listed, on_bus = machine.facts["nvidia_smi"]["gpus"], machine.facts["gpus"]
    assert machine.facts["nvidia_smi"]["exit_code"] == 0, machine.facts["nvidia_smi"]["message"]
    if machine.facts["virtualization"]["container"] and len(listed) < len(on_bus):
        raise SkippedError(f"this container has {len(listed)} of {len(on_bus)} GPUs")
    assert len(listed) == len(on_bus), f"{len(listed)} listed, {len(on_bus)} on the PCI bus"
    return f"{len(listed)}"


def a_bad_field_ends_with_exit_code_2(machine: Machine) -> str:
    """Messages are on standard output, and NVML's return value is the exit code."""
    code, output = machine.nvidia_smi("--query-gpu=groundwork", "--format=csv")
    assert (code, output) == (2, 'Field "groundwork" is not a valid field to query.'), f"{code}: {output}"
    return output


def the_installed_driver_is_in_order(machine: Machine) -> str:
    """Packages, module file and loaded module agree."""
    if not machine.facts["driver_packages"]:
        raise SkippedError("no package of the driver is installed here, as in a container or after a runfile")
    drift = machine.facts["driver_drift"]
    assert drift["state"] == "in_order", drift["message"]
    return str(drift["message"])


def the_solver_accepts_what_runs(machine: Machine) -> str:
    """A combination that works must not be refused, whatever repository it came from."""
    if not (ROOT / "module_utils/gpu_solver.py").exists():
        raise SkippedError("this version of the project has no solver")
    driver = {"version": machine.loaded, "branch": "", "flavour": machine.facts["driver"]["flavour"], "desktop": False}
    refusals = []
    for source in ("distribution", "cuda_repository", "mirror"):
        wishes = {"driver": {**driver, "source": source}, "cuda": [], "cudnn": [], "container_toolkit": ""}
        answer = project_module("gpu_solver").solve(machine.facts, wishes, None)
        if answer["ok"]:
            return f"{machine.loaded} ({driver['flavour']}) from {source}"
        refusals += [f"{source}: {reason['message']}" for reason in answer["reasons"]]
    raise AssertionError("; ".join(refusals))


CHECKS: tuple[Callable[[Machine], str], ...] = (
    ansible_gathers_the_same_facts,
    every_gpu_belongs_to_a_known_generation,
    the_compute_capability_fits_the_generation,
    the_loaded_version_is_that_of_nvidia_smi,
    the_loaded_version_is_that_of_the_module_file,
    the_flavour_is_told,
    persistence_is_what_nvidia_smi_says,
    nvidia_smi_lists_every_gpu_on_the_bus,
    a_bad_field_ends_with_exit_code_2,
    the_installed_driver_is_in_order,
    the_solver_accepts_what_runs,
)


def results(machine: Machine, checks: tuple[Callable[[Machine], str], ...]) -> Iterator[dict[str, str]]:
    """Run the checks; yield check, result (ok, FAILED, skipped) and detail of each."""
    for check in checks:
        try:
            result, detail = "ok", check(machine)
        except SkippedError as error:
            result, detail = "skipped", str(error)
        except AssertionError as error:
            result, detail = "FAILED", str(error)
        except Exception as error:  # Whatever breaks a check, the others must still run.
            result, detail = "FAILED", repr(error)
        yield {"check": check.__name__.replace("_", " "), "result": result, "detail": detail}


def main(root: Path = Path("/"), find: Callable[[str], str | None] = shutil.which) -> int:
    """Run all checks on the machine whose file tree lies below root."""
    if not project_module("pci").gpus(root):
        print(NO_GPU)
        return 0
    machine = Machine(root, find)
    report = []
    for entry in results(machine, CHECKS):
        print(f"{entry['result']:<8}{entry['check']}: {entry['detail']}", flush=True)
        report.append(entry)
    print(json.dumps({"checks": report, "facts": machine.facts}, indent=2))
    return int(any(entry["result"] == "FAILED" for entry in report))


if __name__ == "__main__":
    sys.exit(main())
