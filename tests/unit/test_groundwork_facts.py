"""Facts of made-up hosts: file trees in the shape that /proc, /sys, /etc, /boot and /lib/modules have."""

from __future__ import annotations

import ast
import importlib
import os
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import groundwork_facts
import pytest
import yaml
from ansible.module_utils import host_facts, host_inventory, nvidia_state, pci, reachability
from ansible.module_utils.host_inventory import read_text

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/standins"))
standin = importlib.import_module("nvidia_smi")
add_function = standin.write_pci_function

MODULES = (
    "driver_facts", "gpu_catalog", "host_facts", "host_inventory", "nvidia_state", "pci", "reachability", "versions",
)  # fmt: skip


def add_files(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def two_a40(tmp_path):
    for address in ("0000:17:00.0", "0000:65:00.0"):
        add_function(tmp_path, address, "10de:2235", "030200", "nvidia")
    return tmp_path


# --- PCI


def test_a_host_without_pci_devices_has_no_gpu(tmp_path):
    assert pci.gpus(tmp_path) == []


def test_the_audio_function_of_a_card_is_no_gpu(tmp_path):
    add_function(tmp_path, "0000:01:00.0", "10de:2684", "030000", "nouveau")
    add_function(tmp_path, "0000:01:00.1", "10de:22ba", "040300", "snd_hda_intel")
    assert pci.gpus(tmp_path) == [
        {
            "address": "0000:01:00.0",
            "id": "10de:2684",
            "subsystem": "10de:145a",
            "class": "0300",
            "driver": "nouveau",
            "numa_node": None,
        }
    ]


def test_the_numa_node_of_a_gpu_is_a_number(two_a40):
    add_files(two_a40, {"sys/bus/pci/devices/0000:65:00.0/numa_node": "1\n"})
    assert [gpu["numa_node"] for gpu in pci.gpus(two_a40)] == [None, 1]


def test_gpus_of_other_vendors_do_not_count(tmp_path):
    add_function(tmp_path, "0000:03:00.0", "1002:740f", "030200", "amdgpu")
    assert pci.gpus(tmp_path) == []


def test_a_blackwell_card_without_driver_is_listed_unbound(tmp_path):
    add_function(tmp_path, "0000:01:00.0", "10de:2b85", "030000")
    assert [(gpu["id"], gpu["driver"]) for gpu in pci.gpus(tmp_path)] == [("10de:2b85", None)]


def test_a_virtual_function_is_a_share_of_a_gpu_and_not_another_one(two_a40):
    share = add_function(two_a40, "0000:17:00.4", "10de:2235", "030200", "nvidia")
    (share / "physfn").symlink_to("../0000:17:00.0")
    assert [gpu["address"] for gpu in pci.gpus(two_a40)] == ["0000:17:00.0", "0000:65:00.0"]


def test_two_a40_have_no_nvswitch(two_a40):
    assert pci.nvswitch(two_a40) == {"present": False, "addresses": [], "nvlink5": False}


@pytest.mark.parametrize("ids", ["10de:1af1", "10de:22a3"])
def test_an_hgx_board_has_nvswitches(two_a40, ids):
    add_function(two_a40, "0000:c4:00.0", ids, "068000")
    assert pci.nvswitch(two_a40) == {"present": True, "addresses": ["0000:c4:00.0"], "nvlink5": False}


def test_an_nforce_network_function_that_calls_itself_a_bridge_is_no_nvswitch(two_a40):
    add_function(two_a40, "0000:00:11.0", "10de:0373", "068000", "forcedeth")
    assert not pci.nvswitch(two_a40)["present"]


@pytest.mark.parametrize(("product_data", "present"), [("SW_MNG", True), ("ConnectX-7", False)])
def test_nvlink5_switches_are_known_by_the_adapter_that_manages_them(two_a40, product_data, present):
    add_files(two_a40, {"sys/class/infiniband/mlx5_0/device/vpd": f"\x82{product_data}\x00"})
    assert pci.nvswitch(two_a40) == {"present": present, "addresses": [], "nvlink5": present}


# --- driver


@pytest.mark.parametrize(("version", "flavour"), [("535.309.01", "proprietary"), ("595.91.07", "open")])
def test_both_forms_of_the_driver_version_are_read(tmp_path, version, flavour):
    add_files(tmp_path, {"proc/driver/nvidia/version": standin.version_text(version, flavour)})
    assert nvidia_state.loaded_driver(tmp_path) == {"modules": [], "version": version, "flavour": flavour}


def test_the_version_in_sysfs_serves_where_procfs_has_none(tmp_path):
    add_files(tmp_path, {"sys/module/nvidia/version": "580.65.06\n"})
    assert nvidia_state.loaded_driver(tmp_path) == {"modules": [], "version": "580.65.06", "flavour": None}


def test_only_gpu_modules_are_reported(tmp_path):
    names = ("nvidia_uvm", "ext4", "nvidia", "nouveau", "nova_core", "i2c_nvidia_gpu", "mxm_wmi")
    add_files(tmp_path, {"proc/modules": "".join(f"{name} 16384 0 - Live 0x0\n" for name in names)})
    assert nvidia_state.loaded_driver(tmp_path)["modules"] == ["nouveau", "nova_core", "nvidia", "nvidia_uvm"]


# --- nvidia-smi


def fake_program(directory: Path, name: str, script: str) -> str:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def fake_nvidia_smi(directory: Path, script: str) -> str:
    return fake_program(directory, "nvidia-smi", script)


def test_listed_gpus_carry_their_pci_address_and_mig_devices_do_not_count(tmp_path):
    add_files(tmp_path, {"proc/driver/nvidia/gpus/0000:17:00.0/information": "Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-1a\n"})
    output = (
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1a)\n"
        "  MIG 1g.5gb      Device  0: (UUID: MIG-77)\n"
        "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-2b)\n"
    )
    assert nvidia_state.listed_gpus(output, tmp_path) == [
        {"name": "NVIDIA A100-SXM4-40GB", "uuid": "GPU-1a", "address": "0000:17:00.0"},
        {"name": "NVIDIA A100-SXM4-40GB", "uuid": "GPU-2b", "address": None},
    ]


