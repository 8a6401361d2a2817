"""How gpu_plan decides, on a made-up host with a stand-in for apt and dpkg, and the filters that show plans to people."""

from __future__ import annotations

import os

import gpu_plan
import gpu_plans
import pytest
from ansible.module_utils import driver_record
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.driver_record import DriverSet, Record

KERNEL = "6.1.0-57-amd64"
DEBIAN = "http://debian.example.com/debian bookworm/non-free amd64 Packages"
CUDA = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64  Packages"
MIRROR = "https://mirror.example/nvidia  Packages"
RELEASES = {
    DEBIAN: "release v=12.13,o=Debian,a=stable,n=bookworm,l=Debian,c=non-free,b=amd64",
    CUDA: "release o=NVIDIA,l=NVIDIA CUDA,c=",
}
BUILD = ["dkms", "linux-headers-amd64", "gcc-12"]


class _Host:
    """A Debian 12 host with one A40. `offered` has the versions of each package by source, newest first."""

    def __init__(self, root, run_module):
        self.root, self._run, self.calls = root, run_module, []
        self.releases = RELEASES
        self.offered = {}
        self.installed = []
        self.fails = None
        self.write("etc/os-release", 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n')
        self.write("proc/sys/kernel/osrelease", f"{KERNEL}\n")
        self.write(f"boot/vmlinuz-{KERNEL}", "")
        self.write(f"boot/config-{KERNEL}", "CONFIG_GCC_VERSION=120200\n")
        self.write(f"lib/modules/{KERNEL}/build/Makefile", "")
        self.write("usr/bin/gcc-12", "")
        (root / "usr/bin/gcc").symlink_to("gcc-12")
        for name, text in (("class", "0x030200"), ("vendor", "0x10de"), ("device", "0x2235")):
            self.write(f"sys/bus/pci/devices/0000:17:00.0/{name}", f"{text}\n")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def record(self, version, **wish):
        self.root.joinpath("var/lib/groundwork").mkdir(parents=True)
        driver_record.write(self.root, Record(current=DriverSet(version=version, wish=wish)))

    def run(self, **options):
        return self._run(gpu_plan, **options)

    def run_command(self, argv, **_):
        self.calls.append(argv)
        if self.fails and argv[0] == self.fails:
            return 100, "", "E: The package lists or status file could not be parsed or opened.\n"
        if argv[0] == "dpkg-query":
            lines = ["dpkg", *self.installed]
            return 0, "".join(f"{name}\tamd64\t1\t{name}\tii \n" for name in lines), ""
        if argv == ["apt-cache", "policy"]:
            return 0, "".join(f" 500 {source}\n     {release}\n" for source, release in self.releases.items()), ""
        text = ""
        for name in argv[2:]:
            found = [(version, source) for source, table in self.offered.items() for version in table.get(name, ())]
            text += f"{name}:\n  Installed: (none)\n  Version table:\n" if found else ""
            text += "".join(f"     {version} 500\n        500 {source}\n" for version, source in found)
        return 0, text, ""


@pytest.fixture
def host(tmp_path, run_module, monkeypatch):
    found = _Host(tmp_path, run_module)
    monkeypatch.setattr(gpu_plan, "ROOT", tmp_path)
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "gpu01", KERNEL, "#1", "x86_64")))
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda *_, **__: None)
    monkeypatch.setattr(AnsibleModule, "run_command", lambda _, argv, **options: found.run_command(argv, **options))
    return found


DEBIAN_NAMES = (
    "nvidia-kernel-dkms nvidia-open-kernel-dkms nvidia-smi libcuda1 libnvidia-ml1 nvidia-driver firmware-nvidia-gsp "
    "nvidia-persistenced nvidia-driver-libs libnvidia-encode1 libnvcuvid1 libnvidia-nvvm4 libnvidia-ptxjitcompiler1 "
    "libnvidia-cfg1 libcudadebugger1 libnvidia-fbc1 nvidia-vdpau-driver nvidia-opencl-icd libnvidia-opencl1"
)


