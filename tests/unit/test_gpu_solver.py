"""Which wishes fit which host: one table of cases, and what holds for all of them."""

from __future__ import annotations

import copy
import itertools
import re

import pytest
from ansible.module_utils import gpu_catalog, gpu_solver

MONTH = "2026-11"

# ---- Hosts

A40, A100, H100, L4, T4, V100, P40, M60, K80, B200, RTX5090 = (
    f"10de:{device}" for device in ("2235", "20b2", "2330", "27b8", "1eb8", "1db6", "1b38", "13f2", "102d", "2901", "2b85")
)
NOBODY_KNOWS = "10de:4f00"

DEBIAN12 = {
    "distribution": {"id": "debian", "version_id": "12", "codename": "bookworm"},
    "architecture": "amd64",
    "gpus": [{"id": A40}],
    "nvswitch": {"present": False, "addresses": [], "nvlink5": False},
    "driver": {"modules": [], "version": None, "flavour": None},
    "secure_boot": False,
    "kernel": {
        "running": "6.1.0-57-amd64",
        "installed": ["6.1.0-57-amd64"],
        "may_boot": ["6.1.0-57-amd64"],
        "headers": ["6.1.0-57-amd64"],
        "compilers": {"6.1.0-57-amd64": 12},
    },
    "compilers": {"gcc": 12, "gcc-12": 12},
    "module_key": {"path": None, "enrolled": None},
}


def kernel(*releases, running=None, headers=None, compilers=None):
    return {
        "running": running or releases[-1],
        "installed": list(releases),
        "may_boot": list(releases),
        "headers": list(releases if headers is None else headers),
        "compilers": compilers or {},
    }


def system(name, release, *kernels, gcc):
    return {
        "distribution": {"id": name, "version_id": release, "codename": None},
        "kernel": kernel(*kernels),
        "compilers": {"gcc": gcc, f"gcc-{gcc}": gcc},
    }


DEBIAN13 = system("debian", "13", "6.12.118+deb13-amd64", gcc=14)
JAMMY = system("ubuntu", "22.04", "5.15.0-190-generic", gcc=11)
NOBLE = system("ubuntu", "24.04", "6.8.0-90-generic", gcc=13)
RESOLUTE = system("ubuntu", "26.04", "7.0.0-20-generic", gcc=15)
NVSWITCH = {"nvswitch": {"present": True, "addresses": ["0000:86:00.0"], "nvlink5": False}}
NVLINK5 = {"nvswitch": {"present": True, "addresses": [], "nvlink5": True}}
ARM = {"architecture": "arm64"}
SECURE_BOOT = {"secure_boot": True}


def gpus(*ids):
    return {"gpus": [{"id": gpu} for gpu in ids]}


# ---- What apt has: the versions of domain facts, newest first


def apt(origin, names, *versions):
    return {name: [{"version": version, "origin": origin} for version in versions] for name in names.split()}


def both(*tables):
    merged = {}
    for table in tables:
        for name, offers in table.items():
            merged[name] = [*merged.get(name, []), *offers]
    return merged


DEBIAN_USERSPACE = (
    "nvidia-smi libcuda1 libnvidia-ml1 libnvidia-ptxjitcompiler1 libnvidia-nvvm4 libnvidia-cfg1 firmware-nvidia-gsp nvidia-driver"
)
DEBIAN12_APT = {
    **apt("Debian", f"nvidia-kernel-dkms {DEBIAN_USERSPACE}", "535.309.01-0+deb12u1", "535.261.03-1"),
    **apt("Debian", "nvidia-open-kernel-dkms", "535.261.03-1"),
    **apt("Debian", "linux-headers-amd64", "6.1.192-3"),
    "linux-headers-6.1.0-50-amd64": [],
    "nvidia-dkms-580": [],
}
TESLA_470 = (
    "nvidia-tesla-470-kernel-dkms nvidia-tesla-470-smi libnvidia-tesla-470-cuda1 libnvidia-tesla-470-ml1 "
    "libnvidia-tesla-470-ptxjitcompiler1 libnvidia-tesla-470-nvvm4 libnvidia-tesla-470-cfg1"
)
DEBIAN12_TESLA = both(DEBIAN12_APT, apt("Debian", TESLA_470, "470.256.02-1~deb12u1"))
DEBIAN13_APT = apt("Debian", f"nvidia-kernel-dkms nvidia-open-kernel-dkms {DEBIAN_USERSPACE}", "550.163.01-2")
DEBIAN13_BACKPORTS = both(
    apt("Debian Backports", f"nvidia-kernel-dkms nvidia-open-kernel-dkms {DEBIAN_USERSPACE}", "550.163.01-4~bpo13+1"),
    DEBIAN13_APT,
)
CUDA_DEBIAN = apt(
    "nvidia",
    "nvidia-kernel-dkms nvidia-kernel-open-dkms nvidia-driver-cuda nvidia-open cuda-drivers nvidia-fabricmanager libnvidia-nscq",
    "610.57.04-1",
    "595.91.07-1",
    "580.178.04-1",
    "580.95.05-1",
)
CUDA_UBUNTU_595 = apt("nvidia", "nvidia-dkms-open libnvidia-compute", "595.91.07-1ubuntu1")
CUDA_UBUNTU = {
    **apt("nvidia", "nvidia-dkms nvidia-dkms-open libnvidia-compute nvidia-open", "610.57.04-1ubuntu1", "595.91.07-1ubuntu1"),
    **apt("nvidia", "nvidia-dkms-580 nvidia-dkms-580-open libnvidia-compute-580", "580.178.04-1ubuntu1", "580.95.05-1ubuntu1"),
    **apt("nvidia", "nvidia-utils-580", "580.178.04-1ubuntu1"),
    **apt("nvidia", "nvidia-fabricmanager-580 libnvidia-nscq-580", "580.178.04-1", "580.95.05-1"),
    **apt("nvidia", "nvidia-fabricmanager", "610.57.04-1", "595.91.07-1"),
    "libnvidia-nscq": [],
}


def ubuntu(branch, version):
    names = f"nvidia-headless-{branch} nvidia-headless-{branch}-open nvidia-headless-no-dkms-{branch}"
    return apt(
        "Ubuntu", f"{names} nvidia-headless-no-dkms-{branch}-open nvidia-utils-{branch} nvidia-compute-utils-{branch}", version
    )


JAMMY_580 = "580.173.02-0ubuntu0.22.04.1"
JAMMY_APT = {
    **ubuntu("580-server", JAMMY_580),
    **ubuntu("535-server", "535.309.01-0ubuntu0.22.04.2"),
    **apt("Ubuntu", "nvidia-driver-580 nvidia-driver-580-open nvidia-fabricmanager-580 libnvidia-nscq-580", JAMMY_580),
    **apt("Ubuntu", "linux-headers-generic linux-headers-generic-hwe-22.04", "5.15.0.190.1"),
    **apt("Ubuntu", "linux-modules-nvidia-580-server-open-generic", "5.15.0-190.200"),
}
JAMMY_LAST_535 = both(JAMMY_APT, ubuntu("535-server", "535.309.01-0ubuntu0.22.04.1"))
HWE = {**JAMMY, "kernel": kernel("6.8.0-90-generic", compilers={"6.8.0-90-generic": 12})}
OLD_KERNEL = {"kernel": kernel("6.1.0-50-amd64", "6.1.0-57-amd64", headers=["6.1.0-57-amd64"])}

DEBIAN12_PLANNED = (
    "nvidia-kernel-dkms nvidia-smi libcuda1 libnvidia-ml1 libnvidia-ptxjitcompiler1 libnvidia-nvvm4 libnvidia-cfg1 "
    "firmware-nvidia-gsp nvidia-persistenced nvidia-modprobe"
)
#: As after a security update, which takes the version before out of the archive.
DEBIAN12_MOVED_ON = {
    **apt("Debian", f"nvidia-kernel-dkms {DEBIAN_USERSPACE}", "535.309.01-0+deb12u1"),
    **apt("Debian", "linux-headers-amd64", "6.1.192-3"),
}


