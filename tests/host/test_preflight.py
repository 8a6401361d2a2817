"""What holds on every host that passed preflight, whatever its profile. Read-only."""

from __future__ import annotations

import pytest

# (id, version) of /etc/os-release
SUPPORTED = {("debian", "12"), ("debian", "13"), ("ubuntu", "22.04"), ("ubuntu", "24.04")}


def test_the_release_is_supported(host):
    release = host.check_output(". /etc/os-release; echo $ID $VERSION_ID")
    assert tuple(release.split()) in SUPPORTED


def test_the_architecture_is_supported(host):
    assert host.check_output("uname -m") in {"x86_64", "aarch64"}


def test_python_runs_the_modules(host):
    assert host.run("python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'").succeeded


def test_the_root_file_system_is_not_about_to_be_full(host):
    """Below the point where services fail; the stricter threshold of preflight may be set otherwise for a fleet."""
    assert int(host.check_output("df --output=pcent / | tail -1").strip(" %")) < 95


def test_the_driver_answers_for_every_gpu_that_is_bound_to_it(host):
    if not host.file("/sys/module/nvidia").exists:
        pytest.skip("the nvidia module is not loaded")
    bound = host.check_output("ls /sys/bus/pci/drivers/nvidia | grep -c : || true")
    assert host.check_output("timeout -k 1 60 nvidia-smi -L | grep -c '^GPU ' || true") == bound