def debian(*versions):
    return dict.fromkeys(DEBIAN_NAMES.split(), versions)


def reasons(result):
    return [reason["code"] for reason in result["plan"]["reasons"]]


# The module


def test_a_plan_has_packages_pins_and_version_for_this_host(host):
    host.offered = {DEBIAN: debian("535.261.03-1")}
    result = host.run(driver={"source": "distribution", "flavour": "proprietary"})
    driver = result["plan"]["driver"]
    assert (result["changed"], result["declared"], result["settled"], reasons(result)) == (False, True, False, [])
    assert (driver["version"], driver["flavour"], driver["modules"][0]) == ("535.261.03-1", "proprietary", "nvidia-current")
    assert "nvidia-kernel-dkms" in driver["packages"]
    assert {pin["version"] for pin in driver["pins"]} == {"535.261.03-1", "535.261.03-*"}
    assert {key: result["host"][key] for key in ("distribution", "kernel", "gpus")} == {
        "distribution": "debian 12",
        "kernel": KERNEL,
        "gpus": ["10de:2235"],
    }
    assert (result["host"]["driver"]["installed"], result["host"]["driver"]["loaded"]) == (None, None)


@pytest.mark.parametrize("check", [True, False])
def test_planning_changes_nothing(host, check):
    host.offered = {DEBIAN: debian("535.261.03-1")}
    before = sorted((path, path.stat().st_mtime_ns) for path in host.root.rglob("*"))
    host.run(driver={"source": "distribution"}, check=check)
    assert sorted((path, path.stat().st_mtime_ns) for path in host.root.rglob("*")) == before
    assert {tuple(argv[:2]) for argv in host.calls} <= {("apt-cache", "policy"), ("dpkg-query", "--show")}


def test_what_speaks_against_a_wish_is_returned_and_no_failure(host):
    host.offered = {DEBIAN: debian("535.261.03-1")}
    result = host.run(driver={"source": "distribution", "branch": "580"})
    assert "failed" not in result
    assert result["plan"]["ok"] is False
    assert reasons(result) != []
    assert result["plan"]["nearest"]


def test_an_unmanaged_driver_is_no_wish(host):
    result = host.run()
    assert (result["plan"]["ok"], result["plan"]["driver"], result["declared"], result["settled"]) == (True, None, True, False)
    assert result["build_packages"] == []


@pytest.mark.parametrize("program", ["apt-cache", "dpkg-query"])
def test_an_apt_that_does_not_answer_is_an_error(host, program):
    host.fails = program
    result = host.run(driver={"source": "distribution"})
    assert result["failed"]
    assert result["msg"] == "E: The package lists or status file could not be parsed or opened."


def test_a_damaged_record_is_an_error(host):
    host.write("var/lib/groundwork/driver.json", "{")
    assert "/var/lib/groundwork/driver.json is damaged" in host.run(driver={"source": "distribution"})["msg"]


@pytest.mark.parametrize(
    ("installed", "missing"),
    [([], BUILD), (BUILD, []), (["dkms", "gcc-12"], ["linux-headers-amd64"])],
)
def test_packages_that_a_build_takes_are_those_that_the_host_lacks(host, monkeypatch, installed, missing):
    host.offered, host.installed = {DEBIAN: debian("535.261.03-1")}, installed
    driver = {"dkms": "nvidia-kernel-dkms", "headers": ["linux-headers-amd64"], "compilers": ["gcc-12"], "version": "1"}
    plan = {"driver": driver, "ok": True}
    monkeypatch.setattr(gpu_plan.gpu_solver, "solve", lambda *_, **__: plan)
    assert host.run(driver={"source": "distribution"})["build_packages"] == missing
    driver["dkms"] = ""
    assert host.run(driver={"source": "distribution"})["build_packages"] == []


# The driver in use stays


