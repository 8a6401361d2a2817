"""What only looked like swap is as it was, after the role and a reboot. tests/host asserts that no swap is on."""

import pytest


def test_fstab_differs_from_before_in_its_swap_entries_only(host):
    before = host.file("/root/fstab.before").content.splitlines(keepends=True)
    # The role host_limits has added a line.
    after = [line for line in host.file("/etc/fstab").content.splitlines(keepends=True) if b" /dev/shm " not in line]
    assert {number: (old, new) for number, (old, new) in enumerate(zip(before, after, strict=True), 1) if old != new} == {
        number: (before[number - 1], b"# swap_removal: " + before[number - 1]) for number in (3, 4, 5)
    }


@pytest.mark.parametrize("path", ["/data/swapfiles", "/mnt"])
def test_a_mount_with_swap_in_its_line_is_mounted(host, path):
    assert host.mount_point(path).exists


def test_swap_partitions_and_files_keep_their_content(host):
    """They can be put back: the partition that the disk's table calls swap, too."""
    types = host.check_output("lsblk --noheadings --nodeps --output FSTYPE /dev/vda2 /dev/vda3 /dev/vda4").split()
    assert types == ["swap", "swap", "swap"]
    assert host.check_output("lsblk --noheadings --nodeps --output PARTTYPE /dev/vda4") == "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f"
    assert host.file("/swapfile").size == 32 * 1024**2


def test_the_unit_of_the_administrator_is_in_the_backup(host):
    (unit,) = host.check_output("ls /var/backups/groundwork/swap_removal/*/data-unitswap.swap | tail -n 1").splitlines()
    assert "What=/data/unitswap" in host.file(unit).content_string


def test_the_packages_that_make_swap_are_still_installed(host):
    for name in ("zram-tools", "systemd-zram-generator", "dphys-swapfile"):
        assert host.package(name).is_installed


def test_the_memory_of_zram_was_given_back(host):
    assert host.run("zramctl --noheadings --output NAME").stdout == ""


def test_the_host_came_up_whole(host):
    assert host.check_output("systemctl list-units --failed --plain --no-legend") == ""