@pytest.mark.parametrize(
    ("script", "exit_code", "message"),
    [
        ("echo 'GPU 0: NVIDIA A40 (UUID: GPU-1a)'", 0, None),
        ("echo No devices found.", 0, "No devices found."),
        (
            "printf 'Failed to initialize NVML: Driver/library version mismatch\\nNVML library version: 580.95\\n'; exit 18",
            18,
            "Failed to initialize NVML: Driver/library version mismatch NVML library version: 580.95",
        ),
    ],
)
def test_what_nvidia_smi_says_beside_devices_is_the_message(tmp_path, script, exit_code, message):
    result = nvidia_state.nvidia_smi(fake_nvidia_smi(tmp_path, script), loaded=True, root=tmp_path, timeout=10)
    assert (result["exit_code"], result["message"]) == (exit_code, message)


def test_nvidia_smi_does_not_run_without_a_loaded_driver(tmp_path):
    path = fake_nvidia_smi(tmp_path, f"touch {tmp_path}/ran")
    assert nvidia_state.nvidia_smi(path, loaded=False, root=tmp_path, timeout=10)["exit_code"] is None
    assert not (tmp_path / "ran").exists()


def test_a_hanging_nvidia_smi_is_killed_with_its_children(tmp_path):
    path = fake_nvidia_smi(tmp_path, f"trap '' TERM; sleep 60 & echo $! > {tmp_path}/child; wait")
    result = nvidia_state.nvidia_smi(path, loaded=True, root=tmp_path, timeout=0.5)
    assert result["timed_out"]
    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "cmdline"
    deadline = time.monotonic() + 5
    while read_text(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not read_text(child), "a dead process has no command line"


def test_a_child_that_survives_the_kill_is_not_waited_for(tmp_path, monkeypatch):
    """As in uninterruptible sleep, where SIGKILL has no effect."""
    victims = []
    monkeypatch.setattr(nvidia_state.os, "killpg", lambda group, _signal: victims.append(group))
    began = time.monotonic()
    assert nvidia_state.run_bounded([fake_nvidia_smi(tmp_path, "exec sleep 30")], 0.2) == (None, "")
    assert time.monotonic() - began < 5
    monkeypatch.undo()
    os.killpg(victims[0], 9)


# --- host


@pytest.mark.parametrize(("value", "expected"), [(1, True), (0, False)])
def test_secure_boot_is_the_byte_behind_the_attributes(tmp_path, value, expected):
    path = tmp_path / host_inventory.SECURE_BOOT
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x06\x00\x00\x00" + bytes([value]))
    assert host_inventory.secure_boot(tmp_path) is expected


def test_secure_boot_is_unknown_without_efi(tmp_path):
    assert host_inventory.secure_boot(tmp_path) is None


def test_only_kernels_with_an_image_count_as_installed_and_headers_must_resolve(tmp_path):
    add_files(
        tmp_path,
        {
            "proc/sys/kernel/osrelease": "6.8.0-90-generic\n",
            "lib/modules/6.8.0-90-generic/modules.dep": "",
            "lib/modules/6.8.0-101-generic/modules.dep": "",
            "lib/modules/6.5.0-1-generic/modules.dep": "",
            "boot/vmlinuz-6.8.0-90-generic": "",
            "boot/vmlinuz-6.8.0-101-generic": "",
            "usr/src/linux-headers-6.8.0-90-generic/Makefile": "",
        },
    )
    for release in ("6.8.0-90-generic", "6.8.0-101-generic"):
        (tmp_path / f"lib/modules/{release}/build").symlink_to(f"../../../usr/src/linux-headers-{release}")
    assert host_inventory.kernel(tmp_path) == {
        "running": "6.8.0-90-generic",
        "installed": ["6.8.0-90-generic", "6.8.0-101-generic"],
        "headers": ["6.8.0-90-generic"],
        "may_boot": ["6.8.0-90-generic", "6.8.0-101-generic"],
        "compilers": {"6.8.0-90-generic": None, "6.8.0-101-generic": None},
    }


@pytest.mark.parametrize(
    ("modules", "image", "may_boot"),
    [
        (["6.12.1"], "boot/EFI/Linux/unified.efi", ["6.12.1"]),
        (["6.9.0", "6.12.1"], "boot/vmlinuz-6.9.0", ["6.9.0", "6.12.1"]),
        (["6.9.0"], "boot/vmlinuz-6.9.0", ["6.9.0"]),
        ([], "boot/vmlinuz-6.9.0", []),
    ],
    ids=["unified image", "image of another name", "running kernel was removed", "container"],
)
def test_the_running_kernel_may_boot_again_if_its_modules_are_there(tmp_path, modules, image, may_boot):
    add_files(tmp_path, {"proc/sys/kernel/osrelease": "6.12.1\n", image: ""})
    add_files(tmp_path, {f"lib/modules/{release}/modules.dep": "" for release in modules})
    assert host_inventory.kernel(tmp_path)["may_boot"] == may_boot


@pytest.mark.parametrize(
    ("running", "may_boot", "headers", "need"),
    [
        ("6.1.0-2", ["6.1.0-1", "6.1.0-2"], ["6.1.0-1", "6.1.0-2"], ["6.1.0-1", "6.1.0-2"]),
        ("6.1.0-2", ["6.1.0-1", "6.1.0-2", "6.1.0-3"], [], ["6.1.0-2", "6.1.0-3"]),
        ("6.1.0-1", ["6.1.0-1", "6.1.0-2", "6.1.0-3"], ["6.1.0-3"], ["6.1.0-1", "6.1.0-3"]),
        ("6.1.0-3", ["6.1.0-1", "6.1.0-2", "6.1.0-3"], ["6.1.0-2", "6.1.0-9"], ["6.1.0-2", "6.1.0-3"]),
        ("6.1.0-0", ["6.1.0-1"], [], ["6.1.0-1"]),
        ("6.1.0-0", [], [], []),
        (None, [], [], []),
    ],
    ids=[
        "all have headers", "the running one and the newest", "the newest is no third one", "one more has headers",
        "the running one was removed", "container", "unknown",
    ],
)  # fmt: skip
def test_the_kernels_that_need_modules_are_those_that_run_or_start_next_or_can_have_them(running, may_boot, headers, need):
    facts = {"running": running, "may_boot": may_boot, "headers": headers}
    assert host_inventory.kernels_that_need_modules(facts) == need


def test_headers_say_nothing_about_modules_that_nobody_builds():
    facts = {"running": "6.1.0-2", "may_boot": ["6.1.0-1", "6.1.0-2"], "headers": ["6.1.0-1", "6.1.0-2"]}
    assert host_inventory.kernels_that_need_modules(facts, by_dkms=False) == ["6.1.0-2"]


@pytest.mark.parametrize(
    ("config", "proc_version", "major"),
    [
        ('CONFIG_CC_VERSION_TEXT="gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0"\nCONFIG_GCC_VERSION=120200\n', "", 12),
        ("# CONFIG_X is not set\nCONFIG_GCC_VERSION=90400\n", "Linux version 5.4.0 (gcc-8 (Debian) 8.3.0)", 9),
        ('CONFIG_CC_VERSION_TEXT="clang version 17.0.6"\nCONFIG_GCC_VERSION=0\n', "", None),
        (
            None,
            "Linux version 6.8.0-90-generic (buildd@lcy02) (x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0-6ubuntu2) 13.3.0, GNU ld",
            13,
        ),
        (None, "Linux version 5.4.0-1 (buildd@lgw01) (gcc version 9.4.0 (Ubuntu 9.4.0-1ubuntu1~20.04.2)) #1 SMP", 9),
        (None, "Linux version 6.18.44 (builder@host) (gcc (GCC) 15.3.0, GNU ld (GNU Binutils) 2.46) #1 SMP", 15),
        (None, "Linux version 6.8.0 (me@host) (clang version 17.0.6, LLD 17.0.6) #1 SMP", None),
        (None, "", None),
    ],
)
def test_the_compiler_of_a_kernel_is_that_of_its_config_or_of_the_running_kernel(tmp_path, config, proc_version, major):
    add_files(tmp_path, {"proc/sys/kernel/osrelease": "6.8.0\n", "proc/version": proc_version})
    if config is not None:
        add_files(tmp_path, {"boot/config-6.8.0": config})
    assert host_inventory.kernel(tmp_path)["compilers"] == {"6.8.0": major}


def test_a_kernel_that_does_not_run_has_no_compiler_from_the_running_one(tmp_path):
    add_files(
        tmp_path,
        {
            "proc/sys/kernel/osrelease": "6.8.0\n",
            "proc/version": "Linux version 6.8.0 (a@b) (gcc-13 (Debian 13.2.0-1) 13.2.0, GNU ld) #1",
            "lib/modules/6.9.0/modules.dep": "",
            "boot/vmlinuz-6.9.0": "",
        },
    )
    assert host_inventory.kernel(tmp_path)["compilers"] == {"6.9.0": None, "6.8.0": 13}


def test_compilers_are_read_from_links_and_their_helpers_do_not_count(tmp_path):
    names = ("x86_64-linux-gnu-gcc-11", "x86_64-linux-gnu-gcc-12", "x86_64-linux-gnu-gcc-ar-12", "gcc-nm-12", "c++-12")
    add_files(tmp_path, {f"usr/bin/{name}": "" for name in names})
    links = {"gcc": "gcc-12", "gcc-12": "x86_64-linux-gnu-gcc-12", "gcc-11": "x86_64-linux-gnu-gcc-11", "gcc-9": "gone"}
    for name, target in links.items():
        (tmp_path / "usr/bin" / name).symlink_to(target)
    assert host_inventory.compilers(tmp_path) == {"gcc": 12, "gcc-11": 11, "gcc-12": 12}


def test_the_default_compiler_may_be_chosen_through_alternatives(tmp_path):
    add_files(tmp_path, {"usr/bin/gcc-11": "", "usr/bin/gcc-12": "", "etc/alternatives/README": ""})
    (tmp_path / "etc/alternatives/gcc").symlink_to(tmp_path / "usr/bin/gcc-11")
    (tmp_path / "usr/bin/gcc").symlink_to(tmp_path / "etc/alternatives/gcc")
    assert host_inventory.compilers(tmp_path)["gcc"] == 11


def test_a_host_without_compiler_has_none(tmp_path):
    assert host_inventory.compilers(tmp_path) == {"gcc": None}


# --- the key of DKMS


def stand_in_mokutil(directory: Path, text: str, code: int) -> str:
    """Write a stand-in for mokutil that checks how it is called; its words are those of mokutil 0.6.0."""
    return fake_program(
        directory, "mokutil", f'[ "$1" = --test-key ] && [ -s "$2" ] || exit 99\nprintf "%s\\n" "$2 {text}"; exit {code}'
    )


@pytest.mark.parametrize(
    ("text", "code", "enrolled"),
    [
        ("is already enrolled", 1, True),
        ("is already in db", 1, True),
        ("is not enrolled", 0, False),
        ("is already in the enrollment request", 1, False),
        ("is blocked in MokListXRT", 1, False),
        ("Failed to read MokListRT: Permission denied", 13, None),
    ],
)
def test_whether_the_firmware_trusts_the_key_of_dkms_is_what_mokutil_says(tmp_path, text, code, enrolled):
    add_files(tmp_path, {"var/lib/dkms/mok.pub": "DER", "sys/firmware/efi/fw_platform_size": "64"})
    mokutil = stand_in_mokutil(tmp_path, text, code)
    assert host_inventory.module_key(tmp_path, mokutil) == {"path": "/var/lib/dkms/mok.pub", "enrolled": enrolled}


def test_the_key_of_ubuntu_comes_before_that_of_dkms(tmp_path):
    add_files(tmp_path, {"var/lib/dkms/mok.pub": "DER", "var/lib/shim-signed/mok/MOK.der": "DER"})
    assert host_inventory.module_key(tmp_path, None) == {"path": "/var/lib/shim-signed/mok/MOK.der", "enrolled": None}


@pytest.mark.parametrize("missing", ["key", "EFI", "mokutil"])
def test_without_key_or_efi_or_mokutil_nobody_knows_whether_the_key_is_enrolled(tmp_path, missing):
    files = {"key": {"var/lib/dkms/mok.pub": "DER"}, "EFI": {"sys/firmware/efi/fw_platform_size": "64"}}
    for name in files.keys() - {missing}:
        add_files(tmp_path, files[name])
    mokutil = None if missing == "mokutil" else stand_in_mokutil(tmp_path, "is already enrolled", 1)
    assert host_inventory.module_key(tmp_path, mokutil)["enrolled"] is None


def test_use_of_a_file_system_follows_df():
    """Root's reserve is no part of the whole, and the percentage is rounded up."""
    status = SimpleNamespace(f_frsize=4096, f_blocks=1_000_000, f_bfree=200_000, f_bavail=150_000)
    assert host_inventory.file_system(status) == {"size_mib": 3906, "used_percent": 85}
    status.f_bavail -= 10_000
    assert host_inventory.file_system(status)["used_percent"] == 86


def test_active_swap_is_listed_in_mib(tmp_path):
    header = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
    add_files(tmp_path, {"proc/swaps": header + "/swap\\040file file\t\t2097148\t\t1024\t\t-2\n"})
    assert host_inventory.swap(tmp_path) == [{"name": "/swap file", "type": "file", "size_mib": 2047, "used_mib": 1}]


@pytest.mark.parametrize(
    ("files", "version"),
    [
        (["cgroup.controllers"], "v2"),
        (["memory/tasks", "unified/cgroup.controllers"], "hybrid"),
        (["memory/tasks"], "v1"),
        ([], None),
    ],
)
def test_cgroup_versions_are_told_apart(tmp_path, files, version):
    add_files(tmp_path, {f"sys/fs/cgroup/{name}": "" for name in files})
    assert host_inventory.cgroup_version(tmp_path) == version


def test_the_distribution_is_named_as_os_release_names_it(tmp_path):
    text = '# a comment\nNAME="Pop!_OS"\nID=pop\nID_LIKE="ubuntu debian"\nVERSION_ID="22.04"\nVERSION_CODENAME=jammy\n'
    add_files(tmp_path, {"etc/os-release": text})
    assert host_inventory.distribution(tmp_path) == {"id": "pop", "version_id": "22.04", "codename": "jammy"}


@pytest.mark.parametrize(("machine", "name"), [("x86_64", "amd64"), ("aarch64", "arm64"), ("riscv64", "riscv64")])
def test_architectures_have_the_names_of_dpkg(machine, name):
    assert host_inventory.architecture(machine) == name


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"run/systemd/container": "podman\n"}, "podman"),
        ({"proc/1/environ": "PATH=/bin\0container=lxc\0"}, "lxc"),
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"proc/1/environ": "PATH=/bin\0"}, None),
    ],
)
def test_containers_are_known_by_their_marks(tmp_path, files, name):
    assert host_inventory.virtualization(add_files(tmp_path, files))["container"] == name