@pytest.mark.parametrize(
    ("wish", "version"),
    [
        ({"branch": "535"}, "535.261.03"),
        ({"branch": 535}, "535.261.03"),
        ({"flavour": "open"}, "535.261.03"),
        ({"branch": "535", "source": "distribution"}, "535.261.03"),
        ({"branch": ""}, "535.261.03"),
        # Another branch, also one that begins alike; another source; a number that somebody wants.
        ({"branch": "580"}, None),
        ({"branch": "53"}, None),
        ({"source": "cuda_repository"}, None),
        ({"version": "535.309.01"}, "535.309.01"),
    ],
)
def test_a_wish_that_leaves_the_version_open_is_the_driver_in_use_if_that_fits(wish, version):
    current = DriverSet(version="535.261.03", wish={"source": "distribution"})
    assert gpu_plan.in_use(wish, current).get("version") == version


@pytest.mark.parametrize("wish", [None, {}, {"branch": "535"}])
def test_a_host_without_record_takes_the_wish_as_it_is(wish):
    assert gpu_plan.in_use(wish, None) == wish


def test_a_driver_that_was_removed_is_neither_in_use_nor_settled(host):
    host.offered = {DEBIAN: debian("535.261.03-1")}
    host.record("")
    result = host.run(driver={"source": "cuda_repository", "branch": "580", "flavour": "open"})
    assert (result["plan"]["driver"]["version"], result["declared"], result["settled"]) == ("", False, False)


def test_a_newer_version_in_the_branch_moves_no_host_by_itself(host):
    host.offered = {DEBIAN: debian("535.309.01-1", "535.261.03-1")}
    host.record("535.261.03", source="distribution")
    wish = {"source": "distribution", "branch": "535", "flavour": "proprietary"}
    result = host.run(driver=wish)
    assert (result["plan"]["driver"]["version"], result["settled"]) == ("535.261.03-1", True)
    result = host.run(driver={**wish, "version": "535.309.01"})
    assert (result["plan"]["driver"]["version"], result["settled"]) == ("535.309.01-1", False)


# Sources that are not declared yet


@pytest.mark.parametrize(
    ("source", "origins", "declared"),
    [
        ("distribution", [], True),
        ("cuda_repository", ["Debian"], False),
        ("cuda_repository", ["Debian", "NVIDIA"], True),
        ("cuda_repository", ["Example Mirror"], False),
        ("mirror", ["Debian", "Ubuntu"], False),
        ("mirror", [], False),
        # A mirror of NVIDIA's repository says that it is NVIDIA's.
        ("mirror", ["NVIDIA"], True),
        ("mirror", ["Example Mirror"], True),
    ],
)
def test_a_source_is_declared_if_packages_of_the_driver_come_from_it(source, origins, declared):
    offers = {"libcuda1": [{"version": "1", "origin": origin} for origin in origins], "nvidia-smi": []}
    assert gpu_plan.is_declared(source, offers) is declared


@pytest.mark.parametrize("offered", [False, True])
def test_the_packages_of_a_source_that_is_not_there_yet_are_judged_by_the_catalog(host, offered):
    """The distribution has none of the CUDA repository's versions, which is no reason against them."""
    host.offered = {DEBIAN: debian("535.261.03-1")}
    if offered:
        names = (
            "nvidia-driver-cuda nvidia-kernel-open-dkms nvidia-kernel-dkms nvidia-smi libcuda1 libnvidia-ml1 nvidia-persistenced"
        )
        host.offered[CUDA] = dict.fromkeys(names.split(), ("580.95.05-1",))
    result = host.run(driver={"source": "cuda_repository", "version": "580.95.05", "flavour": "open"})
    assert (result["declared"], reasons(result)) == (offered, [])
    assert result["plan"]["driver"]["version"] == ("580.95.05-1" if offered else "")
    assert bool(result["plan"]["driver"]["pins"]) or not offered


# What people read


