"""What the driver's packages, module files and processes say, on made-up file trees, and what follows from it."""

from __future__ import annotations

import gzip
import importlib
import json
import lzma
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.module_utils import driver_facts, host_facts

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/standins"))
standin = importlib.import_module("nvidia_smi")

KERNEL = "6.1.0-57-amd64"
A40 = {"address": "0000:17:00.0", "id": "10de:2235", "name": "NVIDIA A40", "uuid": "GPU-1a"}


def package(name: str, version: str, source: str = "", status: str = "install ok installed") -> str:
    """Return a paragraph of dpkg's status file."""
    source = f"Source: {source}\n" if source else ""
    return f"Package: {name}\nStatus: {status}\nPriority: optional\n{source}Version: {version}\nDescription: of\n nvidia\n\n"


def write_packages(root: Path, *paragraphs: str) -> None:
    path = root / "var/lib/dpkg/status"
    path.parent.mkdir(parents=True)
    path.write_text("".join(paragraphs))


def module_bytes(version: str) -> bytes:
    """Return what matters of a module file: the section .modinfo between other bytes."""
    info = f"rhelversion=9.4\0version={version}\0srcversion=0123456789ABCDEF01234567\0license=NVIDIA\0"
    return b"\x7fELF" + b"\x01" * 3000 + info.encode() + b"\x02" * 3000


def write_module(root: Path, release: str, name: str, content: bytes) -> Path:
    """Write a kernel with one module, which its modules.dep lists as depmod does."""
    directory = root / "lib/modules" / release
    path = directory / "updates/dkms" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    (directory / "modules.dep").write_text(f"kernel/drivers/video/fbdev/nvidia/nvidiafb.ko:\nupdates/dkms/{name}: kernel/x.ko\n")
    (root / "boot").mkdir(exist_ok=True)
    (root / f"boot/vmlinuz-{release}").touch()
    return path


# --- packages


def test_packages_of_a_driver_are_told_from_others_by_the_catalog(tmp_path):
    write_packages(
        tmp_path, *(package(name, "1.0-1") for name in ("nvidia-smi", "nvidia-fs-dkms", "libnvidia-container1", "nvlsm", "bash"))
    )
    assert [entry["name"] for entry in driver_facts.driver_packages(tmp_path)] == ["nvidia-smi", "nvlsm"]


def test_packages_are_listed_with_version_and_source(tmp_path):
    write_packages(
        tmp_path,
        package("nvidia-smi", "535.261.03-1", "nvidia-graphics-drivers"),
        package("nvidia-persistenced", "535.171.04-1~deb12u1"),
        package("firmware-nvidia-gsp", "535.261.03-1", "nvidia-graphics-drivers (535.261.03-2)"),
    )
    assert driver_facts.driver_packages(tmp_path) == [
        {"name": "firmware-nvidia-gsp", "version": "535.261.03-1", "source": "nvidia-graphics-drivers"},
        {"name": "nvidia-persistenced", "version": "535.171.04-1~deb12u1", "source": "nvidia-persistenced"},
        {"name": "nvidia-smi", "version": "535.261.03-1", "source": "nvidia-graphics-drivers"},
    ]


@pytest.mark.parametrize(
    ("status", "counts"),
    [
        ("install ok installed", True),
        ("hold ok installed", True),
        ("install ok half-configured", True),
        ("install ok unpacked", True),
        ("install ok triggers-pending", True),
        ("deinstall ok config-files", False),
        ("purge ok not-installed", False),
        ("install reinstreq half-installed", False),
    ],
)
def test_a_package_counts_when_its_files_are_on_the_host(tmp_path, status, counts):
    write_packages(tmp_path, package("nvidia-dkms-575-open", "575.57.08-1", status=status))
    assert bool(driver_facts.driver_packages(tmp_path)) is counts


def test_two_architectures_of_a_package_are_one_entry(tmp_path):
    write_packages(tmp_path, *[package("libnvidia-compute-580", "580.95.05-1")] * 2)
    assert len(driver_facts.driver_packages(tmp_path)) == 1


def test_a_host_without_dpkg_has_no_packages(tmp_path):
    assert driver_facts.driver_packages(tmp_path) == []


