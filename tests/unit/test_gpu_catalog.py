"""The tables of the catalog: cards by their id, and that the tables agree with each other."""

from __future__ import annotations

import itertools
import re

import pytest
from ansible.module_utils import gpu_catalog as catalog

OLD_KEY, NEW_KEY = "EB693B3035CD5710E231E123A4B469963BF863CC", "02182E60104FCDC26EAE1B8597A5D4CB8793F200"


@pytest.mark.parametrize(
    ("gpu", "generation"),
    [
        ("10de:102d", "kepler"),  # Tesla K80
        ("10de:1180", "kepler"),  # GeForce GTX 680
        ("10de:13f2", "maxwell"),  # Tesla M60
        ("10de:17f0", "maxwell"),  # Quadro M6000
        ("10de:15f8", "pascal"),  # Tesla P100
        ("10de:1b38", "pascal"),  # Tesla P40
        ("10de:1db6", "volta"),  # Tesla V100 32GB
        ("10de:1eb8", "turing"),  # Tesla T4
        ("10de:2184", "turing"),  # GeForce GTX 1660
        ("10de:20B2", "ampere"),  # A100 80GB, in capitals
        ("10de:2235", "ampere"),  # A40
        ("10de:25b6", "ampere"),  # A2
        ("10de:2330", "hopper"),  # H100 SXM5
        ("10de:2342", "hopper"),  # GH200
        ("10de:26b5", "ada"),  # L40
        ("10de:27b8", "ada"),  # L4
        ("10de:2901", "blackwell"),  # B200
        ("10de:2b85", "blackwell"),  # GeForce RTX 5090
    ],
)
def test_a_card_is_of_its_generation(gpu, generation):
    assert catalog.generation(gpu) == generation


@pytest.mark.parametrize(
    "gpu", ["10de:1081", "10de:1140", "10de:2a00", "10de:3300", "10de:ffff", "1002:2235", "10de", "None", ""]
)
def test_other_ids_are_of_no_known_generation(gpu):
    assert catalog.generation(gpu) is None


def test_ranges_are_ordered_and_do_not_overlap():
    for (first, last, _), (following, _, _) in itertools.pairwise(catalog.GENERATION_RANGES):
        assert first <= last < following


def test_every_generation_has_its_limits():
    assert {name for *_, name in catalog.GENERATION_RANGES} == set(catalog.GENERATIONS)


def test_branches_with_an_end_of_life_name_a_month():
    for branch, entry in catalog.BRANCHES.items():
        assert re.fullmatch(r"\d{3}", branch)
        assert re.fullmatch(r"(20\d\d-(0[1-9]|1[0-2]))?", entry["eol"])
        assert entry["kind"] in ("lts", "production", "new_feature", "retired")
        assert entry["eol"] or entry["kind"] in ("new_feature", "retired")


def test_a_branch_whose_support_is_not_documented_is_not_in_the_catalog():
    assert set(catalog.BRANCHES) == {"470", "525", "535", "550", "570", "580", "590", "595", "610", "615"}


def test_the_default_branch_has_long_support_and_every_card_but_kepler():
    branch = int(catalog.DEFAULT_BRANCH)
    assert catalog.BRANCHES[catalog.DEFAULT_BRANCH]["kind"] == "lts"
    left_out = [name for name, row in catalog.GENERATIONS.items() if branch < row["first"] or 0 < row["last"] < branch]
    assert left_out == ["kepler"]


@pytest.mark.parametrize(
    ("version", "own", "least"),
    [
        ("12.1", "530.30.02", "525.60.13"),
        ("12.1.1", "530.30.02", "525.60.13"),  # an update without a driver of its own
        ("12.6.3", "560.35.05", "525.60.13"),
        ("13.0.2", "580.95.05", "580"),
        ("12.7", None, "525.60.13"),
        ("14.0", None, None),
    ],
)
def test_a_toolkit_has_a_driver_of_its_own_and_an_oldest_one(version, own, least):
    assert catalog.cuda_drivers(version) == (own, least)


@pytest.mark.parametrize(
    ("version", "gcc"), [("11.8", 11), ("12.0", 11), ("12.1.1", 12), ("12.9.1", 14), ("13.2", 15), ("13.4.1", 16), ("11.4", None)]
)
def test_a_toolkit_has_a_newest_gcc(version, gcc):
    assert catalog.cuda_gcc(version) == gcc


def test_the_toolkit_that_came_with_a_branch_came_with_a_driver_of_it():
    for branch, entry in catalog.BRANCHES.items():
        if entry["cuda"] in catalog.CUDA_DRIVERS:
            assert catalog.CUDA_DRIVERS[entry["cuda"]].startswith(f"{branch}.")


