"""Kernel modules and initramfs images of any host that the role nouveau_blacklist was applied to."""

from __future__ import annotations

import re

import pytest

FILE = "/etc/modprobe.d/groundwork-nouveau.conf"
PENDING = "/var/lib/groundwork/initramfs-pending"
FLAG = "/run/groundwork/reboot-required.d/nouveau_blacklist"
#: What udev asks for when the kernel finds a Tesla V100.
ALIAS = "pci:v000010DEd00001DB1sv000010DEsd00001212bc03sc02i00"


@pytest.fixture(scope="module")
def ours(host):
    """The text of the role's file."""
    assert host.file(FILE).exists, f"{FILE} is not there: apply the role"
    return host.file(FILE).content_string


@pytest.fixture(scope="module")
def blacklisted(ours):
    return re.findall(r"^blacklist (\S+)$", ours, re.MULTILINE)


@pytest.fixture(scope="module")
def kernels(host):
    """The installed kernels, running or not."""
    found = [path.split("/")[-2] for path in host.run("ls /lib/modules/*/modules.dep").stdout.split()]
    if not found:
        pytest.skip("no kernel is installed")
    return found


@pytest.fixture(scope="module")
def images(host, kernels):
    """The initramfs of each installed kernel."""
    names = [f"/boot/{name}" for kernel in kernels for name in (f"initrd.img-{kernel}", f"initramfs-{kernel}.img")]
    found = [name for name in names if host.file(name).exists]
    if not found:
        pytest.skip("no kernel has an initramfs")
    return found


def in_a_container(host):
    return host.run("systemd-detect-virt --container --quiet").succeeded


def test_every_line_of_the_file_is_in_force(host, ours):
    in_force = host.check_output("modprobe --showconfig").splitlines()
    lines = [line for line in ours.splitlines() if not line.startswith("#")]
    assert lines
    assert [line for line in lines if line not in in_force] == []


def test_udev_loads_no_nouveau_for_an_nvidia_gpu_whatever_kernel_boots(host, blacklisted, kernels):
    if "nouveau" not in blacklisted:
        pytest.skip("the role leaves nouveau alone")

    def loads_nouveau(kernel, *options):
        # As udev would, but without doing it. A kernel without nouveau says on standard error that nothing answers.
        command = " ".join(["modprobe --set-version %s --use-blacklist --verbose --dry-run", *options, ALIAS])
        return "/nouveau.ko" in host.run(command, kernel).stdout

    tempted = [kernel for kernel in kernels if loads_nouveau(kernel, "--config /dev/null")]
    if not tempted:
        pytest.skip("no installed kernel has nouveau")
    assert [kernel for kernel in tempted if loads_nouveau(kernel)] == []


def test_a_forbidden_module_cannot_be_loaded_by_name(host, ours, kernels):
    forbidden = re.findall(r"^install (\S+) /bin/false$", ours, re.MULTILINE)
    if not forbidden:
        pytest.skip("the modules may be loaded by name (nouveau_blacklist_forbid: false)")
    plans = {
        (kernel, name): host.check_output("modprobe --set-version %s --dry-run --verbose %s", kernel, name)
        for kernel in kernels
        for name in forbidden
    }
    # What a module depends on comes before it, its options after the command.
    assert [key for key, plan in plans.items() if not plan.splitlines()[-1].startswith("install /bin/false")] == []


def test_every_initramfs_holds_the_file_as_it_is(host, ours, images):
    if host.exists("lsinitrd"):
        held = {image: host.check_output("lsinitrd --file %s %s", FILE[1:], image) for image in images}
        assert held == dict.fromkeys(images, ours.strip())
    else:
        unpack = "d=$(mktemp -d) && unmkinitramfs %s $d && cat $d/%s $d/main/%s 2>/dev/null; rm -r $d"
        held = {image: host.run(unpack, image, FILE[1:], FILE[1:]).stdout for image in images}
        assert held == dict.fromkeys(images, ours)


def test_every_rebuild_of_an_initramfs_ended_with_the_hooks_of_the_boot_loader(host, images):
    assert [image for image in images if host.file(f"{PENDING}/{image.split('/')[-1]}").exists] == []


def test_the_modules_are_not_loaded(host, blacklisted):
    if in_a_container(host):
        pytest.skip("a container shows the modules of the machine that it runs on")
    # A kernel without modules has no list of them.
    loaded = [line.split()[0] for line in host.run("cat /proc/modules").stdout.splitlines()]
    # A host that waits for its reboot is not finished.
    reason = host.file(FLAG).content_string.strip() if host.file(FLAG).exists else "no reboot is flagged; apply the role"
    assert [name for name in blacklisted if name.replace("-", "_") in loaded] == [], reason