@pytest.mark.parametrize(
    ("packages", "version"),
    [
        ({"libnvidia-ml1": "535.309.01-0+deb12u1", "nvidia-modprobe": "570.133.07-1"}, "535.309.01"),
        ({"libnvidia-tesla-535-ml1": "535.274.02-1~deb13u1"}, "535.274.02"),
        ({"libnvidia-tesla-ml1": "525.147.05-7~deb12u1"}, "525.147.05"),
        ({"libnvidia-compute-580-server": "580.95.05-0ubuntu0.24.04.1"}, "580.95.05"),
        ({"libnvidia-compute": "610.57.04-1ubuntu1"}, "610.57.04"),
        ({"libnvidia-compute-580": "1:580.95.05-1"}, "580.95.05"),
        # The transitional package is empty and newer in nothing but its revision.
        (
            {"libnvidia-compute-535": "535.309.01-0ubuntu0.22.04.2", "libnvidia-compute-580": "580.173.02-0ubuntu0.22.04.1"},
            "580.173.02",
        ),
        ({"libnvidia-compute-99": "99.1-1", "libnvidia-compute-580": "580.95.05-1"}, "580.95.05"),
        ({"nvidia-dkms-580": "580.95.05-1", "libnvidia-compute-580-extra": "1.0-1"}, None),
        ({}, None),
    ],
)
def test_the_installed_version_is_that_of_the_libraries(packages, version):
    listed = [{"name": name, "version": text, "source": name} for name, text in packages.items()]
    assert driver_facts.installed_version(listed) == version


# --- module files


@pytest.mark.parametrize(
    "name", ["nvidia.ko", "nvidia-current.ko", "nvidia-current-open.ko", "nvidia-tesla-535.ko", "nvidia-legacy-390xx.ko"]
)
def test_the_main_module_is_found_by_its_names(tmp_path, name):
    path = write_module(tmp_path, KERNEL, name, module_bytes("535.261.03"))
    assert driver_facts.module_files(tmp_path, KERNEL) == [path]


@pytest.mark.parametrize("name", ["nvidia-drm.ko", "nvidia-current-uvm.ko", "nvidiafb.ko", "i2c-nvidia-gpu.ko", "nouveau.ko"])
def test_other_modules_are_not_the_main_one(tmp_path, name):
    write_module(tmp_path, KERNEL, name, module_bytes("535.261.03"))
    assert driver_facts.will_boot(tmp_path, [KERNEL], None) == {KERNEL: None}


def zstd(content: bytes) -> bytes:
    return subprocess.run(["zstd", "--stdout", "--quiet"], input=content, capture_output=True, check=True).stdout


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        ("", bytes),
        (".gz", gzip.compress),
        (".xz", lzma.compress),
        pytest.param(".zst", zstd, marks=pytest.mark.skipif(not shutil.which("zstd"), reason="needs the program zstd")),
    ],
)
def test_the_version_of_a_module_is_read_whatever_compressed_it(tmp_path, suffix, compress):
    write_module(tmp_path, KERNEL, f"nvidia.ko{suffix}", compress(module_bytes("580.95.05")))
    assert driver_facts.will_boot(tmp_path, [KERNEL], shutil.which("zstd")) == {KERNEL: "580.95.05"}


@pytest.mark.parametrize("before", range(-30, 5, 5))
def test_the_version_is_found_across_the_border_of_two_chunks(tmp_path, before):
    path = tmp_path / "nvidia.ko"
    path.write_bytes(b"\x01" * ((1 << 20) + before) + b"version=580.95.05\0" + b"\x01" * 5000)
    assert driver_facts.module_version(path, None) == "580.95.05"


@pytest.mark.parametrize(
    ("name", "content", "zstd"),
    [
        ("nvidia.ko", module_bytes("580.95.05")[:3000], None),
        ("nvidia.ko.xz", lzma.compress(module_bytes("580.95.05"))[:100], None),
        ("nvidia.ko.xz", b"not xz", None),
        ("nvidia.ko.gz", gzip.compress(module_bytes("580.95.05"))[:60], None),
        ("nvidia.ko.zst", b"whatever", "/nonexistent/zstd"),
        ("nvidia.ko", b"", None),
    ],
    ids=["cut", "cut xz", "no xz", "cut gzip", "zstd without zstd", "empty"],
)
def test_a_damaged_module_is_not_taken_for_none(tmp_path, name, content, zstd):
    write_module(tmp_path, KERNEL, name, content)
    assert driver_facts.will_boot(tmp_path, [KERNEL], zstd) == {KERNEL: "unreadable"}


def test_a_module_that_depmod_lists_and_nobody_finds_is_unreadable(tmp_path):
    write_module(tmp_path, KERNEL, "nvidia.ko", b"").unlink()
    assert driver_facts.will_boot(tmp_path, [KERNEL], None) == {KERNEL: "unreadable"}


