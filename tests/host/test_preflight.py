"""What holds on every host that passed preflight, whatever its profile. Read-only."""

from __future__ import annotations

import pytest


def test_the_host_has_what_every_role_builds_on(host):
    """Which releases and architectures a fleet allows is for its own policy to say, and preflight judged by that."""
    assert [name for name in ("apt-get", "systemctl") if not host.exists(name)] == []
    assert host.file("/run/systemd/system").is_directory


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