@pytest.mark.parametrize(
    ("files", "hypervisor"),
    [
        ({"proc/cpuinfo": "flags\t\t: fpu sse hypervisor lm\n", "sys/class/dmi/id/sys_vendor": "Amazon EC2\n"}, True),
        ({"proc/cpuinfo": "Features\t: fp asimd\n", "sys/class/dmi/id/sys_vendor": "QEMU\n"}, True),
        ({"proc/cpuinfo": "flags\t\t: fpu sse lm\n", "sys/class/dmi/id/sys_vendor": "Supermicro\n"}, False),
    ],
)
def test_virtual_machines_are_known_by_cpu_flag_or_firmware(tmp_path, files, hypervisor):
    assert host_inventory.virtualization(add_files(tmp_path, files))["hypervisor"] is hypervisor


# --- reachability


@pytest.mark.parametrize("endpoint", ["mirror", "mirror:", ":443", "mirror:0", "mirror:65536", "mirror:https"])
def test_a_malformed_endpoint_is_refused_with_the_form_that_was_expected(endpoint):
    with pytest.raises(ValueError, match="expected host:port"):
        reachability.split_endpoint(endpoint)


def test_an_ipv6_endpoint_is_split_at_the_last_colon():
    assert reachability.split_endpoint("[2001:db8::1]:443") == ("2001:db8::1", 443)


