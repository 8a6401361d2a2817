"""The NVIDIA driver as the kernel has it loaded, and what nvidia-smi says about it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

from ansible.module_utils.host_inventory import read_text

# Two forms (nv-procfs.c): "NVIDIA UNIX x86_64 Kernel Module  535.309.01  <date>" and
# "NVIDIA UNIX Open Kernel Module for x86_64  595.91.07  Release Build ...".
VERSION_LINE = re.compile(r"(Open )?Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)")
# MIG devices are listed below their GPU, indented and with a UUID that begins with MIG-.
DEVICE_LINE = re.compile(r"GPU \d+: |\s+MIG ")
GPU_LINE = re.compile(r"^GPU \d+: (?P<name>.+) \(UUID: (?P<uuid>GPU-\S+)\)", re.MULTILINE)


def loaded_driver(root: Path) -> dict[str, Any]:
    """Return the loaded GPU kernel modules, and version and flavour (open, proprietary) of NVIDIA's."""
    modules = [line.split()[0] for line in (read_text(root / "proc/modules") or "").splitlines()]
    match = VERSION_LINE.search(read_text(root / "proc/driver/nvidia/version") or "")
    return {
        "modules": sorted(name for name in modules if name == "nouveau" or name.startswith(("nvidia", "nova"))),
        "version": match.group(2) if match else read_text(root / "sys/module/nvidia/version"),
        "flavour": ("open" if match.group(1) else "proprietary") if match else None,
    }


def run_bounded(command: list[str], timeout: float) -> tuple[int | None, str]:
    """Run a command that may hang in the kernel; return exit code and output, (None, "") once the seconds are over.

    A killed child is never waited for: in uninterruptible sleep it does not die, and the caller would hang with it.
    It keeps none of the caller's own pipes open either.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, ""
    return process.returncode, output


def listed_gpus(output: str, root: Path) -> list[dict[str, str | None]]:
    """Return name, UUID and PCI address of each GPU in the output of nvidia-smi -L.

    The address comes from the driver's /proc tree; it is None as long as the driver keeps the UUID back there.
    """
    addresses = {}
    for information in (root / "proc/driver/nvidia/gpus").glob("*/information"):
        if match := re.search(r"^GPU UUID:\s*(\S+)", read_text(information) or "", re.MULTILINE):
            addresses[match.group(1)] = information.parent.name
    return [{**match.groupdict(), "address": addresses.get(match["uuid"])} for match in GPU_LINE.finditer(output)]


def nvidia_smi(path: str | None, loaded: bool, root: Path, timeout: float) -> dict[str, Any]:
    """Return what nvidia-smi -L says; it runs only with a loaded driver, since it would load one.

    nvidia-smi reports on stdout. Its exit code is NVML's return value, and 0 with no GPU at all: count the GPUs.
    """
    if not (path and loaded):
        return {"path": path, "exit_code": None, "timed_out": False, "message": None, "gpus": []}
    exit_code, output = run_bounded([path, "-L"], timeout)
    complaints = [line.strip() for line in output.splitlines() if not DEVICE_LINE.match(line)]
    return {
        "path": path,
        "exit_code": exit_code,
        "timed_out": exit_code is None,
        "message": " ".join(filter(None, complaints)) or None,
        "gpus": listed_gpus(output, root),
    }
