"""NVIDIA's GPUs and NVSwitches on the PCI bus, as sysfs shows them to any user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.host_inventory import read_text

NVIDIA = "0x10de"
# VGA and 3D controllers; a card's audio (0403), USB (0c03) and UCSI (0c80) functions are no GPUs.
GPU_CLASSES = ("0x0300", "0x0302")
BRIDGE_CLASS = "0x0680"
# nForce chipsets call their network function a bridge (MCP55 Ethernet, 10de:0373); their ids end below this one.
FIRST_SWITCH_ID = 0x1000


def nvidia_functions(root: Path) -> list[Path]:
    """Return the sysfs directories of NVIDIA's physical functions, in bus order."""
    devices = sorted((root / "sys/bus/pci/devices").glob("*"))
    # physfn marks a virtual function (vGPU): it is a share of a GPU that is listed already.
    return [path for path in devices if read_text(path / "vendor") == NVIDIA and not (path / "physfn").exists()]


def gpus(root: Path) -> list[dict[str, Any]]:
    """Return the GPUs with ids in lspci's notation, the bound driver and the NUMA node."""

    def identify(path: Path, prefix: str = "") -> str:
        return ":".join((read_text(path / f"{prefix}{part}") or "")[2:] for part in ("vendor", "device"))

    def numa_node(path: Path) -> int | None:
        node = int(read_text(path / "numa_node") or -1)
        return node if node >= 0 else None

    return [
        {
            "address": path.name,
            "id": identify(path),
            "subsystem": identify(path, "subsystem_"),
            "class": kind[2:6],
            "driver": (path / "driver").resolve().name if (path / "driver").exists() else None,
            "numa_node": numa_node(path),
        }
        for path in nvidia_functions(root)
        if (kind := read_text(path / "class") or "").startswith(GPU_CLASSES)
    ]


def nvswitch(root: Path) -> dict[str, Any]:
    """Return whether Fabric Manager has switches to manage, and the switches' PCI addresses.

    The switches of NVLink 5 (B200, GB200) are no PCI functions of NVIDIA's: they hang behind an InfiniBand
    adapter whose vital product data, readable by root, says SW_MNG.
    """
    addresses = [
        path.name
        for path in nvidia_functions(root)
        if (read_text(path / "class") or "").startswith(BRIDGE_CLASS)
        and int(read_text(path / "device") or "0", 16) >= FIRST_SWITCH_ID
    ]
    adapters = (root / "sys/class/infiniband").glob("*/device/vpd") if gpus(root) else ()
    nvlink5 = any("SW_MNG" in (read_text(vpd) or "") for vpd in adapters)
    return {"present": bool(addresses) or nvlink5, "addresses": addresses, "nvlink5": nvlink5}
