"""The module nvidia_driver_use on made-up hosts; stand-ins take the place of systemctl, modprobe, journalctl and nvidia-smi."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import nvidia_driver_use
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "standins"))
standin = importlib.import_module("nvidia_smi")

# Stand-in for all programs: what it is called with goes to `calls`. Units are files with a state, modules lines of proc/modules.
STAND_IN = """\
#!/bin/sh
cd "{root}"
echo "$(basename "$0") $*" >> calls
case "$(basename "$0") $1" in
  "systemctl show") if [ -e "units/$2" ]; then cat "units/$2"; else echo LoadState=not-found; echo ActiveState=inactive; fi;;
  "systemctl start" | "systemctl restart")
    [ ! -e "broken/$2" ] || exit 1
    sed -i "s/^ActiveState=.*/ActiveState=active/" "units/$2"
    if [ "$2" = nvidia-persistenced.service ]; then
      mkdir -p proc/77; printf '/usr/bin/nvidia-persistenced\\0' > proc/77/cmdline
      if grep -q no-persistence-mode "units/$2" && [ ! -e etc/systemd/system/$2.d/groundwork.conf ]; then
        printf '/usr/bin/nvidia-persistenced\\0--no-persistence-mode\\0' > proc/77/cmdline
      fi
    fi;;
  "systemctl stop") sed -i "s/^ActiveState=.*/ActiveState=inactive/" "units/$2"; rm -rf proc/77;;
  "modprobe -r") sed -i "/^$3 /d" proc/modules; [ "$3" != nvidia ] || rm -r sys/module/nvidia;;
  "modprobe "*)
    if [ -e refuses ]; then echo "modprobe: ERROR: could not insert '$1': Key was rejected by service"; exit 1; fi
    if ! grep -q "^$1 " proc/modules; then echo "$1 4096 0 - Live 0x0" >> proc/modules; fi
    if [ "$1" = nvidia ]; then mkdir -p sys/module/nvidia; cp installed sys/module/nvidia/version; fi;;
  "journalctl "*) cat log;;
  "nvidia-smi -L") [ ! -e smi ] || {{ cat smi; exit 9; }}; echo "GPU 0: NVIDIA A40 (UUID: GPU-1a)";;
