"""The host layer after a reboot, on a kernel of its own. The role's general assertions (tests/host) run beside these."""

import pytest

MIB = 1024**2


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
def test_the_boot_gave_the_kernel_the_tuned_value(host, key, value):
    assert host.check_output("sysctl -n %s", key) == value


@pytest.mark.parametrize(("key", "least"), [("kernel.shmmax", 2147483648), ("fs.file-max", 2097152)])
def test_a_minimum_never_lowered_what_the_kernel_has(host, key, least):
    assert int(host.check_output("sysctl -n %s", key)) > 1000 * least


def test_sysctl_conf_says_otherwise_where_the_boot_does_not_read_it(host):
    """On Debian 13 the file was there during the boot, so the value above proves that it is ignored."""
    if host.system_info.release.startswith("12"):
        pytest.skip("Debian 12 reads the file, and the role refuses it")
    assert "vm.swappiness = 77" in host.file("/etc/sysctl.conf").content_string


def test_shared_memory_is_enlarged_from_half_of_the_memory(host):
    memory = int(host.check_output("awk '/^MemTotal/ {print $2}' /proc/meminfo")) * 1024
    assert memory < 2048 * MIB
    assert int(host.check_output("findmnt --bytes --noheadings --output SIZE /dev/shm")) == 2048 * MIB


def test_the_journal_keeps_to_its_limit_over_a_reboot(host):
    assert int(host.check_output("du --summarize --bytes /var/log/journal").split()[0]) <= 25 * MIB
