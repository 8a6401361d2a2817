#!/usr/bin/env python3
"""STAND-IN for nvidia-smi. It is not NVIDIA's program and there is no GPU behind it: its answers come from a JSON file.

Messages, exit codes and CSV headers are those that nvidia-smi 535.309.01 gave on top of a made-up NVML library: all on
standard output, nothing on standard error, and NVML's return value as exit code where the real program has it so. The texts
of -r come from the program's own strings and from a report in public; --version is that of 550.

The file is the one that GROUNDWORK_STANDIN_STATE names, else /etc/groundwork-standin/gpu.json:

    {"driver_version": "580.95.05", "flavour": "open", "cuda_version": "13.0",
     "gpus": [{"address": "0000:17:00.0", "id": "10de:2235", "name": "NVIDIA A40", "uuid": "GPU-1a",
               "compute_cap": "8.6", "memory.total": 46068,
               "processes": [{"pid": 4711, "process_name": "python3", "used_gpu_memory": 512}]}]}

driver_version is that of the loaded module, null if none is loaded. library_version is that of the libraries, if it differs.
failure, of the whole or of one GPU, is the NVML return value that opening it gives, such as 15 for a GPU that is lost. Other keys
of a GPU are fields of --query-gpu. -pm and -r write the file: persistence_mode, and resets, which counts; a reset clears failure.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

STATE = "/etc/groundwork-standin/gpu.json"
INSUFFICIENT_PERMISSIONS, NOT_FOUND, NOT_LOADED, LIBRARY_MISSING, MISMATCH = 4, 6, 9, 12, 18
#: The NVML return values that become exit codes; all others end with 255.
EXIT_CODES = (2, 3, 4, 6, 8, 9, 11, 12, 14, 15, 17, 18, 19, 23)

#: What "Failed to initialize NVML" is followed by.
INIT_ERRORS = {
    1: "Uninitialized", 2: "Invalid Argument", 3: "N/A", 4: "Insufficient Permissions", 5: "Already Initialized", 6: "Not Found",
    7: "Insufficient Size", 8: "Insufficient External Power", 10: "Timeout", 11: "Interrupt Request Issue",
    14: "Corrupted infoROM", 15: "GPU is lost", 16: "GPU requires reset", 17: "GPU access blocked by the operating system",
    18: "Driver/library version mismatch", 19: "In use by another client", 20: "Insufficient Memory",
    23: "Insufficient Resources", 24: "Invalid Frequency",
}  # fmt: skip
#: What "Unable to determine the device handle for ..." is followed by.
DEVICE_ERRORS = {
    4: "Insufficient Permissions",
    8: "Unable to communicate with GPU because it is insufficiently powered.\nThis may be because not all required external "
    "power cables are\nattached, or the attached cables are not seated properly.\n\n",
    11: "The NVIDIA kernel module detected an issue with GPU interrupts.Consult the \"Common Problems\" Chapter of the NVIDIA "
    "Driver README for\ndetails and steps that can be taken to resolve this issue.",
    15: "GPU is lost.  Reboot the system to recover this GPU\n\n",
    16: "A GPU reset must occur before this GPU can be used again.\n\n.",
}  # fmt: skip
NO_LIBRARY = (
    "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver is "
    "properly installed and present in your system.\n"
    "Please also try adding directory that contains libnvidia-ml.so to your system PATH."
)
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is "
    "installed and running.\n"
)
UNREADABLE_DEVICES = "No devices were found. Please make sure /dev/nvidia* files are readable by current user."
IN_USE = (
    "\n1 device is currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, graphics "
    "application such as an X server, or a monitoring application such as another instance of nvidia-smi). Please first kill all "
    "processes using this device and all compute applications running in the system."
)

#: The fields of --query-gpu, by what their names begin with.
GROUPS = {
    "": "timestamp driver_version count name serial uuid index display_mode display_active persistence_mode addressing_mode "
    "vbios_version pstate compute_mode compute_cap fan.speed enforced.power.limit c2c.mode",
    "pci.": "bus_id domain bus device baseClass subClass device_id sub_device_id",
    "pcie.link.gen.": "current gpucurrent max gpumax hostmax",
    "pcie.link.width.": "current max",
    "accounting.": "mode buffer_size",
    "inforom.": "img oem ecc pwr",
    "reset_status.": "reset_required drain_and_reset_recommended",
    "clocks_event_reasons.": "supported active gpu_idle applications_clocks_setting sw_power_cap hw_slowdown hw_thermal_slowdown "
    "hw_power_brake_slowdown sw_thermal_slowdown sync_boost",
    "memory.": "total reserved used free",
    "protected_memory.": "total used free",
    "utilization.": "gpu memory encoder decoder jpeg ofa",
    "encoder.stats.": "sessionCount averageFps averageLatency",
    **{f"{kind}.mode.": "current pending" for kind in ("ecc", "mig")},
    **{
        f"ecc.errors.{kind}.{span}.": "device_memory dram register_file l1_cache l2_cache texture_memory cbu sram total"
        for kind in ("corrected", "uncorrected")
        for span in ("volatile", "aggregate")
    },
    "retired_pages.": "single_bit_ecc.count double_bit.count pending",
    "temperature.": "gpu gpu.tlimit memory",
    "power.": "management draw draw.average draw.instant limit default_limit min_limit max_limit",
    "clocks.current.": "graphics sm memory video",
    "clocks.applications.": "graphics memory",
    "clocks.default_applications.": "graphics memory",
    "clocks.max.": "graphics sm memory",
    "gsp.mode.": "current default",
    "fabric.": "state status",
}
FIELDS = {prefix + name for prefix, names in GROUPS.items() for name in names.split()}
APP_FIELDS = {"timestamp", "gpu_name", "gpu_bus_id", "gpu_serial", "gpu_uuid", "pid", "process_name", "used_gpu_memory"}
#: Other names of fields; a header shows the field's own name.
ALIASES = {
    "gpu_name": "name", "gpu_serial": "serial", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id", "inforom.image": "inforom.img",
    "inforom.power": "inforom.pwr", "retired_pages.sbe": "retired_pages.single_bit_ecc.count",
    "retired_pages.dbe": "retired_pages.double_bit.count", "clocks.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm", "clocks.mem": "clocks.current.memory", "clocks.video": "clocks.current.video",
    "clocks.max.gr": "clocks.max.graphics", "clocks.max.mem": "clocks.max.memory",
    "clocks.applications.gr": "clocks.applications.graphics", "clocks.applications.mem": "clocks.applications.memory",
}  # fmt: skip
APP_ALIASES = {"name": "process_name", "used_memory": "used_gpu_memory"}
UNITS = {
    r"(protected_)?memory\..+|used_gpu_memory": "MiB",
    r"utilization\..+|fan\.speed": "%",
    r"power\.(?!management).+|enforced\.power\.limit": "W",
    r"clocks\..+": "MHz",
}


class Refusal(Exception):  # noqa: N818 - an answer of the program, not an error of this one
    """The answer is this text and this exit code."""

    def __init__(self, text: str, code: int) -> None:
        """Keep the text and the exit code."""
        super().__init__(text)
        self.code = code


# --- files of the kernel


def write_pci_function(root: Path, address: str, ids: str, kind: str, driver: str | None = None) -> Path:
    """Write a PCI function as sysfs shows it, below root, and return its directory; kind is its class, such as 030200."""
    path = root / "sys/bus/pci/devices" / address
    path.mkdir(parents=True, exist_ok=True)
    names = ("vendor", "device", "subsystem_vendor", "subsystem_device", "class")
    for name, value in zip(names, [*ids.split(":"), "10de", "145a", kind], strict=True):
        (path / name).write_text(f"0x{value}\n")
    (path / "numa_node").write_text("-1\n")
    if driver:
        target = root / "sys/bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (path / "driver").symlink_to(target)
    return path


def version_text(version: str, flavour: str) -> str:
    """Return the text of /proc/driver/nvidia/version, which has another form for the open modules."""
    line = (
        f"NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (dvs-builder@STAND-IN)"
        if flavour == "open"
        else f"NVIDIA UNIX x86_64 Kernel Module  {version}  Tue May  5 10:00:00 UTC 2026"
    )
    return f"NVRM version: {line}\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"


def write_host(root: Path, state: dict[str, Any]) -> None:
    """Write what the kernel of a host in this state shows in /proc and /sys, below root."""
    version = state.get("driver_version")
    for gpu in state["gpus"]:
        driver = gpu.get("driver", "nvidia") if version else gpu.get("driver")
        write_pci_function(root, gpu["address"], gpu["id"], gpu.get("class", "030200"), driver)
    (root / "proc").mkdir(parents=True, exist_ok=True)
    modules = ("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia") if version else ()
    (root / "proc/modules").write_text("".join(f"{name} 16384 0 - Live 0x0000000000000000\n" for name in modules))
    if version:
        procfs = root / "proc/driver/nvidia"
        procfs.mkdir(parents=True, exist_ok=True)
        (procfs / "version").write_text(version_text(version, state.get("flavour", "proprietary")))
        for gpu in state["gpus"]:
            (procfs / "gpus" / gpu["address"]).mkdir(parents=True, exist_ok=True)
            (procfs / "gpus" / gpu["address"] / "information").write_text(
                f"Model: \t\t {gpu['name']}\nIRQ:   \t\t 16\nGPU UUID: \t {gpu['uuid']}\nBus Location: \t {gpu['address']}\n"
            )


# --- the program


def exit_code(code: int) -> int:
    """Return the exit code of an NVML return value."""
    return code if code in EXIT_CODES else 255


def initialize(state: dict[str, Any]) -> None:
    """Refuse as NVML's initialisation does."""
    loaded = state.get("driver_version")
    library = state.get("library_version", loaded)
    failure = state.get("failure") or (NOT_LOADED if loaded is None else MISMATCH if library != loaded else 0)
    if failure in (LIBRARY_MISSING, NOT_LOADED):
        raise Refusal(NO_LIBRARY if failure == LIBRARY_MISSING else NO_DRIVER, failure)
    if failure:
        text = f"Failed to initialize NVML: {INIT_ERRORS.get(failure, 'Unknown Error')}"
        if failure == MISMATCH:
            text += f"\nNVML library version: {'.'.join(str(library).split('.')[:2])}"
        raise Refusal(text, exit_code(failure))


