"""playbooks/reboot.yml on two real kernels: what it refuses, where it stops, how the next run goes on. In this order."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
import testinfra

ROOT = Path(__file__).parents[3]
NAMES = ("molecule-reboot-1", "molecule-reboot-2")
FLAG = "mkdir -p /run/groundwork/reboot-required.d && echo 'new firmware' > /run/groundwork/reboot-required.d/firmware"
LATE_SSH = """
[Unit]
Description=A firmware that takes its time
[Service]
ExecStart=/bin/sh -c 'sleep 60; systemctl enable --now ssh; rm /etc/systemd/system/late.service'
[Install]
WantedBy=multi-user.target
"""


@pytest.fixture(scope="module")
def hosts():
    config = f"{os.environ['GROUNDWORK_CACHE']}/vm/ssh_config"
    return [testinfra.get_host(f"ssh://{name}", ssh_config=config) for name in NAMES]


@pytest.fixture(scope="module")
def reboot():
    """Run the playbook as an operator does; return exit code and output."""

    def run(*arguments):
        inventory = f"{os.environ['MOLECULE_EPHEMERAL_DIRECTORY']}/inventory"
        argv = ["ansible-playbook", "-i", inventory, "playbooks/reboot.yml", *arguments]
        result = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        print(result.stdout, result.stderr)
        return result.returncode, " ".join(result.stdout.split())

    return run


def boot_ids(hosts):
    return [host.check_output("cat /proc/sys/kernel/random/boot_id") for host in hosts]


def hooks(host):
    return host.run("cat /root/hooks").stdout.splitlines()


@pytest.fixture(scope="module")
def before(hosts):
    """The ids of the boots before the tests, and both hosts flagged."""
    for host in hosts:
        host.check_output(FLAG)
    return boot_ids(hosts)


NO_INITRAMFS = (
    "mv /boot/initrd.img-$(uname -r) /boot/kept",
    "mv /boot/kept /boot/initrd.img-$(uname -r)",
)
# As after an upgrade of the kernel that DKMS did not follow: 6.1.0-57-amd64 to 6.9.0-57-amd64, a copy that also says so in its
# header. The driver's module is a stand-in: a line in modules.dep.
VERSIONS = "old=$(uname -r); new=6.9.${old#*.*.}; "
NO_DRIVER = (
    VERSIONS + "cd /lib/modules && cp -rl $old $new && cp /boot/initrd.img-$old /boot/initrd.img-$new && "
    'LC_ALL=C sed "s/$old/$new/" /boot/vmlinuz-$old > /boot/vmlinuz-$new && update-grub && '
    "mv $old/modules.dep kept && cp kept $old/modules.dep && echo updates/dkms/nvidia.ko: >> $old/modules.dep",
    VERSIONS + "rm -r /lib/modules/$new /boot/*-$new && cd /lib/modules && mv kept $old/modules.dep && update-grub",
)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        pytest.param(NO_INITRAMFS, ["/boot/initrd.img-", "update-initramfs -c -k"], id="no initramfs"),
        pytest.param(NO_DRIVER, ["nvidia", "dkms autoinstall -k 6.9.0-"], id="no driver"),
    ],
)
def test_a_host_that_would_not_come_back_usable_is_refused_and_so_are_all(hosts, before, reboot, fault, told):
    spoil, mend = fault
    hosts[0].check_output(spoil)
    code, output = reboot()
    hosts[0].check_output(mend)
    assert code != 0
    assert [text for text in told if text not in output] == []
    assert "neither drained nor rebooted" in output
    assert (boot_ids(hosts), [hooks(host) for host in hosts]) == (before, [[], []])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(["-e", "groundwork_reboot=prompt"], "was not rebooted, since nobody agreed", id="nobody answers"),
        pytest.param(["--check"], "Would reboot molecule-reboot-2 (firmware: new firmware)", id="dry run"),
    ],
)
def test_nobody_agreed_so_nothing_happens(hosts, before, reboot, arguments, told):
    code, output = reboot(*arguments)
    assert code == 0
    assert told in output
    assert (boot_ids(hosts), [hooks(host) for host in hosts]) == (before, [[], []])


def test_the_run_stops_at_a_host_that_stays_away(hosts, before, reboot):
    first, second = hosts
    first.check_output("printf %s > /etc/systemd/system/late.service && systemctl disable ssh && systemctl enable late", LATE_SSH)
    code, output = reboot("-e", "groundwork_reboot_timeout=60")
    assert code != 0
    assert "molecule-reboot-1 did not answer within 60 s after its reboot" in output
    assert "stays drained" in output
    assert boot_ids([second]) == before[1:]
    assert hooks(second) == []


def test_the_next_run_finishes_that_host_and_goes_on(hosts, before, reboot):
    argv = ["ssh", "-F", f"{os.environ['GROUNDWORK_CACHE']}/vm/ssh_config", "-o", "ConnectTimeout=5", NAMES[0], "true"]
    end = time.monotonic() + 400
    while subprocess.run(argv, check=False, capture_output=True).returncode != 0:
        assert time.monotonic() < end, "the host did not come back"
        time.sleep(1)
    code, _ = reboot()
    assert code == 0
    after = boot_ids(hosts)
    assert set(after).isdisjoint(before)
    for host, old, new in zip(hosts, before, after, strict=True):
        assert hooks(host) == [f"drain in boot {old}", f"undrain in boot {new}"]
        assert not host.file("/run/groundwork/reboot-required.d/firmware").exists
        assert not host.file("/var/lib/groundwork/reboot.json").exists


def test_after_that_there_is_nothing_to_do(hosts, reboot):
    after = boot_ids(hosts)
    code, output = reboot()
    assert code == 0
    assert "changed=0" in output
    assert "changed=1" not in output
    assert boot_ids(hosts) == after
