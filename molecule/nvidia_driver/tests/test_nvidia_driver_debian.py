"""The real driver of Debian, after an upgrade and the way back."""

import pytest


@pytest.mark.parametrize("package", ["nvidia-kernel-dkms", "libcuda1", "nvidia-smi", "firmware-nvidia-gsp", "libnvidia-ml1"])
def test_the_version_before_the_upgrade_is_back(host, package):
    assert host.package(package).version == "535.261.03-1"


def test_all_five_modules_are_in_place(host):
    found = host.check_output("find /lib/modules -path '*updates/dkms*' -name 'nvidia-current*.ko' -printf '%f\\n'").split()
    names = ["nvidia-current-drm.ko", "nvidia-current-modeset.ko", "nvidia-current-peermem.ko", "nvidia-current-uvm.ko"]
    assert sorted(found) == [*names, "nvidia-current.ko"]


def test_the_way_forth_is_on_the_host_too(host):
    files = host.check_output("ls /var/lib/groundwork/nvidia_driver/debs").split()
    versions = {name.split("_")[1] for name in files if name.startswith("nvidia-kernel-dkms_")}
    assert versions == {"535.261.03-1", "535.309.01-0+deb12u1"}


def test_nvidia_smi_runs_and_finds_no_driver(host):
    """The container has no GPU, and loads nothing into the kernel that it shares."""
    result = host.run("nvidia-smi")
    assert (result.rc, result.stdout.startswith("NVIDIA-SMI has failed because it couldn't communicate")) == (9, True)


def test_nothing_of_a_desktop_came_along(host):
    assert host.run("dpkg-query --show xserver-xorg-core").rc == 1