esac
"""
UNIT = "LoadState=loaded\nActiveState={active}\nUnitFileState={enabled}\n"
UNIT += "ExecStart={{ path=/usr/bin/x ; argv[]={command} ; ignore_errors=no }}\n"
COMMAND = "/usr/bin/nvidia-persistenced --user nvpd"
OLD = "nvidia_uvm 4096 0 - Live 0x0\nnvidia_drm 4096 0 - Live 0x0\nnvidia_modeset 4096 1 nvidia_drm, Live 0x0\n"
OLD += "nvidia 4096 {more} nvidia_uvm,nvidia_modeset, Live 0x0\n"


@pytest.fixture
def host(tmp_path, run_module, monkeypatch):
    """Make a host, run the module on it, and return the result with the calls that change something."""
    for folder in ("proc", "units", "broken", "bin", "sys/module", "sys/bus/pci/devices"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for name in ("systemctl", "modprobe", "journalctl", "nvidia-smi"):
        (tmp_path / "bin" / name).write_text(STAND_IN.format(root=tmp_path))
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "log").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(nvidia_driver_use, "ROOT", tmp_path)

    def run(version, *, check=False, flavour="", fabric_manager=False, **differences):
        state = {"loaded": "", "modules": "", "gpu": True, "persistenced": (), "fabric": (), **differences}
        (tmp_path / "calls").write_text("")
        (tmp_path / "installed").write_text(version)
        (tmp_path / "proc/modules").write_text(state["modules"])
        if state["loaded"]:
            (tmp_path / "sys/module/nvidia").mkdir()
            (tmp_path / "sys/module/nvidia/version").write_text(f"{state['loaded']}\n")
        if state["gpu"]:
            standin.write_pci_function(tmp_path, "0000:17:00.0", "10de:2235", "0302")
        for name, unit in (("nvidia-persistenced", state["persistenced"]), ("nvidia-fabricmanager", state["fabric"])):
            if unit:
                active, enabled, *command = unit
                text = UNIT.format(active=active, enabled=enabled, command=(command or [COMMAND])[0])
                (tmp_path / f"units/{name}.service").write_text(text)
        result = run_module(nvidia_driver_use, version=version, flavour=flavour, check=check, fabric_manager=fabric_manager)
        calls = [call for call in (tmp_path / "calls").read_text().splitlines() if "show" not in call and "-L" not in call]
        return result, [call for call in calls if not call.startswith("journalctl")]

    return run


def test_a_free_module_of_another_version_is_exchanged_and_its_helpers_come_back(host):
    modules = OLD.format(more=2)
    result, calls = host("580.95.05", loaded="535.309.01", modules=modules, persistenced=("active", "enabled"))
    assert calls == [
        "systemctl stop nvidia-persistenced.service",
        "modprobe -r -i nvidia_drm",
        "modprobe -r -i nvidia_uvm",
        "modprobe -r -i nvidia_modeset",
        "modprobe -r -i nvidia",
        "modprobe nvidia",
        "modprobe nvidia_uvm",
        "modprobe nvidia_modeset",
        "modprobe nvidia_drm",
        "systemctl start nvidia-persistenced.service",
    ]
    assert (result["changed"], result["reboot_reason"]) == (True, "")


def test_modules_of_the_other_flavour_are_exchanged_too(host):
    (nvidia_driver_use.ROOT / "proc/driver/nvidia").mkdir(parents=True)
    (nvidia_driver_use.ROOT / "proc/driver/nvidia/version").write_text(standin.version_text("580.95.05", "open"))
    modules = OLD.format(more=2)
    result, calls = host("580.95.05", loaded="580.95.05", modules=modules, flavour="open")
    assert (result["changed"], calls) == (False, [])
    result, calls = host("580.95.05", modules=modules, flavour="proprietary")
    assert "modprobe -r -i nvidia" in calls


def test_modules_in_use_stay_all_of_them_and_the_service_runs_again(host):
    result, calls = host("580.95.05", loaded="535.309.01", modules=OLD.format(more=9), persistenced=("active", "enabled"))
    assert calls == ["systemctl stop nvidia-persistenced.service", "systemctl start nvidia-persistenced.service"]
    assert result["reboot_reason"].startswith("driver 535.309.01 stays loaded until the next boot (nvidia: it is in use")


def test_what_is_in_order_is_left_alone(host):
    result, calls = host("580.95.05", persistenced=("inactive", "enabled"))
    assert calls[0] == "modprobe nvidia"
    result, calls = host("580.95.05", modules=OLD.format(more=2), persistenced=("active", "enabled"))
    assert (result["changed"], calls) == (False, [])


def test_a_host_without_a_gpu_loads_nothing_and_starts_nothing(host):
    result, calls = host("580.95.05", gpu=False, persistenced=("inactive", "disabled"))
    assert calls == ["systemctl enable nvidia-persistenced.service"]
    assert result["reboot_reason"] == ""


def test_while_nouveau_holds_the_gpu_nothing_is_loaded_and_a_reboot_is_wanted(host):
    result, calls = host("580.95.05", modules="nouveau 4096 1 - Live 0x0\n", persistenced=("inactive", "enabled"))
    assert calls == []
    assert result["reboot_reason"] == "driver 580.95.05 can be loaded at the next boot only, since nouveau holds the GPUs"


def test_a_masked_unit_is_unmasked_and_an_absent_one_is_not_missed(host):
    result, calls = host("580.95.05", persistenced=("inactive", "masked"))
    assert calls[2:] == [f"systemctl {verb} nvidia-persistenced.service" for verb in ("unmask", "enable", "start")]
    (nvidia_driver_use.ROOT / "units/nvidia-persistenced.service").unlink()
    result, calls = host("580.95.05", modules=OLD.format(more=2))
    assert (result.get("failed"), calls) == (None, [])


def test_ubuntus_unit_gets_persistence_mode_at_once(host):
    command = "/usr/bin/nvidia-persistenced --user nvidia-persistenced --no-persistence-mode --verbose"
    result, calls = host("580.95.05", modules=OLD.format(more=2), loaded="580.95.05", persistenced=("active", "static", command))
    drop_in = nvidia_driver_use.ROOT / nvidia_driver_use.DROP_IN
    assert "ExecStart=\nExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --verbose\n" in drop_in.read_text()
    assert "systemctl restart nvidia-persistenced.service" in calls
    assert result["changed"]


def test_fabric_manager_is_stopped_before_the_modules_go_and_must_run_afterwards(host):
    result, calls = host(
        "580.95.05", loaded="535.309.01", modules=OLD.format(more=2), fabric=("active", "enabled"), fabric_manager=True
    )
    assert (calls[0], calls[-1]) == (
        "systemctl stop nvidia-fabricmanager.service",
        "systemctl start nvidia-fabricmanager.service",
    )
    (nvidia_driver_use.ROOT / "units/nvidia-fabricmanager.service").unlink()
    result, calls = host("580.95.05", modules=OLD.format(more=2), fabric_manager=True)
    assert "without it CUDA gives error 802" in result["msg"]


def test_a_driver_that_does_not_answer_is_a_failure_with_what_the_kernel_says(host):
    root = nvidia_driver_use.ROOT
    (root / "smi").write_text("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n")
    (root / "log").write_text("usb: new device\nNVRM: GPU 0000:17:00.0: RmInitAdapter failed! (0x22:0x56:884)\n")
    result, _ = host("580.95.05", persistenced=("inactive", "enabled"))
    assert result["failed"]
    assert "nvidia-smi ends with 9: NVIDIA-SMI has failed" in result["msg"]
    assert "see that flavour and branch fit its generation" in result["msg"]
    assert "RmInitAdapter failed! (0x22:0x56:884)" in result["msg"]
    assert "usb" not in result["msg"]


def test_a_module_that_secure_boot_refuses_is_named_with_the_remedy(host):
    root = nvidia_driver_use.ROOT
    (root / "refuses").touch()
    (root / "log").write_text("Loading of module with unavailable key is rejected\nmodprobe: Key was rejected by service\n")
    result, _ = host("580.95.05")
    assert "`modprobe nvidia` failed" in result["msg"]
    assert "mokutil --import" in result["msg"]


def test_without_a_driver_the_modules_go_and_the_drop_in_too(host):
    drop_in = nvidia_driver_use.ROOT / nvidia_driver_use.DROP_IN
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text("[Unit]\n")
    result, calls = host("", loaded="580.95.05", modules=OLD.format(more=2))
    assert calls[-1] == "systemctl daemon-reload"
    assert "modprobe -r -i nvidia" in calls
    assert not drop_in.exists()
    assert result["reboot_reason"] == ""


def test_check_mode_announces_the_same_and_does_nothing(host):
    before = OLD.format(more=2)
    result, calls = host("580.95.05", loaded="535.309.01", modules=before, persistenced=("active", "enabled"), check=True)
    assert calls == []
    assert (nvidia_driver_use.ROOT / "proc/modules").read_text() == before
    assert result["changed"]
    assert "unload nvidia 535.309.01" in json.dumps(result["actions"])
    assert "load nvidia 580.95.05" in json.dumps(result["actions"])