def test_an_endpoint_that_listens_is_reachable_and_a_closed_one_is_not():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as closed:
        endpoints = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in (server, closed)]
        closed.close()
        answers = reachability.probe(endpoints, 5)
    assert [(answer["endpoint"], bool(answer["error"])) for answer in answers] == [
        (endpoints[0], False),
        (endpoints[1], True),
    ]


def test_hanging_endpoints_cost_the_timeout_once(monkeypatch):
    """Such as name resolution, which knows no timeout."""
    released = threading.Event()

    def hang(*_):
        released.wait(10)
        raise OSError

    monkeypatch.setattr(reachability.socket, "create_connection", hang)
    began = time.monotonic()
    answers = reachability.probe(["a:1", "b:1", "c:1"], 0.2)
    released.set()
    assert time.monotonic() - began < 1
    assert {answer["error"] for answer in answers} == {"no answer within 0.2 s"}


# --- module


def keys(value: object, contains: dict, path: str = "") -> set[str]:
    """Return the paths of all keys of a tree of facts; a dictionary that is documented as a whole has keys of its own."""
    if isinstance(value, list):
        return set().union(*(keys(item, contains, path) for item in value))
    if not isinstance(value, dict) or (path and not contains):
        return set()
    return {f"{path}.{key}" for key in value}.union(
        *(keys(item, contains.get(key, {}).get("contains", {}), f"{path}.{key}") for key, item in value.items())
    )