REASON = {"code": "gpu_too_new", "message": "10de:2901 needs 570 or newer", "remedy": "choose branch 570"}
NEAREST = {
    "driver": {"branch": "580", "version": ""},
    "cuda": [{"version": "12.8.1", "method": "runfile"}],
    "container_toolkit": "",
}


def plan(**differences):
    return {"ok": True, "reasons": [], "warnings": [], "nearest": None, "driver": None, **differences}


def result(wanted, installed=None, gpus=("10de:2235",), **differences):
    now = {"distribution": "debian 12", "kernel": KERNEL, "gpus": list(gpus), "driver": {"installed": installed}}
    return {"host": now, "plan": wanted, "declared": True, "settled": False, **differences}


def test_a_report_has_each_reason_with_its_remedy_and_the_nearest_choice():
    second = {"code": "headers", "message": "kernel x has no headers", "remedy": "install them"}
    assert gpu_plans.gpu_plan_report(plan(ok=False, reasons=[REASON, second], nearest=NEAREST)) == (
        "- gpu_too_new: 10de:2901 needs 570 or newer.\n  Remedy: choose branch 570.\n"
        "- headers: kernel x has no headers.\n  Remedy: install them.\n"
        "Nearest choice that works: driver branch 580, driver version left open, cuda version 12.8.1 method runfile, "
        "container_toolkit left out."
    )


def test_a_report_without_way_out_ends_with_the_reasons():
    assert gpu_plans.gpu_plan_report(plan(ok=False, reasons=[REASON])).endswith("\n  Remedy: choose branch 570.")


def test_a_wish_that_is_left_out_altogether_is_told():
    report = gpu_plans.gpu_plan_report(plan(ok=False, nearest={"cudnn": []}))
    assert report == "Nearest choice that works: no cudnn."


def test_a_plan_that_works_has_an_empty_report():
    assert gpu_plans.gpu_plan_report(plan()) == ""


def test_the_table_has_a_line_for_each_host_and_what_speaks_against_it_below():
    driver = {"version": "580.95.05-1", "branch": "580", "flavour": "open"}
    warning = {"message": "branch 535 has ended", "remedy": "move to NVIDIA's 580"}
    table = gpu_plans.gpu_plan_table(
        {
            "gpu01": result(plan(driver=driver, warnings=[warning]), "535.261.03", ["10de:2235", "10de:2235", "10de:20b2"]),
            "gpu02": result(plan(driver={**driver, "version": ""}, warnings=[warning])),
            "cpu": result(plan(ok=False, reasons=[REASON, REASON]), gpus=()),
        }
    )
    assert table.splitlines() == [
        "HOST   SYSTEM     GPUS                      DRIVER NOW  DRIVER PLANNED    VERDICT",
        "gpu01  debian 12  3 (10de:2235, 10de:20b2)  535.261.03  580.95.05-1 open  ok",
        "gpu02  debian 12  1 (10de:2235)             -           newest 580 open   ok",
        "cpu    debian 12  0                         -           -                 gpu_too_new, gpu_too_new",
        "",
        "cpu can't get this:",
        "- gpu_too_new: 10de:2901 needs 570 or newer.",
        "  Remedy: choose branch 570.",
        "- gpu_too_new: 10de:2901 needs 570 or newer.",
        "  Remedy: choose branch 570.",
        "",
        "To know of gpu01, gpu02: branch 535 has ended. Move to NVIDIA's 580.",
    ]


def test_no_hosts_are_an_empty_table():
    assert gpu_plans.gpu_plan_table({}) == "HOST  SYSTEM  GPUS  DRIVER NOW  DRIVER PLANNED  VERDICT"


def test_the_data_of_plans_has_nothing_that_ansible_adds():
    wanted = result(plan())
    assert gpu_plans.gpu_plan_data({"gpu01": {**wanted, "failed": False, "invocation": {}}}) == {"gpu01": wanted}


def test_ansible_finds_the_filters():
    assert set(gpu_plans.FilterModule().filters()) == {"gpu_plan_report", "gpu_plan_table", "gpu_plan_data"}
