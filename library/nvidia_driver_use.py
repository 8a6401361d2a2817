#!/usr/bin/python
"""Ansible module: take the installed NVIDIA driver into use, and see that it works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ansible.module_utils import driver_facts, kernel_modules, nvidia_state, pci
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host_inventory import read_text
from ansible.module_utils.unit_state import parse_show

DOCUMENTATION = r"""
module: nvidia_driver_use
short_description: Take the installed NVIDIA driver into use, and see that it works
description:
  - Unloads modules of another version if nothing uses them, and loads those that were loaded, with the installed version. The
    services that hold the GPUs (nvidia-persistenced, Fabric Manager) are stopped for it and started again.
  - What can't be unloaded, or loaded before the next boot, is no error; C(reboot_reason) says so.
  - Where the modules are loaded and there is a GPU, nvidia-smi must answer, nvidia-persistenced must keep persistence mode on,
    and Fabric Manager must run where it is wished. If not, the module fails, with what the kernel's log says of it.
  - Neither service is missed where no package brought it, except Fabric Manager where it is wished.
  - On a host without a GPU nothing is loaded, and services are only enabled.
options:
  version:
    description: NVIDIA's version of the installed driver; empty if none is installed and none shall be loaded.
    type: str
    required: true
  flavour:
    description: Flavour of its modules; empty if that does not matter.
    type: str
    choices: ["", open, proprietary]
    default: ""
  fabric_manager:
    description: Whether the host has NVSwitches, which Fabric Manager must manage.
    type: bool
    default: false
author: Groundwork maintainers
attributes:
  check_mode:
    support: full
"""

EXAMPLES = r"""
- name: Take it into use
  nvidia_driver_use:
    version: 580.95.05