def bus_id(gpu: dict[str, Any]) -> str:
    """Return the address with the eight digits that NVML gives the domain."""
    return f"0000{gpu['address'].upper()}"


def chosen(state: dict[str, Any], selector: str | None) -> list[tuple[int, dict[str, Any]]]:
    """Return number and record of the GPUs that -i selects, all of them without -i, and refuse where one can't be opened."""
    wanted = selector.upper().split(",") if selector is not None else None
    gpus = [
        (index, gpu)
        for index, gpu in enumerate(state["gpus"])
        if wanted is None or not {str(index), gpu["uuid"].upper(), bus_id(gpu), gpu["address"].upper()}.isdisjoint(wanted)
    ]
    if not gpus:
        raise Refusal("No devices were found", NOT_FOUND)
    readable = [(index, gpu) for index, gpu in gpus if gpu.get("failure") != INSUFFICIENT_PERMISSIONS]
    if not readable:
        raise Refusal(UNREADABLE_DEVICES, INSUFFICIENT_PERMISSIONS)
    for index, gpu in readable:
        if failure := gpu.get("failure"):
            raise Refusal(handle_error(f"GPU{index}", failure), exit_code(failure))
    return readable


def handle_error(name: str, failure: int) -> str:
    """Return what is said of a GPU that can't be opened."""
    return f"Unable to determine the device handle for {name}: {DEVICE_ERRORS.get(failure, 'Unknown Error')}"


