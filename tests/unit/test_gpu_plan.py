"""The module that plans: on a made-up host whose apt and dpkg are stand-ins that answer in the words of the real ones."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import gpu_plan
import pytest
from ansible.module_utils import driver_record
from ansible.module_utils.driver_record import DriverSet, Record

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/standins"))
standin = importlib.import_module("nvidia_smi")

KERNEL = "6.1.0-57-amd64"
OLD, NEW = "535.261.03-1", "535.309.01-0+deb12u1"
SET = (
    "nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "libnvidia-nvvm4",
    "libnvidia-cfg1", "firmware-nvidia-gsp",
)  # fmt: skip
SOURCE = "500 http://deb.example bookworm/non-free amd64 Packages"


class Apt:
    """A STAND-IN of apt-cache and dpkg-query: the archive has one version of the set, the host may have another one."""

    def __init__(self, offered: str, installed: str = "") -> None:
        """Take both versions."""
        self.offered, self.installed = offered, installed

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        """Answer a program's question."""
        if argv[0] == "dpkg-query":
            names = SET if self.installed else ()
            return 0, "".join(f"{name}\tamd64\t{self.installed}\tnvidia-graphics-drivers\tii \n" for name in names), ""
        assert argv[:2] == ["apt-cache", "policy"]
        if not argv[2:]:
            return 0, f" {SOURCE}\n     release v=12.15,o=Debian,a=oldstable,n=bookworm,l=Debian,c=non-free,b=amd64\n", ""
        return 0, "".join(map(self._policy, argv[2:])), ""

    def _policy(self, name: str) -> str:
        if name == "linux-headers-amd64":
            return f"{name}:\n  Installed: (none)\n  Version table:\n     6.1.192-3 500\n        {SOURCE}\n"
        if name not in SET:
            return ""
        text = f"{name}:\n  Installed: {self.installed or '(none)'}\n  Version table:\n"
        text += f"     {self.offered} 500\n        {SOURCE}\n"
        if self.installed and self.installed != self.offered:
            text += f" *** {self.installed} 100\n        100 /var/lib/dpkg/status\n"
        return text


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Return a Debian 12 with an A40, on which `apt` is to be set."""
    standin.write_pci_function(tmp_path, "0000:17:00.0", "10de:2235", "030200", None)
    files = {
        "etc/os-release": 'ID=debian\nVERSION_ID="12"\n',
        "proc/sys/kernel/osrelease": f"{KERNEL}\n",
        f"boot/vmlinuz-{KERNEL}": "",
        f"lib/modules/{KERNEL}/build/Makefile": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(gpu_plan, "ROOT", tmp_path)
    monkeypatch.setattr(gpu_plan.host_facts.os, "uname", lambda: type("Uname", (), {"machine": "x86_64"}))

    def put(apt: Apt) -> Path:
        monkeypatch.setattr(gpu_plan.AnsibleModule, "run_command", lambda _self, argv, **_: apt.run(argv))
        monkeypatch.setattr(gpu_plan.AnsibleModule, "get_bin_path", lambda *_: None)
        if apt.installed:
            status = "".join(
                f"Package: {name}\nStatus: hold ok installed\nSource: nvidia-graphics-drivers\nVersion: {apt.installed}\n\n"
                for name in SET
            )
            (tmp_path / "var/lib/dpkg").mkdir(parents=True)
            (tmp_path / "var/lib/dpkg/status").write_text(status)
        return tmp_path

    return put


def record(root: Path, version: str) -> None:
    """Write down that the role installed a version."""
    wish = {"source": "distribution", "version": version.partition("-")[0], "packages": list(SET)}
    current = DriverSet(version=wish["version"], packages=dict.fromkeys(SET, version), wish=wish)
    driver_record.write(root, Record(current=current))


def test_a_driver_of_the_archive_is_planned(host, run_module):
    host(Apt(NEW))
    result = run_module(gpu_plan, driver={"source": "distribution"})
    assert result["plan"]["reasons"] == []
    assert result["plan"]["driver"]["version"] == NEW
    assert (result["changed"], result["declared"], result["settled"]) == (False, True, False)


@pytest.mark.parametrize("wish", [{}, {"branch": "535"}, {"version": "535.261.03"}, {"version": OLD}], ids=str)
def test_a_host_stays_in_order_when_the_archive_drops_its_version(host, run_module, wish):
    """As every security update of Debian does."""
    record(host(Apt(NEW, OLD)), OLD)
    result = run_module(gpu_plan, driver={"source": "distribution", **wish})
    assert result["plan"]["reasons"] == []
    assert result["plan"]["driver"]["version"] == OLD
    assert result["settled"]


def test_the_set_on_record_counts_where_somebody_removed_packages_of_it(host, run_module):
    record(host(Apt(NEW)), OLD)
    assert run_module(gpu_plan, driver={"source": "distribution"})["plan"]["driver"]["version"] == OLD


def test_a_version_that_the_host_and_the_archive_lack_is_refused(host, run_module):
    record(host(Apt(NEW, OLD)), OLD)
    result = run_module(gpu_plan, driver={"source": "distribution", "version": "535.247.01"})
    assert [reason["code"] for reason in result["plan"]["reasons"]] == ["version_not_offered"]


def test_a_damaged_record_is_told(host, run_module):
    root = host(Apt(NEW))
    (root / "var/lib/groundwork").mkdir(parents=True)
    (root / "var/lib/groundwork/driver.json").write_text("{")
    result = run_module(gpu_plan, driver={"source": "distribution"})
    assert re.match(r"/var/lib/groundwork/driver\.json is damaged", result["msg"])