@pytest.mark.parametrize(
    ("system", "release", "architecture", "path", "key", "fingerprints"),
    [
        ("debian", "12", "amd64", "debian12/x86_64", "3bf863cc.pub", [OLD_KEY]),
        ("debian", "13", "arm64", "debian13/sbsa", "8793F200.pub", [NEW_KEY]),
        ("ubuntu", "22.04", "amd64", "ubuntu2204/x86_64", "3bf863cc.pub", [OLD_KEY]),
        ("ubuntu", "26.04", "amd64", "ubuntu2604/x86_64", "8793F200.pub", [NEW_KEY, OLD_KEY]),
    ],
)
def test_a_repository_comes_with_its_address_and_keys(system, release, architecture, path, key, fingerprints):  # noqa: PLR0913, PLR0917 - a table
    url = f"https://developer.download.nvidia.com/compute/cuda/repos/{path}/"
    assert catalog.repository(system, release, architecture) == {
        "path": f"compute/cuda/repos/{path}/",
        "url": url,
        "key_url": f"{url}{key}",
        "fingerprints": fingerprints,
        "obsolete_keys": ["AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80"],
        "conflicts": ["https://developer.download.nvidia.com/compute/cuda/repos/*"],
    }


@pytest.mark.parametrize("host", [("debian", "11", "amd64"), ("ubuntu", "24.04", "riscv64"), ("", "", "")])
def test_other_systems_have_no_repository(host):
    assert catalog.repository(*host) is None


#: The sources nvidia-graphics-drivers and nvidia-open-gpu-kernel-modules of Debian 13, whole.
DEBIAN_SET = """
firmware-nvidia-gsp libcuda1 libcudadebugger1 libegl-nvidia0 libgl1-nvidia-glvnd-glx libgles-nvidia1 libgles-nvidia2
libglx-nvidia0 libnvcuvid1 libnvidia-allocator1 libnvidia-api1 libnvidia-cfg1 libnvidia-eglcore libnvidia-encode1
libnvidia-fbc1 libnvidia-glcore libnvidia-glvkspirv libnvidia-gpucomp libnvidia-ml1 libnvidia-ngx1 libnvidia-nvvm4
libnvidia-opticalflow1 libnvidia-pkcs11-openssl3 libnvidia-ptxjitcompiler1 libnvidia-rtcore libnvoptix1 nvidia-alternative
nvidia-cuda-mps nvidia-detect nvidia-driver nvidia-driver-bin nvidia-driver-full nvidia-driver-libs nvidia-egl-common
nvidia-egl-icd nvidia-kernel-dkms nvidia-kernel-source nvidia-kernel-support nvidia-legacy-check nvidia-libopencl1
nvidia-opencl-common nvidia-opencl-icd nvidia-powerd nvidia-smi nvidia-suspend-common nvidia-vdpau-driver
nvidia-vulkan-common nvidia-vulkan-icd xserver-xorg-video-nvidia nvidia-open-kernel-dkms nvidia-open-kernel-source
nvidia-open-kernel-support
"""
OTHER_SETS = """
nvidia-tesla-470-kernel-dkms libnvidia-tesla-470-cuda1 libgl1-nvidia-tesla-535-glvnd-glx firmware-nvidia-tesla-535-gsp
nvidia-headless-580-server-open nvidia-headless-no-dkms-580 nvidia-firmware-580-server-580.173.02 nvidia-kernel-common-580
linux-modules-nvidia-580-server-open-generic linux-objects-nvidia-580-server-6.8.0-90-generic libnvidia-compute-580
cuda-drivers-580 cuda-drivers nvidia-open nvidia-driver-cuda nvidia-persistenced nvidia-modprobe nvidia-fabricmanager-580
nvidia-fabricmanager nvidia-fabricmanager-dev libnvidia-nscq nvidia-imex libnvsdm nvlsm libxnvctrl0
nvidia-driver-pinning-580
"""
OTHERS = """
nvidia-container-toolkit nvidia-container-toolkit-base nvidia-container-runtime libnvidia-container1
libnvidia-container-tools nvidia-docker2 nvidia-cuda-toolkit nvidia-cuda-dev nvidia-cuda-gdb nvidia-cudnn libnvidia-ml-dev
nvidia-gds nvidia-gds-13-0 nvidia-fs nvidia-fs-dkms nvidia-prime nvidia-prime-applet nvidia-openjdk-8-jre
nvidia-visual-profiler nvidia-profiler nvidia-cg-toolkit nvidia-driver-assistant
nvidia-driver-local-repo-ubuntu2404-580.95.05 nvidia-vaapi-driver libnvidia-egl-wayland1 cuda-toolkit-12-8
libcudnn9-cuda-12 libcudart12 boinc-client-nvidia-cuda bumblebee-nvidia linux-image-6.8.0-90-generic linux-headers-amd64
dkms infiniband-diags
"""


@pytest.mark.parametrize("name", [*DEBIAN_SET.split(), *OTHER_SETS.split()])
def test_a_package_of_a_driver_is_known_by_its_name(name):
    assert catalog.is_driver_package(name)


@pytest.mark.parametrize("name", OTHERS.split())
def test_a_package_with_a_similar_name_is_not_of_a_driver(name):
    assert not catalog.is_driver_package(name)