"""

RETURN = r"""
actions: {description: "What was done, or would be.", returned: success, type: list, elements: str}
reboot_reason: {description: Why the driver is in use after a reboot only; empty if it is already., returned: success, type: str}
"""

ROOT = Path("/")
PERSISTENCED, FABRIC_MANAGER = "nvidia-persistenced.service", "nvidia-fabricmanager.service"
DROP_IN = "etc/systemd/system/nvidia-persistenced.service.d/groundwork.conf"
#: The ones of NVIDIA, whoever uses others first.
MODULES = ("nvidia_drm", "nvidia_modeset", "nvidia_peermem", "nvidia_uvm", "nvidia")
#: CUDA needs both; programs without privileges can't load the second one themselves.
LOADED = ("nvidia", "nvidia_uvm")
#: What the kernel's log says when a driver can't be used, and what that means (NVIDIA's forums and the driver's README).
SIGNATURES = (
    (r"Key was rejected by service", "Secure Boot refuses the module: enrol DKMS' key (mokutil --import, then the console)"),
    (r"requires use of the NVIDIA open kernel modules", "the GPU needs the open modules: set nvidia_driver_flavour: open"),
    (r"Cannot initialize GSP firmware RM", "the GPU's firmware does not start: firmware-nvidia-gsp must be of this version"),
    (r"RmInitAdapter failed", "the GPU does not start with this driver: see that flavour and branch fit its generation"),
    (r"NVRM: The NVIDIA probe routine was not called", "another driver holds the GPU: apply nouveau_blacklist, and reboot"),
    (r"NVRM: API mismatch", "module and libraries are of two versions: reboot, or unload the module"),
    (r"fallen off the bus", "the GPU is gone from the bus: power-cycle the host"),
)  # fmt: skip
MODPROBE_SECONDS = 120
SMI_SECONDS = 60


class Use:
    """The driver of a host, from the modules that are loaded to the services that hold its GPUs."""

    def __init__(self, module: AnsibleModule) -> None:
        """Read what there is."""
        self.module = module
        self.version: str = module.params["version"]
        self.actions: list[str] = []
        self.loaded = kernel_modules.parse_modules(read_text(ROOT / "proc/modules") or "")
        self.flavour: str = module.params["flavour"]
        driver = nvidia_state.loaded_driver(ROOT)
        self.loaded_version, self.loaded_flavour = driver["version"], driver["flavour"]
        self.has_gpu = bool(pci.gpus(ROOT))
        self.others = [name for name in ("nouveau", "nova_core") if name in self.loaded]
        names = [PERSISTENCED, *([FABRIC_MANAGER] if module.params["fabric_manager"] else [])]
        self.units = {name: unit for name in names if (unit := self.show(name))["LoadState"] != "not-found"}

    def show(self, name: str) -> dict[str, str]:
        """Ask systemd about a unit."""
        properties = "--property=LoadState,ActiveState,UnitFileState,ExecStart"
        answer: dict[str, str] = parse_show(self.module.run_command(["systemctl", "show", name, properties], check_rc=True)[1])
        return answer

    def act(self, what: str, *commands: list[str]) -> None:
        """Note an action, and do it outside of check mode.

        A command that fails ends the module; the message has the kernel's view of it.
        """
        self.actions.append(what)
        for command in () if self.module.check_mode else commands:
            code, out = nvidia_state.run_bounded(command, MODPROBE_SECONDS)
            if code != 0:
                said = out.strip() if code is not None else f"it did not end within {MODPROBE_SECONDS} s"
                self.fail(f"`{' '.join(command)}` failed: {said}")

    def fail(self, what: str) -> None:
        """End with what is wrong and what the kernel's log says of it."""
        log = self.module.run_command(["journalctl", "--dmesg", "--boot", "--lines=400", "--no-pager", "--output=cat"])[1]
        lines = [line for line in log.splitlines() if re.search(r"NVRM|nvidia|Key was rejected", line)]
        meanings = [meaning for pattern, meaning in SIGNATURES if any(re.search(pattern, line) for line in lines)]
        shown = "".join(f"\n  {line}" for line in lines[-8:])
        self.module.fail_json(
            msg=f"{what}. {'; '.join(meanings) or 'Remedy: see `journalctl --dmesg` for lines with NVRM'}."
            + (f"\nThe kernel says:{shown}" if shown else ""),
            actions=self.actions,
        )

    def stop_services(self) -> list[str]:
        """Stop the services that hold the GPUs; return those that ran."""
        running = [name for name, unit in self.units.items() if unit["ActiveState"] in ("active", "activating")]
        for name in reversed(running):
            self.act(f"stop {name}", ["systemctl", "stop", name])
        return running

    def unload(self) -> str:
        """Unload the modules; return why they stay, or nothing."""
        running = self.stop_services()
        # The services are gone from the counts.
        now = self.loaded if self.module.check_mode else kernel_modules.parse_modules(read_text(ROOT / "proc/modules") or "")
        order, stay = kernel_modules.plan_removal(now, list(MODULES))
        reasons = [f"{name}: {why}" for name, why in stay.items()]
        if not reasons:
            for name in order:
                self.actions.append(f"unload {name} {self.loaded_version}")
                # -i: Debian has modprobe do other things in its place, for its own names of the modules.
                if not self.module.check_mode:
                    code, out = nvidia_state.run_bounded(["modprobe", "-r", "-i", name], MODPROBE_SECONDS)
                    if code != 0:
                        reasons.append(f"{name}: {out.strip() or 'modprobe does not end'}")
                        break
        if reasons:
            for name in running:
                self.act(f"start {name} again", ["systemctl", "start", name])
            return f"driver {self.loaded_version} stays loaded until the next boot ({'; '.join(reasons)})"
        return ""

    def load(self) -> None:
        """Load what was loaded before, and what CUDA needs."""
        before = [name for name in reversed(MODULES) if name in self.loaded]
        for name in dict.fromkeys([*LOADED, *before]):
            self.act(f"load {name} {self.version}", ["modprobe", name])

    def own_drop_in(self) -> None:
        """Have nvidia-persistenced keep persistence mode on where its unit says otherwise; with no driver, take that back."""
        file, unit = ROOT / DROP_IN, self.units.get(PERSISTENCED)
        if not self.version and file.exists():
            self.actions.append(f"remove /{DROP_IN}")
            if not self.module.check_mode:
                file.unlink()
                self.module.run_command(["systemctl", "daemon-reload"])
        # Ubuntu's unit has the option, runs only while another unit needs it, and can't be enabled.
        if self.version and unit and "--no-persistence-mode" in unit["ExecStart"] and not file.exists():
            program = re.search(r"argv\[\]=(.*?) ;", unit["ExecStart"])
            command = program[1].replace(" --no-persistence-mode", "") if program else "/usr/bin/nvidia-persistenced --verbose"
            self.actions.append(f"write /{DROP_IN}: its unit leaves persistence mode off")
            if not self.module.check_mode:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(
                    f"# Ansible managed: Groundwork\n[Unit]\nStopWhenUnneeded=false\n[Service]\nExecStart=\nExecStart={command}\n"
                    "[Install]\nWantedBy=multi-user.target\n"
                )
                self.module.run_command(["systemctl", "daemon-reload"])
                self.units[PERSISTENCED] = self.show(PERSISTENCED)
                if self.units[PERSISTENCED]["ActiveState"] == "active":
                    self.act(f"restart {PERSISTENCED}", ["systemctl", "restart", PERSISTENCED])

    def run_services(self, *, start: bool) -> None:
        """Enable the services, and start them where they have something to do."""
        for name, unit in self.units.items():
            if unit["UnitFileState"] in ("masked", "masked-runtime"):
                self.act(f"unmask {name}", ["systemctl", "unmask", name])
            if unit["UnitFileState"] in ("disabled", "masked", "masked-runtime"):
                self.act(f"enable {name}", ["systemctl", "enable", name])
            if start and (self.module.check_mode or self.show(name)["ActiveState"] != "active"):
                if self.module.check_mode and unit["ActiveState"] == "active":
                    continue
                self.act(f"start {name}", ["systemctl", "start", name])

    def prove(self) -> None:
        """Require that the driver works."""
        smi = nvidia_state.nvidia_smi(self.module.get_bin_path("nvidia-smi"), True, ROOT, SMI_SECONDS)
        if smi["path"] and smi["exit_code"] != 0:
            self.fail(f"driver {self.version} is loaded, and nvidia-smi ends with {smi['exit_code']}: {smi['message']}")
        if PERSISTENCED in self.units and not driver_facts.persistence(ROOT):
            self.fail("nvidia-persistenced does not keep persistence mode on")
        if self.module.params["fabric_manager"] and self.show(FABRIC_MANAGER)["ActiveState"] != "active":
            self.fail("Fabric Manager does not run, and without it CUDA gives error 802")

    def take(self) -> str:
        """Do what is needed; return why a reboot is."""
        reason, fresh = "", False
        usable = bool(self.version) and self.has_gpu and not self.others
        other = self.flavour not in ("", self.loaded_flavour or self.flavour)
        if self.loaded_version and (self.loaded_version != self.version or other):
            reason = self.unload()
            fresh = not reason
        elif not self.loaded_version:
            fresh = True
        self.own_drop_in()
        if not self.version:
            return reason
        if fresh and usable:
            self.load()
        works = usable and not reason
        self.run_services(start=works)
        if works and not self.module.check_mode:
            self.prove()
        if self.has_gpu and self.others:
            return f"driver {self.version} can be loaded at the next boot only, since {', '.join(self.others)} holds the GPUs"
        return reason


def main() -> None:
    """Take the driver into use."""
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "required": True},
            "flavour": {"type": "str", "choices": ["", "open", "proprietary"], "default": ""},
            "fabric_manager": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    use = Use(module)
    reason = use.take()
    result: dict[str, Any] = {"actions": use.actions, "reboot_reason": reason}
    module.exit_json(changed=bool(use.actions), **result, diff={"before": "", "after": "".join(f"{a}\n" for a in use.actions)})


if __name__ == "__main__":
    main()
