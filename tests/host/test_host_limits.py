"""Limits of any host that the role host_limits was applied to."""

from __future__ import annotations

import re

import pytest

MIB = 1024**2


def in_effect(host, config, key):
    """The last value that the merged configuration gives a key, as systemd reads it."""
    return re.findall(rf"^{key}=(.*)$", host.check_output("systemd-analyze cat-config %s", config), re.MULTILINE)[-1]


def of_role(host, config, key):
    """The value in the role's own drop-in."""
    return host.check_output("sed -n s/^%s=//p /etc/systemd/%s.d/90-groundwork.conf", key, config)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ("journald.conf", "Storage"),
        ("journald.conf", "SystemMaxUse"),
        ("journald.conf", "SystemKeepFree"),
        ("system.conf", "DefaultLimitNOFILE"),
    ],
)
def test_no_other_file_takes_back_what_the_role_sets(host, config, key):
    assert in_effect(host, f"systemd/{config}", key) == of_role(host, config, key)


def test_the_journal_is_on_disk(host):
    machine = host.check_output("cat /etc/machine-id")
    assert host.file(f"/var/log/journal/{machine}/system.journal").is_file


def test_the_journal_may_not_fill_its_file_system(host):
    disk = int(host.check_output("findmnt --bytes --noheadings --output SIZE --target /var/log/journal"))
    assert int(in_effect(host, "systemd/journald.conf", "SystemMaxUse").removesuffix("M")) * MIB < disk


def test_systemd_gives_services_the_limits_of_the_file(host):
    soft, hard = of_role(host, "system.conf", "DefaultLimitNOFILE").split(":")
    shown = host.check_output("systemctl show --property DefaultLimitNOFILESoft --property DefaultLimitNOFILE").split()
    assert set(shown) == {f"DefaultLimitNOFILESoft={soft}", f"DefaultLimitNOFILE={hard}"}


def test_the_hard_limit_is_one_that_the_kernel_allows(host):
    hard = int(of_role(host, "system.conf", "DefaultLimitNOFILE").split(":")[1])
    assert hard <= int(host.check_output("cat /proc/sys/fs/nr_open"))


@pytest.mark.parametrize("kind", ["soft", "hard"])
@pytest.mark.parametrize("who", ["*", "root"])
def test_logins_have_the_limits_of_services(host, who, kind):
    value = of_role(host, "system.conf", "DefaultLimitNOFILE").split(":")[kind == "hard"]
    assert f"{who} {kind} nofile {value}" in host.file("/etc/security/limits.d/90-groundwork.conf").content_string.splitlines()


def test_shared_memory_is_larger_than_the_64_mb_of_containers(host):
    assert int(host.check_output("findmnt --bytes --noheadings --output SIZE /dev/shm")) > 64 * MIB


def test_shared_memory_has_the_size_that_fstab_declares(host):
    declared = re.search(r"^\S+\s+/dev/shm\s.*\bsize=(\d+)M", host.file("/etc/fstab").content_string, re.MULTILINE)
    if not declared:
        pytest.skip("fstab sets no size: the host's default is larger than the wanted minimum")
    assert int(host.check_output("findmnt --bytes --noheadings --output SIZE /dev/shm")) == int(declared[1]) * MIB
