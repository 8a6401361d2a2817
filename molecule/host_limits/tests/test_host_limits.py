"""The limits that the scenario's variables give a container; all are asked from the running system."""

from __future__ import annotations

import json

import pytest

MIB = 1024**2
USAGE_MESSAGE = "MESSAGE_ID=ec387f577b844b8fa948f33cad9a75e6"


def journal_usage(host):
    """What journald said last about its own limits."""
    lines = host.check_output("journalctl --boot --output json JOURNAL_NAME='System Journal' %s", USAGE_MESSAGE)
    return json.loads(lines.splitlines()[-1])


@pytest.mark.parametrize(("field", "most"), [("MAX_USE", 10240 * MIB), ("DISK_KEEP_FREE", 4096 * MIB)])
def test_journald_runs_with_the_size_or_its_share_of_the_disk(host, field, most):
    disk = int(host.check_output("findmnt --bytes --noheadings --output SIZE --target /var/log/journal"))
    assert int(journal_usage(host)[field]) == min(most, disk * 15 // 100 // MIB * MIB)


def test_journald_writes_to_the_disk(host):
    assert journal_usage(host)["JOURNAL_PATH"].startswith("/var/log/journal/")


def test_shared_memory_has_two_gib(host):
    """Podman gives a container 64 MB, so that the role had to raise it."""
    assert host.check_output("findmnt --bytes --noheadings --output SIZE /dev/shm") == "2147483648"


@pytest.mark.parametrize("option", ["nosuid", "nodev"])
def test_shared_memory_keeps_the_options_of_systemd(host, option):
    assert option in host.check_output("findmnt --noheadings --output OPTIONS /dev/shm").split(",")


def test_fstab_has_one_line_for_shared_memory(host):
    lines = host.file("/etc/fstab").content_string.splitlines()
    assert [line for line in lines if "shm" in line] == ["tmpfs /dev/shm tmpfs nosuid,nodev,size=2048M 0 0"]


def test_a_service_starts_with_the_limits(host):
    limits = host.check_output("systemd-run --quiet --wait --pipe sh -c 'ulimit -Sn; ulimit -Hn'")
    assert limits.split() == ["2048", "4096"]


def test_a_login_of_root_starts_with_the_limits(host):
    assert host.check_output("su --login root --command 'ulimit -Sn; ulimit -Hn; ulimit -l'").split() == ["2048", "4096", "8192"]


def test_a_login_of_another_user_starts_with_the_limits(host):
    assert host.check_output("su --shell /bin/sh --command 'ulimit -Sn; ulimit -Hn' nobody").split() == ["2048", "4096"]