def list_gpus(state: dict[str, Any]) -> tuple[str, int]:
    """Answer -L, which ends with 0 if there is no GPU at all."""
    lines, code = [], 0
    for index, gpu in enumerate(state["gpus"]):
        if failure := gpu.get("failure"):
            code = exit_code(failure)
            lines.append(handle_error(f"gpu {index}", failure))
        else:
            lines.append(f"GPU {index}: {gpu['name']} (UUID: {gpu['uuid']})")
    return "\n".join(lines) or "No devices found.", code


def field(state: dict[str, Any], index: int, gpu: dict[str, Any], name: str) -> Any:
    """Return the value of a field of --query-gpu; None is printed as [N/A]."""
    vendor, device = gpu["id"].upper().split(":")
    domain, bus, slot = re.split(r"[:.]", gpu["address"])[:3]
    derived = {
        "timestamp": "2026/11/30 12:00:00.000",
        "driver_version": state["driver_version"],
        "count": len(state["gpus"]),
        "index": index,
        "pci.bus_id": bus_id(gpu),
        "pci.domain": f"0x{domain}",
        "pci.bus": f"0x{bus}",
        "pci.device": f"0x{slot}",
        "pci.device_id": f"0x{device}{vendor}",
        "persistence_mode": "Disabled",
    }
    return gpu.get(name, derived.get(name))


