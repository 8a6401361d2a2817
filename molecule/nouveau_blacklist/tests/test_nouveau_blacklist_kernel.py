"""The running kernel after a boot from the initramfs that the role had rebuilt. tests/host has the role's own assertions."""


def test_the_kernel_booted_from_the_image_that_holds_the_blacklist(host):
    image = f"/boot/initrd.img-{host.check_output('uname -r')}"
    assert "etc/modprobe.d/groundwork-nouveau.conf" in host.check_output("lsinitramfs %s", image).splitlines()
    written, booted = host.check_output("stat --format=%%Y %s", image), host.check_output("stat --format=%Y /proc/1")
    assert int(written) < int(booted)


def test_nouveau_is_there_and_would_load_without_the_role(host):
    assert host.check_output("modprobe --config /dev/null --dry-run --verbose nouveau").splitlines()[-1].startswith("insmod ")


def test_the_host_came_up_whole(host):
    assert host.check_output("systemctl list-units --failed --plain --no-legend") == ""


def test_the_flag_of_a_wanted_reboot_is_gone_after_it(host):
    assert not host.file("/run/reboot-required").exists
    assert not host.file("/run/groundwork/reboot-required.d/nouveau_blacklist").exists