def documented(contains: dict, path: str = "") -> set[str]:
    """Return the paths of all keys that a RETURN block names."""
    return {f"{path}.{key}" for key in contains}.union(
        *(documented(entry.get("contains", {}), f"{path}.{key}") for key, entry in contains.items())
    )


@pytest.mark.parametrize("check", [False, True])
def test_the_module_gathers_this_host_and_changes_nothing(run_module, check):
    result = run_module(groundwork_facts, check=check)
    facts = result["ansible_facts"]["groundwork_gpu"]
    assert not result["changed"]
    assert facts["kernel"]["running"] == os.uname().release
    assert facts["reachable"] == []


def test_the_module_names_the_option_that_holds_a_malformed_endpoint(run_module):
    result = run_module(groundwork_facts, reachable=["mirror"])
    assert result["failed"]
    assert result["msg"].startswith("reachable: 'mirror' is not an endpoint")


def test_every_fact_is_documented_and_every_documented_fact_is_there(two_a40):
    add_files(
        two_a40,
        {
            "proc/modules": "nvidia 1 0 - Live 0x0\n",
            "proc/swaps": "Filename\n/swapfile file 1024 0 -2\n",
            "var/lib/dpkg/status": "Package: libnvidia-ml1\nStatus: install ok installed\nVersion: 535.261.03-1\n",
        },
    )
    programs = {"nvidia-smi": fake_nvidia_smi(two_a40, "echo 'GPU 0: NVIDIA A40 (UUID: GPU-1a)'")}
    facts = host_facts.gather(two_a40, programs.get, 10) | {"reachable": [{"endpoint": "a:1", "error": None}]}
    tree = yaml.safe_load(groundwork_facts.RETURN)["ansible_facts"]["contains"]["groundwork_gpu"]["contains"]
    assert keys(facts, tree) == documented(tree)


@pytest.mark.parametrize("name", ["library/groundwork_facts.py", *(f"module_utils/{name}.py" for name in MODULES)])
def test_the_module_parses_on_the_oldest_python_that_is_let_through(name):
    """A host with Python 3.9 gets all its findings, not a SyntaxError."""
    ast.parse((ROOT / name).read_text(), feature_version=(3, 9))