def unit(name: str) -> str | None:
    """Return the unit that a field is printed with."""
    return next((unit for pattern, unit in UNITS.items() if re.fullmatch(pattern, name)), None)


def fields(text: str, known: set[str], aliases: dict[str, str]) -> list[str]:
    """Return the fields of a query by their own names."""
    names = [aliases.get(name, name).replace("clocks_throttle_reasons.", "clocks_event_reasons.") for name in text.split(",")]
    for given, name in zip(text.split(","), names, strict=True):
        if name not in known:
            raise Refusal(f'Field "{given}" is not a valid field to query.\n', 2)
    return names


def table(names: list[str], rows: list[list[Any]], style: str | None) -> str:
    """Return the answer to a query as CSV."""
    if style is None:
        raise Refusal("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n", 2)
    modifiers = style.split(",")
    if not {"csv", "noheader", "nounits"}.issuperset(modifiers):
        raise Refusal("Format modifier is not recognized.", 2)
    if "csv" not in modifiers:
        raise Refusal("Format modifier --format=csv is mandatory.", 2)
    units = [None if "nounits" in modifiers else unit(name) for name in names]
    header = [] if "noheader" in modifiers else [[f"{name} [{unit(name)}]" if unit(name) else name for name in names]]
    cells = [
        [
            "[N/A]" if value is None else f"{value} {suffix}" if suffix else str(value)
            for value, suffix in zip(row, units, strict=True)
        ]
        for row in rows
    ]
    return "\n".join(", ".join(line) for line in header + cells)


def query_gpus(state: dict[str, Any], options: dict[str, str]) -> str:
    """Answer --query-gpu."""
    names = fields(options["--query-gpu"], FIELDS, ALIASES)
    gpus = chosen(state, options.get("-i"))
    return table(names, [[field(state, index, gpu, name) for name in names] for index, gpu in gpus], options.get("--format"))


def query_processes(state: dict[str, Any], options: dict[str, str]) -> str:
    """Answer --query-compute-apps."""
    names = fields(options["--query-compute-apps"], APP_FIELDS, APP_ALIASES)
    rows = [
        [process.get(name, field(state, index, gpu, ALIASES.get(name, name))) for name in names]
        for index, gpu in chosen(state, options.get("-i"))
        for process in gpu.get("processes", ())
    ]
    return table(names, rows, options.get("--format"))


def set_persistence(state: dict[str, Any], options: dict[str, str]) -> str:
    """Answer -pm."""
    mode = {"0": "Disabled", "1": "Enabled", "DISABLED": "Disabled", "ENABLED": "Enabled"}.get(options["-pm"].upper())
    if mode is None:
        raise Refusal(f"Invalid persistence mode: {options['-pm']}\nTerminating early due to previous errors.", 2)
    lines = []
    for _, gpu in chosen(state, options.get("-i")):
        already = gpu.get("persistence_mode", "Disabled") == mode
        gpu["persistence_mode"] = mode
        lines.append(
            f"Persistence mode is already {mode} for GPU {bus_id(gpu)}."
            if already
            else f"{mode} persistence mode for GPU {bus_id(gpu)}."
        )
    return "\n".join([*lines, "All done."])


def reset(state: dict[str, Any], options: dict[str, str]) -> str:
    """Answer -r, which resets a lost GPU too and refuses one that somebody uses."""
    selected = [gpu for _, gpu in chosen({**state, "gpus": [{**gpu, "failure": 0} for gpu in state["gpus"]]}, options.get("-i"))]
    gpus = [gpu for gpu in state["gpus"] if gpu["uuid"] in [other["uuid"] for other in selected]]
    if busy := [gpu for gpu in gpus if gpu.get("processes")]:
        lines = [f"  GPU {bus_id(gpu)}: In use by another client" for gpu in busy]
        raise Refusal("\n".join(["The following GPUs could not be reset:", *lines, IN_USE]), 255)
    for gpu in gpus:
        gpu.update(failure=0, resets=gpu.get("resets", 0) + 1, persistence_mode="Disabled")
    return "\n".join([*(f"GPU {bus_id(gpu)} was successfully reset." for gpu in gpus), "All done."])


