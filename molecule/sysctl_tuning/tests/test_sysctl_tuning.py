"""The drop-in that the role's defaults give a host."""

from __future__ import annotations

import pytest

DROPIN = "/etc/sysctl.d/90-groundwork.conf"


@pytest.fixture(scope="module")
def values(host):
    lines = host.file(DROPIN).content_string.splitlines()
    return dict(line.split(" = ") for line in lines if not line.startswith("#"))


def test_the_file_says_who_owns_it(host):
    assert host.file(DROPIN).content_string.startswith("# Managed by Groundwork (role sysctl_tuning).")


def test_the_file_is_readable_by_all_and_writable_by_root(host):
    file = host.file(DROPIN)
    assert (file.user, file.group, file.mode) == ("root", "root", 0o644)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vm.swappiness", "1"),
        ("vm.vfs_cache_pressure", "50"),
        ("net.core.somaxconn", "65535"),
        ("net.ipv4.tcp_tw_reuse", "1"),
        ("net.ipv4.tcp_retries2", "5"),
    ],
)
def test_the_file_sets_the_value(values, key, value):
    assert values[key] == value


@pytest.mark.parametrize(("key", "minimum"), [("kernel.shmmax", 2147483648), ("fs.file-max", 2097152)])
def test_a_minimum_is_reached_and_not_below_what_the_kernel_has(host, values, key, minimum):
    assert int(values[key]) >= max(minimum, int(host.check_output("sysctl -n %s", key)))


def test_a_key_that_the_kernel_does_not_have_is_left_out(values):
    assert "dev.i915.enable_rc6" not in values


def test_the_live_values_are_left_alone_without_apply(host):
    """net.core.somaxconn starts with the kernel's default in each network namespace, so that this container has its own."""
    assert host.check_output("sysctl -n net.core.somaxconn") == "4096"


def test_a_second_run_would_not_add_lines(values, host):
    lines = host.file(DROPIN).content_string.splitlines()
    assert len([line for line in lines if not line.startswith("#")]) == len(values) == 7