def test_each_kernel_has_its_own_module(tmp_path):
    write_module(tmp_path, "6.1.0-56-amd64", "nvidia.ko", module_bytes("535.261.03"))
    write_module(tmp_path, KERNEL, "nvidia.ko", module_bytes("535.309.01"))
    (tmp_path / "lib/modules/6.1.0-58-amd64").mkdir()
    kernels = ["6.1.0-56-amd64", KERNEL, "6.1.0-58-amd64"]
    expected = {"6.1.0-56-amd64": "535.261.03", KERNEL: "535.309.01", "6.1.0-58-amd64": None}
    assert driver_facts.will_boot(tmp_path, kernels, None) == expected


# --- record and daemon


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('{"wanted": {"version": "580.95.05"}}', "580.95.05"),
        ('{"wanted": {"version": "535.261.03-1", "source": "distribution"}}', "535.261.03"),
        ('{"wanted": {"version": ""}}', None),
        ('{"wanted": null}', None),
        ('{"previous": {}}', None),
        ("[]", None),
        ('{"wanted": {"vers', None),
    ],
)
def test_the_wanted_version_is_the_one_on_record(tmp_path, text, version):
    path = tmp_path / "var/lib/groundwork/driver.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert driver_facts.wanted_version(tmp_path) == version


def test_nothing_is_wanted_where_nothing_is_on_record(tmp_path):
    assert driver_facts.wanted_version(tmp_path) is None


@pytest.mark.parametrize(
    ("command", "persistent"),
    [
        ("/usr/bin/nvidia-persistenced --user nvpd", True),
        ("/usr/bin/nvidia-persistenced --user root --persistence-mode --verbose", True),
        ("/usr/bin/nvidia-persistenced --user nvidia-persistenced --no-persistence-mode --verbose", False),
        ("grep nvidia-persistenced", False),
    ],
    ids=["Debian", "explicit", "Ubuntu", "no daemon"],
)
def test_persistence_needs_a_daemon_that_was_not_started_without_it(tmp_path, command, persistent):
    for number, text in (("1", "/sbin/init"), ("2", ""), ("812", command)):
        (tmp_path / "proc" / number).mkdir(parents=True)
        (tmp_path / "proc" / number / "cmdline").write_text("".join(f"{part}\0" for part in text.split()))
    assert driver_facts.persistence(tmp_path) is persistent


# --- drift

OLD, NEW, OLD_KERNEL = "580.65.06", "580.95.05", "6.1.0-56-amd64"


@pytest.mark.parametrize(
    ("wanted", "installed", "loaded", "modules", "has_gpu", "state", "said"),
    [
        (NEW, NEW, NEW, {KERNEL: NEW}, True, "in_order", "580.95.05 is installed and loaded"),
        (None, NEW, NEW, {KERNEL: NEW}, True, "in_order", "580.95.05 is installed and loaded"),
        (NEW, NEW, NEW, {}, True, "in_order", "580.95.05 is installed and loaded"),
        (NEW, NEW, None, {KERNEL: NEW}, False, "in_order", "this host has no GPU for it"),
        (NEW, NEW, OLD, {KERNEL: NEW}, True, "reboot_pending", "580.95.05 is installed and 580.65.06 is still loaded"),
        (None, NEW, OLD, {}, True, "reboot_pending", "580.65.06 is still loaded"),
        (NEW, NEW, None, {KERNEL: NEW}, True, "reboot_pending", "installed and not loaded"),
        (NEW, OLD, OLD, {KERNEL: OLD}, True, "mismatch", "580.95.05 is wanted and 580.65.06 is installed"),
        (OLD, NEW, OLD, {KERNEL: NEW}, True, "mismatch", "580.65.06 is wanted and 580.95.05 is installed"),
        (NEW, NEW, OLD, {KERNEL: OLD}, True, "mismatch", f"kernel {KERNEL} has the module of 580.65.06"),
        (NEW, NEW, NEW, {OLD_KERNEL: NEW, KERNEL: None}, True, "mismatch", f"kernel {KERNEL} has no module of it"),
        (NEW, NEW, NEW, {KERNEL: "unreadable"}, True, "mismatch", f"kernel {KERNEL} has a module that can't be read"),
        (
            None,
            None,
            OLD,
            {KERNEL: OLD},
            True,
            "mismatch",
            "no package of the NVIDIA driver is installed, but version 580.65.06 is",
        ),
        (NEW, None, None, {KERNEL: OLD}, True, "mismatch", "but a kernel has its module"),
        (None, None, None, {KERNEL: None}, True, "not_installed", "no NVIDIA driver is installed"),
        (NEW, None, None, {}, False, "not_installed", "no NVIDIA driver is installed, and 580.95.05 is wanted"),
    ],
)
def test_drift_is_told_with_its_remedy(wanted, installed, loaded, modules, has_gpu, state, said):  # noqa: PLR0913, PLR0917 - a table
    result = driver_facts.drift(
        wanted=wanted, installed=installed, loaded=loaded, modules=modules, needed=list(modules), has_gpu=has_gpu
    )
    assert (result["state"], said in result["message"]) == (state, True), result["message"]
    assert "\n" not in result["message"]
    facts = {"wanted": wanted, "installed": installed, "loaded": loaded, "will_boot": modules}
    assert {name: result[name] for name in facts} == facts


