"""Images of both builders, after all that side_effect.yml did to them."""

from __future__ import annotations

import re

import pytest


@pytest.fixture(scope="module")
def images(host):
    return host.check_output("ls /boot/initrd.img-*").split()


def test_both_kernels_have_an_image_and_nothing_else_is_left_in_boot(images):
    assert len(images) == 2
    assert [image for image in images if not re.fullmatch(r"/boot/initrd\.img-\S+-amd64", image)] == []


def test_dracut_leaves_nouveau_out_and_other_graphics_drivers_in(host):
    if not host.exists("lsinitrd"):
        pytest.skip("this host's images are built by initramfs-tools, which brings no graphics driver")
    (image,) = host.check_output("ls /boot/initrd.img-* | grep --invert-match second").split()
    inside = host.check_output("lsinitrd %s", image)
    assert "/radeon.ko" in inside
    assert "/nouveau.ko" not in inside


def test_the_flag_of_a_reboot_is_not_set(host):
    assert not host.file("/run/reboot-required").exists