def overview(state: dict[str, Any], options: dict[str, str]) -> str:
    """Answer without arguments: the head of the table, and two lines a GPU."""
    line = "+" + "-" * 89 + "+"
    driver = state["driver_version"]
    head = f"| NVIDIA-SMI {driver:<22} Driver Version: {driver:<14} CUDA Version: {state['cuda_version']:<8} |"
    rows = []
    for index, gpu in chosen(state, options.get("-i")):
        mode = "On" if gpu.get("persistence_mode") == "Enabled" else "Off"
        memory = f"{gpu.get('memory.used', 0):>5}MiB / {gpu.get('memory.total', 0):>5}MiB"
        rows += [f"| {index:>3}  {gpu['name']:<28} {mode:>4}  | {bus_id(gpu):<20} | {memory:<22} |", line]
    return "\n".join([line, head, line, *rows])


def version(state: dict[str, Any]) -> str:
    """Answer --version."""
    library = ".".join(state["driver_version"].split(".")[:2])
    return (
        f"NVIDIA-SMI version  : {state['driver_version']} (STAND-IN, not NVIDIA's program)\nNVML version        : {library}\n"
        f"DRIVER version      : {state['driver_version']}\nCUDA Version        : {state['cuda_version']}"
    )


WITH_VALUE = {"-i": "-i", "--id": "-i", "-pm": "-pm", "--persistence-mode": "-pm", "--format": "--format",
              "--query-gpu": "--query-gpu", "--query-compute-apps": "--query-compute-apps"}  # fmt: skip
ALONE = {"-L": "-L", "--list-gpus": "-L", "-r": "-r", "--gpu-reset": "-r", "--version": "--version",
         "--help-query-gpu": "--help-query-gpu"}  # fmt: skip


def parse(arguments: list[str]) -> dict[str, str]:
    """Return the options by their short names."""
    options, rest = {}, list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in WITH_VALUE and (equals or rest):
            options[WITH_VALUE[name]] = value if equals else rest.pop(0)
        elif name in ALONE and not equals:
            options[ALONE[name]] = ""
        else:
            raise Refusal(f"ERROR: Option {name}{equals}{value} is not recognized. Please run 'nvidia-smi -h'.\n", 255)
    return options


def answer(state: dict[str, Any], arguments: list[str]) -> tuple[str, int]:
    """Return what nvidia-smi prints and its exit code; -pm and -r change the state."""
    try:
        initialize(state)
        options = parse(arguments)
        if "-L" in options:
            if "-i" in options:
                raise Refusal("ERROR: Option -i is not valid for this command. Please run 'nvidia-smi -h' for help.\n", 2)
            return list_gpus(state)
        if "--version" in options:
            return version(state), 0
        if "--help-query-gpu" in options:
            listed = "\n\n".join(f'"{name}"' for name in sorted(FIELDS))
            return f'List of valid properties to query for the switch "--query-gpu":\n\n{listed}\n', 0
        commands = {"--query-gpu": query_gpus, "--query-compute-apps": query_processes, "-pm": set_persistence, "-r": reset}
        given = [name for name in commands if name in options]
        if len(given) > 1:
            raise Refusal("Invalid combination of input arguments. Only one device modification may be done at a time.\n", 2)
        return (commands[given[0]] if given else overview)(state, options), 0
    except Refusal as refusal:
        return str(refusal), refusal.code


def main() -> int:
    """Answer from the file of the state, and write it again if it changed."""
    path = Path(os.environ.get("GROUNDWORK_STANDIN_STATE", STATE))
    before = path.read_text(encoding="utf-8")
    state = json.loads(before)
    text, code = answer(state, sys.argv[1:])
    print(text)
    if state != json.loads(before):
        path.write_text(json.dumps(state, indent=2), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