@pytest.mark.parametrize(
    ("old_module", "needed", "state", "said"),
    [
        (None, [KERNEL], "in_order", "580.95.05 is installed and loaded"),
        (OLD, [KERNEL], "in_order", "580.95.05 is installed and loaded"),
        (None, [OLD_KERNEL, KERNEL], "mismatch", f"kernel {OLD_KERNEL} has no module of it"),
        (OLD, [OLD_KERNEL, KERNEL], "mismatch", f"kernel {OLD_KERNEL} has the module of 580.65.06"),
    ],
)
def test_kernels_that_need_no_module_may_lack_it(old_module, needed, state, said):
    modules = {OLD_KERNEL: old_module, KERNEL: NEW}
    result = driver_facts.drift(wanted=NEW, installed=NEW, loaded=NEW, modules=modules, needed=needed, has_gpu=True)
    assert (result["state"], said in result["message"]) == (state, True), result["message"]


@pytest.mark.parametrize(
    ("packages", "needed", "state"),
    [
        (["libnvidia-compute-580"], ["6.8.0-88-generic", "6.8.0-90-generic"], "mismatch"),
        (["libnvidia-compute-580", "linux-modules-nvidia-580-open-generic"], ["6.8.0-90-generic"], "in_order"),
    ],
    ids=["by DKMS", "signed by Canonical"],
)
def test_an_older_kernel_with_headers_needs_the_module_if_dkms_builds_it(tmp_path, packages, needed, state):
    """Canonical's signed modules come in packages for a kernel each, and an old kernel keeps its headers."""
    standin.write_host(tmp_path, {"driver_version": "580.95.05", "flavour": "open", "gpus": [A40]})
    write_packages(tmp_path, *(package(name, "580.95.05-0ubuntu0.24.04.1") for name in packages))
    write_module(tmp_path, "6.8.0-90-generic", "nvidia.ko", module_bytes("580.95.05"))
    for folder in ("proc/sys/kernel", "lib/modules/6.8.0-88-generic/build", "lib/modules/6.8.0-90-generic/build"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "boot/vmlinuz-6.8.0-88-generic").touch()
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.8.0-90-generic\n")
    facts = host_facts.gather(tmp_path, {}.get, 10)
    assert facts["kernel"]["need_modules"] == needed
    assert facts["driver_drift"]["state"] == state


def test_an_unattended_upgrade_of_the_libraries_is_a_pending_reboot(tmp_path):
    """Nobody deployed anything, and yet programs fail from then on."""
    standin.write_host(tmp_path, {"driver_version": "580.65.06", "flavour": "open", "gpus": [A40]})
    write_packages(tmp_path, package("libnvidia-compute-580", "580.95.05-0ubuntu0.24.04.1", "nvidia-graphics-drivers-580"))
    write_module(tmp_path, "6.8.0-90-generic", "nvidia.ko", module_bytes("580.95.05"))
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.8.0-90-generic\n")
    record = tmp_path / "var/lib/groundwork/driver.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"wanted": {"version": "580.95.05"}}))
    assert host_facts.gather(tmp_path, {}.get, 10)["driver_drift"] == {
        "wanted": "580.95.05",
        "installed": "580.95.05",
        "loaded": "580.65.06",
        "will_boot": {"6.8.0-90-generic": "580.95.05"},
        "state": "reboot_pending",
        "message": "NVIDIA driver 580.95.05 is installed and 580.65.06 is still loaded: new programs can't use the GPUs until "
        "the modules are loaded anew, or the host reboots",
    }