def installed(names, version):
    return {"driver_packages": [{"name": name, "version": version, "source": name} for name in names.split()]}


# ---- Wishes


def driver(**wish):
    return {"driver": wish}


DISTRIBUTION = driver(source="distribution")
REPOSITORY = driver(source="cuda_repository")


def cuda(*wishes, driver=None):
    return {"driver": driver, "cuda": [{"version": version, "method": method} for version, method in wishes]}


def cudnn(version, major, *toolkits):
    return {**cuda(*toolkits), "cudnn": [{"version": version, "cuda": major}]}


def loaded(version):
    return {"driver": {"modules": ["nvidia"], "version": version, "flavour": "open"}}


#: name: (facts, wishes, offers, codes of the reasons, codes of the warnings, expected)
CASES = {
    # Debian 12
    "debian 12 takes the newest closed driver": (
        {}, DISTRIBUTION, DEBIAN12_APT, [], ["branch_eol"],
        {
            "driver": {
                "version": "535.309.01-0+deb12u1",
                "branch": "535",
                "flavour": "proprietary",
                "packages": [
                    "nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1",
                    "libnvidia-nvvm4", "libnvidia-cfg1", "firmware-nvidia-gsp", "nvidia-persistenced", "nvidia-modprobe",
                ],
                "pins": [
                    {"package": "src:nvidia-graphics-drivers", "version": "535.309.01-0+deb12u1"},
                    {"package": "src:nvidia-open-gpu-kernel-modules", "version": "535.309.01-*"},
                ],
                "dkms": "nvidia-current",
                "modules": [
                    "nvidia-current", "nvidia-current-modeset", "nvidia-current-drm", "nvidia-current-uvm",
                    "nvidia-current-peermem",
                ],
                "headers": ["linux-headers-amd64"],
                "compilers": [],
                "fabric_manager": False,
            },
            "repository": None,
        },
    ),
    "debian 12 with an exact version": (
        {}, driver(source="distribution", version="535.261.03-1"), DEBIAN12_APT, [], ["branch_eol"],
        {"driver": {"version": "535.261.03-1", "flavour": "proprietary"}},
    ),
    "an upstream version is enough": (
        {}, driver(source="distribution", version="535.261.03"), DEBIAN12_APT, [], ["branch_eol"],
        {"driver": {"version": "535.261.03-1", "branch": "535"}},
    ),
    "debian 12 has open modules of the older driver only, and takes all of it": (
        {}, driver(source="distribution", flavour="open"), DEBIAN12_APT, [], ["branch_eol", "open_skew"],
        {
            "driver": {
                "version": "535.261.03-1",
                "flavour": "open",
                "dkms": "nvidia-current-open",
                "pins": [
                    {"package": "src:nvidia-graphics-drivers", "version": "535.261.03-1"},
                    {"package": "src:nvidia-open-gpu-kernel-modules", "version": "535.261.03-1"},
                ],
            }
        },
    ),
    "debian 12 has no open modules of the newer driver": (
        {}, driver(source="distribution", flavour="open", version="535.309.01"), DEBIAN12_APT, ["version_not_offered"],
        ["branch_eol"], {"nearest": {"driver": {"flavour": "auto"}}},
    ),
    "debian 12 by the catalog has no open modules of the newer driver": (
        {}, driver(source="distribution", flavour="open", version="535.309.01"), None, ["open_skew"],
        ["branch_eol", "by_tables"], {"nearest": {"driver": {"flavour": "auto"}}},
    ),
    "debian 12 by the catalog pins nothing that it does not know": (
        {}, DISTRIBUTION, None, [], ["branch_eol", "by_tables"], {"driver": {"version": "", "pins": []}},
    ),
    "a wished version is pinned even before apt was asked": (
        {}, driver(source="distribution", version="535.261.03"), None, [], ["branch_eol", "by_tables"],
        {
            "driver": {
                "version": "",
                "pins": [
                    {"package": "src:nvidia-graphics-drivers", "version": "535.261.03-*"},
                    {"package": "src:nvidia-open-gpu-kernel-modules", "version": "535.261.03-*"},
                ],
            }
        },
    ),
    "debian 12 does not drive blackwell": (
        gpus(B200), DISTRIBUTION, DEBIAN12_APT, ["gpu_branch"], ["branch_eol", "open_skew"],
        {"nearest": {"driver": {"source": "cuda_repository"}}},
    ),
    "debian 12 with a desktop takes the metapackage": (
        {}, driver(source="distribution", desktop=True), DEBIAN12_APT, [], ["branch_eol"],
        {
            "driver": {
                "packages": [
                    "nvidia-kernel-dkms", "nvidia-driver", "nvidia-smi", "libcuda1", "firmware-nvidia-gsp",
                    "nvidia-persistenced", "nvidia-modprobe",
                ]
            }
        },
    ),
    "debian 12 without non-free has no driver": (
        {}, DISTRIBUTION,
        {f"nvidia-{name}-dkms": [] for name in ("kernel", "open-kernel", "kernel-open", "tesla-470-kernel")},
        ["package_not_offered"], ["branch_eol"], {"nearest": {"driver": {"source": "cuda_repository"}}},
    ),
    "a set with a hole is refused": (
        {}, driver(source="distribution", version="535.309.01"),
        {**DEBIAN12_APT, "firmware-nvidia-gsp": [{"version": "535.261.03-1", "origin": "Debian"}]}, ["set_incomplete"],
        ["branch_eol"], {"nearest": {"driver": {"version": "", "branch": "535"}}},
    ),
    "kepler gets the 470 of debian 12": (
        gpus(K80), driver(source="distribution", branch="470"), DEBIAN12_TESLA, [], ["branch_eol"],
        {
            "driver": {
                "version": "470.256.02-1~deb12u1",
                "packages": [*TESLA_470.split(), "nvidia-persistenced", "nvidia-modprobe"],
                "pins": [{"package": "src:nvidia-graphics-drivers-tesla-470", "version": "470.256.02-1~deb12u1"}],
                "dkms": "nvidia-tesla-470",
                "flavour": "proprietary",
            }
        },
    ),
    "kepler is not driven by the 535 of debian 12": (
        gpus(K80), DISTRIBUTION, DEBIAN12_TESLA, ["gpu_branch"], ["branch_eol"], {"nearest": {"driver": {"branch": "470"}}},
    ),
    "the 470 of debian 12 has no open modules": (
        gpus(T4), driver(source="distribution", branch="470", flavour="open"), DEBIAN12_TESLA, ["flavour_not_in_source"],
        ["branch_eol"], {"nearest": {"driver": {"flavour": "auto"}}},
    ),
    "debian 12 has no 580": (
        {}, driver(source="distribution", branch="580"), None, ["branch_not_in_source"], [],
        {"nearest": {"driver": {"source": "cuda_repository"}}},
    ),
    # Debian 13
    "debian 13 takes 550": (
        DEBIAN13, DISTRIBUTION, DEBIAN13_APT, [], ["branch_eol"],
        {"driver": {"version": "550.163.01-2", "flavour": "proprietary", "headers": ["linux-headers-amd64"]}},
    ),
    "debian 13 has open modules of the same driver": (
        DEBIAN13, driver(source="distribution", flavour="open"), DEBIAN13_APT, [], ["branch_eol"],
        {"driver": {"version": "550.163.01-2", "flavour": "open", "dkms": "nvidia-current-open"}},
    ),
    "each source package is pinned in its own revision": (
        DEBIAN13, driver(source="distribution", flavour="open"),
        {**DEBIAN13_APT, **apt("Debian", "nvidia-open-kernel-dkms", "550.163.01-1")}, [], ["branch_eol"],
        {
            "driver": {
                "version": "550.163.01-1",
                "pins": [
                    {"package": "src:nvidia-graphics-drivers", "version": "550.163.01-2"},
                    {"package": "src:nvidia-open-gpu-kernel-modules", "version": "550.163.01-1"},
                ],
            }
        },
    ),
    "550 is too old for blackwell": (
        {**DEBIAN13, **gpus(RTX5090)}, DISTRIBUTION, DEBIAN13_APT, ["gpu_branch"], ["branch_eol"],
        {"nearest": {"driver": {"source": "cuda_repository"}}},
    ),
    "a backport is not taken unasked": (
        DEBIAN13, DISTRIBUTION, DEBIAN13_BACKPORTS, [], ["branch_eol"], {"driver": {"version": "550.163.01-2"}},
    ),
    "a backport is taken by its version": (
        DEBIAN13, driver(source="distribution", version="550.163.01-4~bpo13+1"), DEBIAN13_BACKPORTS, [], ["branch_eol"],
        {"driver": {"version": "550.163.01-4~bpo13+1"}},
    ),
    "kepler is driven by nothing for debian 13": (
        {**DEBIAN13, **gpus(K80)}, DISTRIBUTION, DEBIAN13_APT, ["gpu_branch"], ["branch_eol"], {"nearest": None},
    ),
    "debian 13 has 535 under other names": (
        DEBIAN13, driver(source="distribution", branch="535"), None, [], ["branch_eol", "by_tables"],
        {"driver": {"dkms": "nvidia-tesla-535", "version": ""}},
    ),
    "debian 13 is signed with the new key only": (
        DEBIAN13, REPOSITORY, CUDA_DEBIAN, [], [],
        {
            "repository": {
                "url": "https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64/",
                "key_url": "https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64/8793F200.pub",
                "fingerprints": ["02182E60104FCDC26EAE1B8597A5D4CB8793F200"],
                "obsolete_keys": ["AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80"],
            },
            "driver": {"version": "580.178.04-1", "packages": ["nvidia-kernel-open-dkms", "nvidia-driver-cuda"]},
        },
    ),
    "debian 12 is signed with the old key": (
        {}, REPOSITORY, CUDA_DEBIAN, [], [],
        {
            "repository": {
                "key_url": "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/3bf863cc.pub",
                "fingerprints": ["EB693B3035CD5710E231E123A4B469963BF863CC"],
            }
        },
    ),
    # What the archive no longer has
    "an installed driver needs no archive that still has it": (
        installed(DEBIAN12_PLANNED, "535.261.03-1"), driver(source="distribution", version="535.261.03"), DEBIAN12_MOVED_ON,
        [], ["branch_eol"],
        {
            "driver": {
                "version": "535.261.03-1",
                "packages": DEBIAN12_PLANNED.split(),
                "pins": [
                    {"package": "src:nvidia-graphics-drivers", "version": "535.261.03-1"},
                    {"package": "src:nvidia-open-gpu-kernel-modules", "version": "535.261.03-*"},
                ],
            }
        },
    ),
    "a version that is neither offered nor installed is refused": (
        installed(DEBIAN12_PLANNED, "535.261.03-1"), driver(source="distribution", version="535.247.01"), DEBIAN12_MOVED_ON,
        ["version_not_offered"], ["branch_eol"], {"nearest": {"driver": {"version": "", "branch": "535"}}},
    ),
    "a driver that is installed in part is not in the archive as a whole": (
        installed("nvidia-kernel-dkms libcuda1", "535.261.03-1"), driver(source="distribution", version="535.261.03"),
        DEBIAN12_MOVED_ON, ["set_incomplete"], ["branch_eol"], {"nearest": {"driver": {"version": "", "branch": "535"}}},
    ),
    "what is offered is preferred to what is installed": (
        installed(DEBIAN12_PLANNED, "535.261.03-1"), DISTRIBUTION, DEBIAN12_MOVED_ON, [], ["branch_eol"],
        {"driver": {"version": "535.309.01-0+deb12u1"}},
    ),
    "what else is installed of the set stays in it": (
        {**NOBLE, **installed("nvidia-dkms-580-open libnvidia-compute-580 nvidia-utils-580", "580.65.06-1ubuntu1")},
        driver(source="cuda_repository", version="580.65.06"), CUDA_UBUNTU, [], [],
        {
            "driver": {
                "version": "580.65.06-1ubuntu1",
                "packages": ["nvidia-dkms-580-open", "libnvidia-compute-580", "nvidia-utils-580"],
            }
        },
    ),
    "a repository is not there because its driver is": (
        {**NOBLE, **installed("nvidia-dkms-580-open libnvidia-compute-580", "580.65.06-1ubuntu1")},
        driver(source="cuda_repository", version="580.65.06"),
        {"nvidia-dkms-580-open": [], "libnvidia-compute-580": [], **JAMMY_APT}, [], ["by_tables"], {"driver": {"version": ""}},
    ),
    # Ubuntu's archive
    "ubuntu takes the server flavour of the long-term branch": (
        JAMMY, DISTRIBUTION, JAMMY_APT, [], [],
        {
            "driver": {
                "version": "580.173.02-0ubuntu0.22.04.1",
                "flavour": "open",
                "packages": ["nvidia-headless-580-server-open", "nvidia-utils-580-server", "nvidia-compute-utils-580-server"],
                "pins": [{"package": "src:nvidia-graphics-drivers-580-server", "version": "580.173.02-0ubuntu0.22.04.1"}],
                "dkms": "nvidia-srv",
                "modules": ["nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm", "nvidia-peermem"],
                "headers": ["linux-headers-generic"],
            }
        },
    ),
    "volta keeps the proprietary modules": (
        {**JAMMY, **gpus(V100)}, DISTRIBUTION, JAMMY_APT, [], [],
        {
            "driver": {
                "flavour": "proprietary",
                "packages": ["nvidia-headless-580-server", "nvidia-utils-580-server", "nvidia-compute-utils-580-server"],
            }
        },
    ),
    "535 of ubuntu is an empty package": (
        JAMMY, driver(source="distribution", branch="535"), JAMMY_APT, ["branch_transitional"], ["branch_eol"],
        {"nearest": {"driver": {"branch": "580"}}},
    ),
    "535 of ubuntu is an empty package by the catalog too": (
        NOBLE, driver(source="distribution", branch="535"), None, ["branch_transitional"], ["branch_eol"],
        {"nearest": {"driver": {"branch": "580"}}},
    ),
    "470 of ubuntu leads to 580 as well": (
        JAMMY, driver(source="distribution", branch="470"), None, ["branch_transitional"], ["branch_eol"],
        {"nearest": {"driver": {"branch": "580"}}},
    ),
    "590 of ubuntu 26.04 leads to 595": (
        RESOLUTE, driver(source="distribution", branch="590"), None, ["branch_transitional"], ["branch_short_lived"],
        {"nearest": {"driver": {"branch": "580"}}},
    ),
    "the last real 535 is found where apt still has it": (
        JAMMY, driver(source="distribution", version="535.309.01"), JAMMY_LAST_535, [], ["branch_eol"],
        {"driver": {"version": "535.309.01-0ubuntu0.22.04.1", "dkms": "nvidia-srv"}},
    ),
    "a package that apt shows to be empty is not taken": (
        NOBLE, driver(source="distribution", branch="580"),
        {"nvidia-headless-580-server-open": [{"version": "580.200.01-0ubuntu1", "origin": "Ubuntu", "transitional": True}]},
        ["version_not_offered"], [], {"nearest": {"driver": {"branch": "595"}}},
    ),
    "a desktop on ubuntu takes the other flavour": (
        JAMMY, driver(source="distribution", desktop=True), JAMMY_APT, [], [],
        {
            "driver": {
                "packages": ["nvidia-driver-580-open"],
                "dkms": "nvidia",
                "pins": [{"package": "src:nvidia-graphics-drivers-580", "version": "580.173.02-0ubuntu0.22.04.1"}],
            }
        },
    ),
    # The CUDA repository
    "the branch is in the names up to 580": (
        NOBLE, driver(source="cuda_repository", version="580.95.05"), CUDA_UBUNTU, [], [],
        {
            "driver": {
                "version": "580.95.05-1ubuntu1",
                "packages": ["nvidia-dkms-580-open", "libnvidia-compute-580"],
                "dkms": "nvidia",
            }
        },
    ),
    "what apt has beside it comes along": (
        NOBLE, REPOSITORY, CUDA_UBUNTU, [], [],
        {"driver": {"packages": ["nvidia-dkms-580-open", "libnvidia-compute-580", "nvidia-utils-580"]}},
    ),
    "what another source has of the same version does not come along": (
        JAMMY, driver(source="cuda_repository", version="580.173.02"),
        both(
            apt("nvidia", "nvidia-dkms-580-open libnvidia-compute-580", "580.173.02-1ubuntu1"),
            apt("Ubuntu", "nvidia-utils-580 nvidia-dkms-580-open libnvidia-compute-580", JAMMY_580),
        ),
        [], [],
        {"driver": {"version": "580.173.02-1ubuntu1", "packages": ["nvidia-dkms-580-open", "libnvidia-compute-580"]}},
    ),
    "a wished revision is the module's, and the rest has its own": (
        {**NOBLE, **NVSWITCH}, driver(source="cuda_repository", version="580.95.05-1ubuntu1"), CUDA_UBUNTU, [], [],
        {
            "driver": {
                "version": "580.95.05-1ubuntu1",
                "packages": [
                    "nvidia-dkms-580-open", "libnvidia-compute-580", "nvidia-fabricmanager-580", "libnvidia-nscq-580",
                ],
                "pins": [
                    {"package": gpu_catalog.DRIVER_GLOBS, "version": "580.95.05-1ubuntu1"},
                    {"package": "nvidia-fabricmanager* libnvidia-nscq* nvidia-imex* libnvsdm*", "version": "580.95.05-*"},
                ],
            }
        },
    ),
    "the branch is in no name from 590 on": (
        NOBLE, driver(source="cuda_repository", branch="595"), CUDA_UBUNTU, [], [],
        {
            "driver": {
                "version": "595.91.07-1ubuntu1",
                "packages": ["nvidia-dkms-open", "libnvidia-compute"],
                "pins": [{"package": gpu_catalog.DRIVER_GLOBS, "version": "595.91.07-1ubuntu1"}],
            }
        },
    ),
    "a branch of 590 or later is found by its version in the names without number": (
        NOBLE, driver(source="cuda_repository", version="595.58.03"), CUDA_UBUNTU, ["version_not_offered"], [],
        {"nearest": {"driver": {"version": "", "branch": "595"}}},
    ),
    "a new feature branch is told": (
        NOBLE, driver(source="cuda_repository", branch="610"), CUDA_UBUNTU, [], ["branch_eol"],
        {"driver": {"version": "610.57.04-1ubuntu1"}},
    ),
    "615 has no end of life and is told to be short-lived": (
        NOBLE, driver(source="cuda_repository", branch="615"), None, [], ["branch_short_lived", "by_tables"],
        {"driver": {"packages": ["nvidia-dkms-open", "libnvidia-compute"]}},
    ),
    "a branch that is not in the catalog goes on": (
        NOBLE, driver(source="cuda_repository", branch="630"), None, [], ["branch_unknown", "by_tables"],
        {"driver": {"branch": "630", "flavour": "open"}},
    ),
    "the proprietary modules end with 595": (
        NOBLE, driver(source="cuda_repository", branch="615", flavour="proprietary"), None, ["flavour_ended"],
        ["branch_short_lived", "by_tables"], {"nearest": {"driver": {"flavour": "auto"}}},
    ),
    "a desktop takes the metapackage of the flavour": (
        {**NOBLE, **gpus(V100)}, driver(source="cuda_repository", desktop=True), None, [], ["by_tables"],
        {"driver": {"packages": ["cuda-drivers-580"], "flavour": "proprietary"}},
    ),
    "an old branch on debian has no nvidia-driver-cuda": (
        {}, driver(source="cuda_repository", branch="535"), None, [], ["branch_eol", "by_tables"],
        {"driver": {"packages": ["nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "libnvidia-ml1"]}},
    ),
    "arm servers have a directory of another name": (
        {**NOBLE, **ARM}, REPOSITORY, None, [], ["by_tables"],
        {"repository": {"path": "compute/cuda/repos/ubuntu2404/sbsa/"}},
    ),
    "a repository that is not configured yet is judged by the catalog": (
        NOBLE, REPOSITORY, {"nvidia-dkms-580-open": [], "libnvidia-compute-580": [], **JAMMY_APT}, [], ["by_tables"],
        {"driver": {"packages": ["nvidia-dkms-580-open", "libnvidia-compute-580"], "version": "", "pins": []}},
    ),
    "debian's own packages of the same names are not the repository's": (
        {}, REPOSITORY, both(CUDA_DEBIAN, DEBIAN12_APT), [], [],
        {"driver": {"version": "580.178.04-1", "pins": [{"package": gpu_catalog.DRIVER_GLOBS, "version": "580.178.04-1"}]}},
    ),
    "a mirror is laid out like the repository": (
        NOBLE, driver(source="mirror", branch="580"),
        {
            **apt("Example Mirror", "nvidia-dkms-580-open libnvidia-compute-580", "580.95.05-1ubuntu1"),
            "nvidia-headless-580-server-open": [],
        },
        [], [],
        {"driver": {"version": "580.95.05-1ubuntu1", "packages": ["nvidia-dkms-580-open", "libnvidia-compute-580"]}},
    ),
    "another origin's build of the branch is not taken": (
        NOBLE, driver(source="cuda_repository", branch="580"),
        both(CUDA_UBUNTU_595, apt("Ubuntu", "nvidia-dkms-580-open", "580.173.02-0ubuntu0.24.04.1")), ["version_not_offered"],
        [], {},
    ),
    # GPUs
    "blackwell has open modules only": (
        {**NOBLE, **gpus(B200)}, driver(source="cuda_repository", flavour="proprietary"), None, ["gpu_flavour"],
        ["by_tables"], {"nearest": {"driver": {"flavour": "auto"}}},
    ),
    "pascal has no open modules": (
        {**NOBLE, **gpus(P40)}, driver(source="cuda_repository", flavour="open"), None, ["gpu_flavour"], ["by_tables"],
        {"nearest": {"driver": {"flavour": "auto"}}},
    ),
    "maxwell ends with 580": (
        {**NOBLE, **gpus(M60)}, driver(source="cuda_repository", branch="595"), None, ["gpu_branch"], ["by_tables"],
        {"nearest": {"driver": {"branch": "580"}}},
    ),
    "grace hopper has open modules only": (
        {**NOBLE, **ARM, **gpus("10de:2342")}, driver(source="cuda_repository", flavour="proprietary"), None,
        ["gpu_flavour"], ["by_tables"], {"nearest": {"driver": {"flavour": "auto"}}},
    ),
    "hopper in a pc server has both": (
        {**NOBLE, **gpus(H100)}, driver(source="cuda_repository", flavour="proprietary"), None, [], ["by_tables"],
        {"driver": {"flavour": "proprietary"}},
    ),
    "volta and ampere agree on the proprietary modules": (
        {**NOBLE, **gpus(V100, A100)}, REPOSITORY, None, [], ["by_tables"], {"driver": {"flavour": "proprietary"}},
    ),
    "volta and blackwell agree on nothing": (
        {**NOBLE, **gpus(V100, B200)}, REPOSITORY, None, ["gpu_conflict"], ["by_tables"], {"nearest": None},
    ),
    "an unknown card is told and goes on": (
        {**NOBLE, **gpus(NOBODY_KNOWS, L4)}, REPOSITORY, None, [], ["gpu_unknown", "by_tables"],
        {"driver": {"flavour": "open"}},
    ),
    "a host without a card is told and goes on": (
        {**NOBLE, **gpus()}, REPOSITORY, None, [], ["no_gpu", "by_tables"], {"driver": {"branch": "580"}},
    ),
    # NVSwitch
    "nvswitch on ubuntu takes fabric manager of the same version": (
        {**JAMMY, **NVSWITCH, **gpus(A100)}, DISTRIBUTION, JAMMY_APT, [], [],
        {
            "driver": {
                "fabric_manager": True,
                "packages": [
                    "nvidia-headless-580-server-open", "nvidia-utils-580-server", "nvidia-compute-utils-580-server",
                    "nvidia-fabricmanager-580", "libnvidia-nscq-580",
                ],
                "pins": [
                    {"package": "src:nvidia-graphics-drivers-580-server", "version": "580.173.02-0ubuntu0.22.04.1"},
                    {"package": "nvidia-fabricmanager-580 libnvidia-nscq-580", "version": "580.173.02-*"},
                ],
            }
        },
    ),
    "nvswitch and ubuntu's desktop driver exclude each other": (
        {**JAMMY, **NVSWITCH, **gpus(A100)}, driver(source="distribution", desktop=True), JAMMY_APT, ["fabric_manager"], [],
        {"nearest": {"driver": {"desktop": False}}},
    ),
    "debian has no fabric manager": (
        {**NVSWITCH, **gpus(H100)}, DISTRIBUTION, both(DEBIAN12_APT, CUDA_DEBIAN), ["fabric_manager"], ["branch_eol"],
        {"nearest": {"driver": {"source": "cuda_repository"}}},
    ),
    "fabric manager of another version is refused": (
        {**NOBLE, **NVSWITCH, **gpus(H100)}, driver(source="cuda_repository", branch="580"),
        {**CUDA_UBUNTU, **apt("nvidia", "nvidia-fabricmanager-580", "580.95.05-1")}, ["fabric_manager"], [],
        {"nearest": {"driver": {"branch": "595"}}},
    ),
    "the name of fabric manager is the one that apt has": (
        {**DEBIAN13, **NVSWITCH, **gpus(H100)}, driver(source="cuda_repository", branch="580"), CUDA_DEBIAN, [], [],
        {
            "driver": {
                "packages": ["nvidia-kernel-open-dkms", "nvidia-driver-cuda", "nvidia-fabricmanager", "libnvidia-nscq"],
                "fabric_manager": True,
            }
        },
    ),
    "what apt has of the rest of the nvswitch set in the same version comes along": (
        {**DEBIAN13, **NVSWITCH, **gpus(H100)}, driver(source="cuda_repository", branch="580"),
        both(CUDA_DEBIAN, apt("nvidia", "nvidia-imex-580", "580.178.04-1"), apt("nvidia", "libnvsdm", "580.95.05-1")), [], [],
        {
            "driver": {
                "packages": [
                    "nvidia-kernel-open-dkms", "nvidia-driver-cuda", "nvidia-fabricmanager", "libnvidia-nscq", "nvidia-imex-580",
                ],
            }
        },
    ),
    "from 590 on the names of the nvswitch set have no number": (
        {**NOBLE, **NVSWITCH, **gpus(H100)}, driver(source="cuda_repository", branch="595"),
        both(CUDA_UBUNTU, apt("nvidia", "nvidia-imex libnvsdm", "595.91.07-1")), [], [],
        {"driver": {"packages": ["nvidia-dkms-open", "libnvidia-compute", "nvidia-fabricmanager", "nvidia-imex", "libnvsdm"]}},
    ),
    "nvlink 5 takes its subnet manager along": (
        {**NOBLE, **NVLINK5, **gpus(B200)}, driver(source="cuda_repository", branch="595"), CUDA_UBUNTU, [], [],
        {"driver": {"packages": ["nvidia-dkms-open", "libnvidia-compute", "nvidia-fabricmanager", "nvlsm", "infiniband-diags"]}},
    ),
    # Secure Boot
    "secure boot on ubuntu takes the signed modules": (
        {**JAMMY, **SECURE_BOOT}, DISTRIBUTION, JAMMY_APT, [], [],
        {
            "driver": {
                "packages": [
                    "nvidia-headless-no-dkms-580-server-open", "nvidia-utils-580-server", "nvidia-compute-utils-580-server",
                    "linux-modules-nvidia-580-server-open-generic",
                ],
                "dkms": "",
                "headers": [],
            }
        },
    ),
    "secure boot with an enrolled key needs nothing else": (
        {**JAMMY, **SECURE_BOOT, "module_key": {"enrolled": True}}, DISTRIBUTION, JAMMY_APT, [], [],
        {"driver": {"dkms": "nvidia-srv"}},
    ),
    "secure boot on debian needs an enrolled key": (
        {**SECURE_BOOT, "module_key": {"path": "/var/lib/dkms/mok.pub", "enrolled": False}}, DISTRIBUTION, DEBIAN12_APT,
        ["secure_boot_key"], ["branch_eol"], {"nearest": None},
    ),
    "secure boot with a key that nobody can test is refused": (
        SECURE_BOOT, DISTRIBUTION, DEBIAN12_APT, ["secure_boot_key"], ["branch_eol"], {"nearest": None},
    ),
    "secure boot sends a host of the cuda repository to the distribution": (
        {**JAMMY, **SECURE_BOOT}, REPOSITORY, None, ["secure_boot_key"], ["by_tables"],
        {"nearest": {"driver": {"source": "distribution"}}},
    ),
    "a kernel for which nothing is signed needs the key": (
        {**JAMMY, **SECURE_BOOT, "kernel": kernel("6.8.0-1020-aws")}, DISTRIBUTION,
        {**JAMMY_APT, "linux-modules-nvidia-580-server-open-aws": []}, ["secure_boot_key"], [], {},
    ),
    # Kernels and compilers
    "missing headers are installed with the driver": (
        OLD_KERNEL, DISTRIBUTION, {**DEBIAN12_APT, **apt("Debian", "linux-headers-6.1.0-50-amd64", "6.1.170-1")}, [],
        ["branch_eol"], {"driver": {"headers": ["linux-headers-amd64", "linux-headers-6.1.0-50-amd64"]}},
    ),
    "an old kernel without headers is a warning": (
        OLD_KERNEL, DISTRIBUTION, DEBIAN12_APT, [], ["branch_eol", "headers_missing"],
        {"driver": {"headers": ["linux-headers-amd64"]}},
    ),
    "the running kernel needs headers": (
        {"kernel": kernel("6.1.0-50-amd64", "6.1.0-57-amd64", running="6.1.0-50-amd64", headers=["6.1.0-57-amd64"])},
        DISTRIBUTION, DEBIAN12_APT, ["headers_missing"], ["branch_eol"], {"nearest": None},
    ),
    "the kernel that boots next needs headers": (
        {"kernel": kernel("6.1.0-50-amd64", headers=[])}, DISTRIBUTION, DEBIAN12_APT, ["headers_missing"], ["branch_eol"],
        {"nearest": None},
    ),
    "the newest kernel needs headers, though another one is running": (
        {"kernel": kernel("6.1.0-49-amd64", "6.1.0-50-amd64", running="6.1.0-49-amd64", headers=["6.1.0-49-amd64"])},
        DISTRIBUTION, DEBIAN12_APT, ["headers_missing"], ["branch_eol"], {"nearest": None},
    ),
    "an old kernel with headers is built for like the newest": (
        {
            **JAMMY, "compilers": {"gcc": 11, "gcc-11": 11},
            "kernel": kernel("6.5.0-9-generic", "5.15.0-190-generic", compilers={"6.5.0-9-generic": 12}),
        },
        DISTRIBUTION, {**JAMMY_APT, "gcc-12": []}, ["compiler_mismatch"], [], {"nearest": None},
    ),
    "a kernel for which nothing can be built needs no compiler": (
        {
            **JAMMY, "compilers": {"gcc": 11, "gcc-11": 11},
            "kernel": kernel(
                "6.5.0-9-generic", "5.15.0-190-generic", headers=["5.15.0-190-generic"], compilers={"6.5.0-9-generic": 12}
            ),
        },
        DISTRIBUTION, {**JAMMY_APT, "gcc-12": [], "linux-headers-6.5.0-9-generic": []}, [], ["headers_missing"],
        {"driver": {"compilers": []}},
    ),
    "cloud and arm kernels have their own metapackages": (
        {**ARM, "kernel": kernel("6.1.0-57-cloud-arm64", "6.1.0-57-arm64")}, DISTRIBUTION, None, [],
        ["branch_eol", "by_tables"], {"driver": {"headers": ["linux-headers-cloud-arm64", "linux-headers-arm64"]}},
    ),
    "a newer kernel of ubuntu has the metapackage of its stack": (
        {**NOBLE, "kernel": kernel("6.8.0-90-generic", "6.14.0-30-generic")}, DISTRIBUTION, None, [], ["by_tables"],
        {"driver": {"headers": ["linux-headers-generic", "linux-headers-generic-hwe-24.04"]}},
    ),
    "a compiler that the kernel needs is installed": (
        HWE, DISTRIBUTION, {**JAMMY_APT, **apt("Ubuntu", "gcc-12", "12.3.0-1ubuntu1~22.04.2")}, [], [],
        {"driver": {"compilers": ["gcc-12"], "headers": ["linux-headers-generic-hwe-22.04"]}},
    ),
    "a compiler that apt does not have is refused": (
        HWE, DISTRIBUTION, {**JAMMY_APT, "gcc-12": []}, ["compiler_mismatch"], [], {"nearest": None},
    ),
    "a compiler beside the default one is enough": (
        {**HWE, "compilers": {"gcc": 11, "gcc-11": 11, "gcc-12": 12}}, DISTRIBUTION, {**JAMMY_APT, "gcc-12": []}, [], [],
        {"driver": {"compilers": []}},
    ),
    # Systems, versions, origins
    "a derivative is not supported": (
        system("pop", "22.04", "6.8.0-90-generic", gcc=11), REPOSITORY, None, ["unsupported_system"], [],
        {"driver": None, "nearest": None},
    ),
    "an architecture without packages is not supported": (
        {"architecture": "riscv64"}, DISTRIBUTION, None, ["unsupported_system"], [], {"driver": None, "nearest": None},
    ),
    "an old release is not supported": (
        system("ubuntu", "20.04", "5.4.0-200-generic", gcc=9), DISTRIBUTION, None, ["unsupported_system"], [],
        {"nearest": None},
    ),
    "a version has a form": (
        NOBLE, driver(source="distribution", version="latest"), None, ["version_format"], [],
        {"driver": None, "nearest": {"driver": {"version": "", "branch": "580"}}},
    ),
    "a version belongs to its branch": (
        NOBLE, driver(source="cuda_repository", version="580.95.05", branch="595"), None, ["branch_conflict"], ["by_tables"],
        {"nearest": {"driver": {"version": ""}}},
    ),
    "a source has a name": (
        NOBLE, driver(source="runfile"), None, ["source"], [],
        {"driver": None, "nearest": {"driver": {"source": "distribution"}}},
    ),
    "a driver from two places is refused": (
        {
            **NOBLE,
            "driver_packages": [
                {"name": "nvidia-utils-580", "version": "580.65.06-0ubuntu0.24.04.1", "origin": "Ubuntu"},
                {"name": "libnvidia-compute-580", "version": "580.65.06-1ubuntu1", "origin": "NVIDIA"},
            ],
        },
        REPOSITORY, None, ["mixed_origins"], ["by_tables"], {"nearest": None},
    ),
    "the origin of what is installed is found by its version": (
        {
            **NOBLE,
            "driver_packages": [
                {"name": "nvidia-dkms-580-open", "version": "580.178.04-1ubuntu1"},
                {"name": "nvidia-utils-580-server", "version": "580.173.02-0ubuntu0.24.04.1"},
            ],
        },
        REPOSITORY, both(CUDA_UBUNTU, apt("Ubuntu", "nvidia-utils-580-server", "580.173.02-0ubuntu0.24.04.1")),
        ["mixed_origins"], [], {"nearest": None},
    ),
    "a driver from the other source is replaced": (
        {**NOBLE, "driver_packages": [{"name": "nvidia-utils-580", "version": "580.65.06-0ubuntu0.24.04.1", "origin": "Ubuntu"}]},
        REPOSITORY, None, [], ["by_tables", "origin_change"], {"driver": {"source": "cuda_repository"}},
    ),
    # CUDA
    "cuda 12.8 runs on 535 by minor-version compatibility": (
        {}, cuda(("12.8.1", "runfile"), driver=DISTRIBUTION["driver"]), DEBIAN12_APT, [],
        ["branch_eol", "cuda_minor_compatibility"],
        {"cuda": [{"version": "12.8.1", "release": "12.8", "minimum_driver": "570.124.06", "gcc_max": 14}]},
    ),
    "cuda 13 needs 580": (
        {}, cuda(("13.0.2", "wheel"), driver=DISTRIBUTION["driver"]), DEBIAN12_APT, ["cuda_driver"], ["branch_eol"],
        {"nearest": {"cuda": [{"version": "12.9.1", "method": "wheel"}]}},
    ),
    "cuda 13 on an old branch moves the branch": (
        NOBLE, cuda(("13.0.2", "wheel"), driver={"source": "cuda_repository", "branch": "570"}), None, ["cuda_driver"],
        ["branch_eol", "by_tables"], {"nearest": {"driver": {"branch": "580"}}},
    ),
    "cuda 13 does not support pascal": (
        {**NOBLE, **gpus(P40)}, cuda(("13.0.2", "wheel"), driver=REPOSITORY["driver"]), None, ["cuda_gpu"], ["by_tables"],
        {"nearest": {"cuda": [{"version": "12.9.1", "method": "wheel"}]}},
    ),
    "an unmanaged driver counts as it is loaded": (
        {**NOBLE, **loaded("535.309.01")}, cuda(("13.0.2", "wheel")), None, ["cuda_driver"], [],
        {"driver": None, "nearest": {"cuda": [{"version": "12.9.1", "method": "wheel"}]}},
    ),
    "without any driver there is nothing to compare": (
        NOBLE, cuda(("13.0.2", "wheel")), None, [], [], {"driver": None, "repository": None},
    ),
    "the metapackage cuda pulls a driver": (
        NOBLE, cuda(("cuda", "apt"), driver=REPOSITORY["driver"]), None, ["cuda_metapackage"], ["by_tables"],
        {"nearest": {"cuda": [{"version": "13.4.1", "method": "apt"}]}},
    ),
    "the metapackage cuda-drivers is a driver": (
        NOBLE, cuda(("cuda-drivers", "apt")), None, ["cuda_metapackage"], [],
        {"nearest": {"cuda": [{"version": "13.4.1", "method": "apt"}]}},
    ),
    "a major version alone moves": (NOBLE, cuda(("12", "apt")), None, ["cuda_metapackage"], [], {}),
    "a cuda version has a form": (NOBLE, cuda(("twelve", "apt")), None, ["cuda_version_format"], [], {}),
    "a method has a name": (
        NOBLE, cuda(("13.0.2", "conda")), None, ["cuda_method"], [],
        {"nearest": {"cuda": [{"version": "13.0.2", "method": "runfile"}]}},
    ),
    "an unknown cuda is told and goes on": (NOBLE, cuda(("14.1.0", "redist")), None, [], ["cuda_unknown"], {}),
    "the gcc of debian 13 is too new for cuda 12.1": (
        DEBIAN13, cuda(("12.1.1", "runfile")), None, [], ["cuda_gcc"], {"cuda": [{"gcc_max": 12}]},
    ),
    "the gcc of debian 13 fits cuda 12.8": (DEBIAN13, cuda(("12.8.1", "runfile")), None, [], [], {"cuda": [{"gcc_max": 14}]}),
    "the wheels of cuda 12 have no nvcc": (NOBLE, cuda(("12.9.1", "wheel")), None, [], ["cuda_wheel_no_nvcc"], {}),
    "two updates of one release have one prefix": (
        NOBLE, cuda(("13.0.1", "wheel"), ("13.0.2", "wheel")), None, ["cuda_twice"], [],
        {"nearest": {"cuda": [{"version": "13.0.1", "method": "wheel"}]}},
    ),
    "a toolkit by apt is named by its release": (
        NOBLE, cuda(("12.8.1", "apt"), ("13.0.2", "apt")),
        apt("nvidia", "cuda-toolkit-12-8", "12.8.1-1") | apt("nvidia", "cuda-toolkit-13-0", "13.0.2-1"), [], [],
        {
            "cuda": [
                {"package": "cuda-toolkit-12-8", "package_version": "12.8.1-1"},
                {"package": "cuda-toolkit-13-0", "package_version": "13.0.2-1"},
            ],
            "repository": {"path": "compute/cuda/repos/ubuntu2404/x86_64/"},
        },
    ),
    "a toolkit that apt does not have comes by another method": (
        NOBLE, cuda(("12.1.1", "apt")), {**CUDA_UBUNTU_595, "cuda-toolkit-12-1": []}, ["cuda_not_offered"], ["cuda_gcc"],
        {"nearest": {"cuda": [{"version": "12.1.1", "method": "runfile"}]}},
    ),
    "another update of the same release is not the wished one": (
        NOBLE, cuda(("12.8.1", "apt")), apt("nvidia", "cuda-toolkit-12-8", "12.8.0-1"), ["cuda_not_offered"], [],
        {"nearest": {"cuda": [{"version": "12.8.1", "method": "runfile"}]}},
    ),
    "a repository that begins later is told": (
        NOBLE, cuda(("12.1.1", "apt")), None, [], ["cuda_gcc", "cuda_repository_first"], {},
    ),
    "a toolkit by apt needs a repository": (
        system("pop", "22.04", "6.8.0-90-generic", gcc=11), cuda(("12.8.1", "apt")), None, ["cuda_repository"], [],
        {"nearest": {"cuda": [{"version": "12.8.1", "method": "runfile"}]}},
    ),
    # cuDNN
    "cudnn goes with its cuda": (
        NOBLE, cudnn("9.10.2.21", "13", ("13.0.2", "wheel")), None, [], [],
        {"cudnn": [{"version": "9.10.2.21", "cuda": "13", "packages": ["libcudnn9-cuda-13", "libcudnn9-dev-cuda-13"]}]},
    ),
    "cudnn for a cuda that is not wished is refused": (
        NOBLE, cudnn("9.10.2.21", "12", ("13.0.2", "wheel")), None, ["cudnn_cuda_missing"], [],
        {"nearest": {"cudnn": [{"version": "9.10.2.21", "cuda": "13"}]}},
    ),
    "cudnn without any cuda is refused": (
        NOBLE, cudnn("9.10.2.21", "12"), None, ["cudnn_cuda_missing"], [], {"nearest": {"cudnn": []}},
    ),
    "there is no cudnn 8 for cuda 13": (
        NOBLE, cudnn("8.9.2.26", "13", ("13.0.2", "wheel"), ("12.8.1", "runfile")), None, ["cudnn_cuda_pair"], [],
        {"nearest": {"cudnn": [{"version": "8.9.2.26", "cuda": "12"}]}},
    ),
    "a new cudnn on pascal is told": (
        {**NOBLE, **gpus(P40)}, cudnn("9.11.0.98", "12", ("12.8.1", "runfile")), None, [], ["cudnn_gpu"], {},
    ),
    "an unknown cudnn is told": (NOBLE, cudnn("10.1.0.4", "13", ("13.0.2", "wheel")), None, [], ["cudnn_unknown"], {}),
    "a cudnn version has a form": (
        NOBLE, cudnn("nine", "13", ("13.0.2", "wheel")), None, ["cudnn_version_format"], [], {"nearest": {"cudnn": []}},
    ),
    # Container toolkit
    "the container toolkit is four packages of one version": (
        NOBLE, {"driver": None, "container_toolkit": "1.20.0"}, None, [], [],
        {
            "container_toolkit": [
                {"name": "nvidia-container-toolkit", "version": "1.20.0-1"},
                {"name": "nvidia-container-toolkit-base", "version": "1.20.0-1"},
                {"name": "libnvidia-container-tools", "version": "1.20.0-1"},
                {"name": "libnvidia-container1", "version": "1.20.0-1"},
            ]
        },
    ),
    "a container toolkit that apt lacks is refused": (
        NOBLE, {"driver": None, "container_toolkit": "1.19.9"},
        apt("nvidia", " ".join(gpu_catalog.CONTAINER_TOOLKIT_PACKAGES), "1.20.0-1", "1.19.1-1"), ["toolkit_not_offered"], [],
        {"nearest": {"container_toolkit": "1.20.0"}},
    ),
    "a container toolkit whose repository is not configured yet is no fault": (
        NOBLE, {"driver": None, "container_toolkit": "1.20.0"}, {name: [] for name in gpu_catalog.CONTAINER_TOOLKIT_PACKAGES},
        [], [], {},
    ),
    "an old container toolkit is refused": (
        NOBLE, {"driver": None, "container_toolkit": "1.17.8"}, None, ["toolkit_old"], [],
        {"nearest": {"container_toolkit": "1.20.0"}},
    ),
    "a container toolkit version has a form": (
        NOBLE, {"driver": None, "container_toolkit": "latest"}, None, ["toolkit_version_format"], [],
        {"nearest": {"container_toolkit": "1.20.0"}},
    ),
    "the refresh of cdi does not know debian's open module": (
        DEBIAN13, {**driver(source="distribution", flavour="open"), "container_toolkit": "1.20.0"}, DEBIAN13_APT, [],
        ["branch_eol", "toolkit_cdi_refresh"], {},
    ),
    # All at once
    "all reasons come at once, in order": (
        {**NOBLE, **gpus(P40), **NVSWITCH, "secure_boot": True},
        {
            "driver": {"source": "cuda_repository", "branch": "595", "flavour": "open"},
            "cuda": [{"version": "cuda", "method": "apt"}, {"version": "13.0.2", "method": "wheel"}],
            "cudnn": [{"version": "9.10.2.21", "cuda": "12"}],
            "container_toolkit": "1.17.8",
        },
        None,
        ["gpu_branch", "gpu_flavour", "secure_boot_key", "cuda_metapackage", "cuda_gpu", "cudnn_cuda_missing", "toolkit_old"],
        ["by_tables"],
        {
            "nearest": {
                "driver": {"source": "distribution", "branch": "580", "flavour": "auto"},
                "cuda": [{"version": "12.9.1", "method": "apt"}, {"version": "12.8.1", "method": "wheel"}],
                "container_toolkit": "1.20.0",
            }
        },
    ),
    "a host of which nothing is known is refused and not crashed on": (
        None, DISTRIBUTION, None, ["unsupported_system"], [], {"nearest": None},
    ),
}  # fmt: skip


def facts_of(changes):
    return {} if changes is None else {**copy.deepcopy(DEBIAN12), **changes}


def part_of(expected, actual):
    """Return the part of the answer that the case says something about."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return {key: part_of(value, actual.get(key)) for key, value in expected.items()}
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        return [part_of(*pair) for pair in zip(expected, actual, strict=True)]
    return actual


@pytest.mark.parametrize("name", CASES)
def test_wishes_are_judged_as_the_table_says(name):
    changes, wishes, offers, reasons, warnings, expected = CASES[name]
    answer = gpu_solver.solve(facts_of(changes), wishes, offers, MONTH)
    assert [reason["code"] for reason in answer["reasons"]] == reasons
    assert [warning["code"] for warning in answer["warnings"]] == warnings
    assert answer["ok"] is (not reasons)
    assert part_of(expected, answer) == expected
    # A case that is refused and names no choice leaves it open.
    if "nearest" in expected or not reasons:
        assert answer["nearest"] == expected.get("nearest")


MENDABLE = [name for name, case in CASES.items() if case[3] and case[5].get("nearest", ...) is not None]


@pytest.mark.parametrize("name", MENDABLE)
def test_the_nearest_choice_is_one_that_fits(name):
    changes, wishes, offers, *_ = CASES[name]
    nearest = gpu_solver.solve(facts_of(changes), wishes, offers, MONTH)["nearest"]
    assert nearest
    again = gpu_solver.solve(facts_of(changes), gpu_solver.merge(wishes, nearest), offers, MONTH)
    assert again["reasons"] == []


@pytest.mark.parametrize("name", CASES)
def test_findings_say_what_is_wrong_and_what_to_do(name):
    changes, wishes, offers, *_ = CASES[name]
    answer = gpu_solver.solve(facts_of(changes), wishes, offers, MONTH)
    for finding in [*answer["reasons"], *answer["warnings"]]:
        assert len(finding["message"]) > 20
        assert len(finding["remedy"]) > 10
        assert "None" not in finding["message"] + finding["remedy"]


@pytest.mark.parametrize("missing", [*DEBIAN12, "driver_packages"])
def test_a_missing_fact_is_unknown_and_no_crash(missing):
    facts = {key: value for key, value in DEBIAN12.items() if key != missing}
    answer = gpu_solver.solve(
        facts, {**DISTRIBUTION, **cuda(("12.8.1", "apt")), "container_toolkit": "1.20.0"}, DEBIAN12_APT, MONTH
    )
    assert answer["ok"] is (missing not in ("distribution", "architecture"))


def test_ends_of_life_depend_on_the_month():
    wishes = driver(source="cuda_repository", branch="580")

    def warnings(month):
        return [warning["code"] for warning in gpu_solver.solve(facts_of(NOBLE), wishes, CUDA_UBUNTU, month)["warnings"]]

    assert warnings("2028-06") == []
    assert warnings("2028-07") == ["branch_eol"]


def test_apt_is_asked_for_all_that_an_answer_rests_on():
    facts = facts_of({**JAMMY, **NVSWITCH})
    wishes = {
        **driver(source="distribution", branch="535"),
        "cuda": [{"version": "12.8.1", "method": "apt"}],
        "container_toolkit": "1.20.0",
    }
    names = gpu_solver.questions(facts, wishes)
    assert {
        "nvidia-headless-535-server", "nvidia-headless-535-server-open", "nvidia-headless-580-server-open",
        "nvidia-utils-580-server", "nvidia-dkms-580-open", "nvidia-fabricmanager-580", "cuda-toolkit-12-8",
        "libnvidia-container1", "linux-headers-generic",
    } <= set(names)  # fmt: skip
    # Asked about these and no others, the answer is not by the catalog alone.
    table = {name: JAMMY_APT.get(name, []) for name in names} | apt("nvidia", "cuda-toolkit-12-8", "12.8.1-1")
    table |= apt("nvidia", " ".join(gpu_catalog.CONTAINER_TOOLKIT_PACKAGES), "1.20.0-1")
    answer = gpu_solver.solve(facts, wishes, table, MONTH)
    assert [reason["code"] for reason in answer["reasons"]] == ["branch_transitional"]
    assert answer["nearest"] == {"driver": {"branch": "580"}}
    assert gpu_solver.solve(facts, gpu_solver.merge(wishes, answer["nearest"]), table, MONTH)["warnings"] == []


def test_the_same_question_gets_the_same_answer_and_changes_nothing():
    facts, wishes = facts_of(JAMMY), driver(source="distribution", branch="535")
    before = copy.deepcopy((facts, wishes, JAMMY_APT))
    first, second = (gpu_solver.solve(facts, wishes, JAMMY_APT, MONTH) for _ in range(2))
    assert first == second
    assert (facts, wishes, JAMMY_APT) == before


KEPT = [{"name": name, "version": "535.261.03-1", "origin": "distribution"} for name in DEBIAN12_PLANNED.split()]


def test_a_driver_whose_files_the_host_keeps_needs_no_archive_either():
    """Also where somebody removed packages of it: the record names them, and the store has them."""
    wishes = driver(source="distribution", version="535.261.03")
    codes = [reason["code"] for reason in gpu_solver.solve(facts_of({}), wishes, DEBIAN12_MOVED_ON, MONTH)["reasons"]]
    assert codes == ["version_not_offered"]
    answer = gpu_solver.solve(facts_of({}), wishes, DEBIAN12_MOVED_ON, MONTH, kept=KEPT)
    assert (answer["ok"], answer["driver"]["version"]) == (True, "535.261.03-1")


@pytest.mark.parametrize(("origin", "codes"), [("cuda_repository", []), ("distribution", ["version_not_offered"])])
def test_a_kept_driver_is_no_offer_of_another_source(origin, codes):
    """Ubuntu and NVIDIA give packages the same names."""
    names = ("nvidia-dkms-580-open", "libnvidia-compute-580")
    kept = [{"name": name, "version": "580.65.06-1ubuntu1", "origin": origin} for name in names]
    facts = facts_of({**NOBLE, **installed(" ".join(names), "580.65.06-1ubuntu1")})
    wishes = driver(source="cuda_repository", version="580.65.06")
    answer = gpu_solver.solve(facts, wishes, CUDA_UBUNTU, MONTH, kept=kept)
    assert [reason["code"] for reason in answer["reasons"]] == codes


def test_what_belongs_to_a_driver_is_what_the_catalog_says():
    assert gpu_solver.solve(facts_of({}), DISTRIBUTION, DEBIAN12_APT, MONTH)["driver"]["owned"] == list(gpu_catalog.OWNED)


def test_every_package_of_every_plan_is_owned_or_stays_loose():
    loose = {"infiniband-diags"}
    for changes, wishes, offers, *_ in CASES.values():
        plan = gpu_solver.solve(facts_of(changes), wishes, offers, MONTH)["driver"]
        for package in plan["packages"] if plan else ():
            assert package in loose or any(re.match(pattern, package) for pattern in plan["owned"]), package


def test_the_search_for_a_choice_ends_soon():
    wishes = {
        "driver": {"source": "cuda_repository", "version": "999.1", "branch": "", "flavour": "open", "desktop": True},
        "cuda": [{"version": str(number), "method": "apt"} for number in range(8)],
        "cudnn": [{"version": f"9.{number}.0", "cuda": "11"} for number in range(8)],
    }
    facts = facts_of({**NOBLE, **gpus(V100, B200)})
    assert gpu_solver.solve(facts, wishes, None, MONTH)["nearest"] is None
    assert gpu_solver.solve(facts_of(NOBLE), wishes, None, MONTH)["nearest"] is not None


@pytest.mark.parametrize("release", [{}, DEBIAN13, NOBLE, RESOLUTE], ids=["debian12", "debian13", "noble", "resolute"])
def test_whatever_is_wished_the_nearest_choice_fits(release):
    """Combinations of cards, sources, branches and flavours, with and without apt's answer."""
    everything = both(DEBIAN12_APT, DEBIAN13_APT, JAMMY_APT, CUDA_UBUNTU, CUDA_DEBIAN)
    flavours = ("auto", "open", "proprietary")
    axes = ((A40, V100, B200), ("distribution", "cuda_repository"), ("", "535", "595"), flavours, (None, everything))
    for card, source, branch, flavour, offers in itertools.product(*axes):
        facts = facts_of({**release, **gpus(card)})
        wishes = {**driver(source=source, branch=branch, flavour=flavour), "cuda": [{"version": "13.0.2", "method": "wheel"}]}
        answer = gpu_solver.solve(facts, wishes, offers, MONTH)
        assert answer["ok"] is (answer["reasons"] == [])
        if answer["nearest"] is not None:
            assert gpu_solver.solve(facts, gpu_solver.merge(wishes, answer["nearest"]), offers, MONTH)["ok"], (card, wishes)
