"""What NVIDIA's and the distributions' packages look like: the tables that gpu_solver judges a host by.

As of 2026-11-30. "Archive" is what the Debian 12 and 13 archives answered that day, "documentation" is NVIDIA's (driver
lifecycle and installation guide of R580 to R620, CUDA 13.4 release notes and installation guide), "seen" are Ubuntu's
package pages. A host's own apt knows better: where it was asked, its answer goes before these tables.
"""

from __future__ import annotations

import re
from typing import Any

from ansible.module_utils.versions import numbers

# ---- GPU generations ------------------------------------------------------------------------------------------------

#: PCI device ids, first and last, of each generation. Derived from pci.ids 2025.06.09 (Debian 13) by the code name that
#: begins each entry (GK1xx Kepler, GM Maxwell, GP Pascal, GV Volta, TU Turing, GA Ampere, AD Ada, GH Hopper, GB Blackwell);
#: neighbours of one generation are joined up to a gap of 0x60. Every id that Debian's nvidia-detect lists for the drivers
#: 470, 535 and 550 falls into a range, and into no generation that such a driver can't drive.
GENERATION_RANGES = (
    (0x0FC0, 0x103F, "kepler"),
    (0x1180, 0x11FF, "kepler"),
    (0x1280, 0x130B, "kepler"),
    (0x1340, 0x1436, "maxwell"),
    (0x15C2, 0x15FF, "pascal"),
    (0x1617, 0x1667, "maxwell"),
    (0x1725, 0x172F, "pascal"),
    (0x174D, 0x17FD, "maxwell"),
    (0x1B00, 0x1D56, "pascal"),
    (0x1D81, 0x1DF6, "volta"),
    (0x1E02, 0x1FF9, "turing"),
    (0x2080, 0x20FF, "ampere"),
    (0x2182, 0x21D1, "turing"),
    (0x2200, 0x223F, "ampere"),
    (0x2302, 0x23F0, "hopper"),
    (0x2414, 0x25FB, "ampere"),
    (0x2681, 0x28F8, "ada"),
    (0x2900, 0x29F1, "blackwell"),
    (0x2B85, 0x2C59, "blackwell"),
    (0x2D04, 0x2E2A, "blackwell"),
    (0x2F04, 0x2F58, "blackwell"),
    (0x31C0, 0x31C0, "blackwell"),
    (0x3340, 0x3340, "blackwell"),
)

#: First and last driver branch (0: no end known), kernel module flavours, last CUDA major (0: no end known). Documentation,
#: save for Kepler's end, and the begin of Ada and Hopper (CUDA 11.8's driver): the id lists of Debian's 470 and 535 drivers.
GENERATIONS: dict[str, dict[str, Any]] = {
    "kepler": {"first": 0, "last": 470, "flavours": ("proprietary",), "cuda_last": 11},
    "maxwell": {"first": 0, "last": 580, "flavours": ("proprietary",), "cuda_last": 12},
    "pascal": {"first": 0, "last": 580, "flavours": ("proprietary",), "cuda_last": 12},
    "volta": {"first": 0, "last": 580, "flavours": ("proprietary",), "cuda_last": 12},
    "turing": {"first": 0, "last": 0, "flavours": ("open", "proprietary"), "cuda_last": 0},
    "ampere": {"first": 0, "last": 0, "flavours": ("open", "proprietary"), "cuda_last": 0},
    "ada": {"first": 520, "last": 0, "flavours": ("open", "proprietary"), "cuda_last": 0},
    "hopper": {"first": 520, "last": 0, "flavours": ("open", "proprietary"), "cuda_last": 0},
    "blackwell": {"first": 570, "last": 0, "flavours": ("open",), "cuda_last": 0},
}
#: Turing to Hopper: the installer recommends the open modules from 560 on, and the proprietary ones end with 595.
OPEN_RECOMMENDED_FROM = 560
PROPRIETARY_LAST = 595
#: cuDNN 9.10 is the last one for Maxwell, Pascal and Volta (the description of a package of it for these cards).
CUDNN_LAST_FOR_OLD_GPUS = (9, 10)


def generation(gpu_id: str) -> str | None:
    """Return the generation of a GPU by its id in lspci's notation (10de:2235), None where the id is in no range."""
    match = re.fullmatch(r"10de:([0-9a-f]{4})", gpu_id.lower())
    device = int(match.group(1), 16) if match else -1
    return next((name for first, last, name in GENERATION_RANGES if first <= device <= last), None)


# ---- Driver branches ------------------------------------------------------------------------------------------------

#: kind: lts and production have support until `eol` (year-month); new_feature is short-lived; retired is no longer in the
#: lifecycle tables of 2026-08 and 2026-09 (documentation). cuda: the toolkit that came with the branch.
BRANCHES: dict[str, dict[str, str]] = {
    "470": {"kind": "retired", "eol": "", "cuda": ""},
    "525": {"kind": "retired", "eol": "", "cuda": "12.0"},
    "535": {"kind": "lts", "eol": "2026-06", "cuda": "12.2"},
    "550": {"kind": "retired", "eol": "", "cuda": "12.4"},
    "570": {"kind": "retired", "eol": "", "cuda": "12.8"},
    "580": {"kind": "lts", "eol": "2028-06", "cuda": "13.0"},
    "590": {"kind": "new_feature", "eol": "", "cuda": "13.1"},
    "595": {"kind": "production", "eol": "2027-03", "cuda": "13.2"},
    "610": {"kind": "new_feature", "eol": "2026-08", "cuda": "13.3"},
    "615": {"kind": "new_feature", "eol": "", "cuda": "13.4"},
}
#: What a host gets that asks for no branch, outside Debian's archive, which has one driver: the supported LTS branch that
#: has both flavours and every generation from Maxwell to Blackwell.
DEFAULT_BRANCH = "580"
#: In this order a way out is looked for: long support first. NVIDIA's repositories for all releases have the second ones.
PREFERRED_BRANCHES = ("580", "595", "535", "550", "570", "470")
REPOSITORY_BRANCHES = ("580", "595", "610", "615")

#: Debian's archive: branch -> what stands in the middle of the names; "": nothing, and both flavours.
DEBIAN_BRANCHES: dict[str, dict[str, str]] = {
    "12": {"535": "", "470": "tesla-470"},
    "13": {"550": "", "535": "tesla-535"},
}
#: Debian 12: the newest driver with open modules is older than the newest one without.
DEBIAN_OPEN_SKEW = {"12": "535.261.03-1"}

#: Ubuntu: branch -> successor, and the first version whose packages are empty and pull the successor (seen; "": all).
#: Only versions before it install what their name says.
UBUNTU_TRANSITIONAL: dict[str, dict[str, tuple[str, str]]] = {
    "22.04": {"470": ("580", ""), "535": ("580", "535.309.01-0ubuntu0.22.04.2")},
    "24.04": {"470": ("580", ""), "535": ("580", "535.309.01-0ubuntu0.24.04.2")},
    "26.04": {"470": ("580", ""), "535": ("580", ""), "590": ("595", "")},
}
#: The upstream kernel that a release came with; a newer one is the hardware enablement stack.
UBUNTU_KERNELS = {"22.04": "5.15", "24.04": "6.8", "26.04": "7.0"}

# ---- Package names --------------------------------------------------------------------------------------------------

#: By kind of archive. compute and desktop: the version-locked set, its first package being the one with the kernel module.
#: loose: beside it in any version; optional: beside it in the same version where apt has it. {n}: the branch as it stands in
#: the names, {o} and {open_}: the open flavour, a|b: the first one that apt has. pins: what an apt preference has to name.
#: dkms: the name in /usr/src; module: the begin of the modules' file names.
PACKAGES: dict[str, dict[str, Any]] = {
    # Archive; simulated there: nothing of X without a desktop, and the pin holds the set together.
    "debian": {
        "compute": (
            "nvidia-{open_}kernel-dkms", "nvidia-smi", "libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1",
            "libnvidia-nvvm4", "libnvidia-cfg1", "firmware-nvidia-gsp",
        ),
        "desktop": ("nvidia-{open_}kernel-dkms", "nvidia-driver", "nvidia-smi", "libcuda1", "firmware-nvidia-gsp"),
        "loose": ("nvidia-persistenced", "nvidia-modprobe"),
        "optional": (),
        "pins": "src:nvidia-graphics-drivers src:nvidia-open-gpu-kernel-modules",
        "dkms": "nvidia-current{o}",
        "module": "nvidia-current{o}",
    },
    "debian_tesla": {
        "compute": (
            "nvidia-{n}-kernel-dkms", "nvidia-{n}-smi", "libnvidia-{n}-cuda1", "libnvidia-{n}-ml1",
            "libnvidia-{n}-ptxjitcompiler1", "libnvidia-{n}-nvvm4", "libnvidia-{n}-cfg1",
        ),
        "desktop": ("nvidia-{n}-kernel-dkms", "nvidia-{n}-driver", "nvidia-{n}-smi", "libnvidia-{n}-cuda1"),
        "loose": ("nvidia-persistenced", "nvidia-modprobe"),
        "optional": (),
        "pins": "src:nvidia-graphics-drivers-{n}",
        "dkms": "nvidia-{n}",
        "module": "nvidia-{n}",
    },
    # Seen. The server flavour is the one that Fabric Manager goes with.
    "ubuntu": {
        "compute": ("nvidia-headless-{n}{o}", "nvidia-utils-{n}", "nvidia-compute-utils-{n}"),
        "desktop": ("nvidia-driver-{n}{o}",),
        "loose": (),
        "optional": (),
        "pins": "src:nvidia-graphics-drivers-{n}",
        "dkms": "nvidia{srv}",
        "module": "nvidia",
    },
    # Documentation. With the pin in force the metapackages of a desktop can't take newer dependencies.
    "cuda_ubuntu": {
        "compute": ("nvidia-dkms{n}{o}", "libnvidia-compute{n}"),
        "desktop": ("{meta}{n}",),
        "loose": (),
        "optional": ("nvidia-utils{n}", "nvidia-compute-utils{n}"),
        "pins": "{globs}",
        "dkms": "nvidia",
        "module": "nvidia",
    },
    "cuda_debian": {
        "compute": ("nvidia-kernel{o}-dkms", "nvidia-driver-cuda"),
        "desktop": ("{meta}{n}",),
        "loose": (),
        "optional": (),
        "pins": "{globs}",
        "dkms": "nvidia",
        "module": "nvidia",
    },
    # Before 560 there is no nvidia-driver-cuda.
    "cuda_debian_old": {
        "compute": ("nvidia-kernel{o}-dkms", "nvidia-smi", "libcuda1", "libnvidia-ml1"),
        "desktop": ("{meta}{n}",),
        "loose": (),
        "optional": ("nvidia-persistenced", "nvidia-modprobe"),
        "pins": "{globs}",
        "dkms": "nvidia",
        "module": "nvidia",
    },
}  # fmt: skip
#: Ubuntu's modules that Canonical built and signed go without DKMS, so with Secure Boot too.
UBUNTU_PREBUILT = {"headless": "nvidia-headless-no-dkms-{n}{o}", "modules": "linux-modules-nvidia-{n}{o}-{kernel}"}
#: From this branch on, the names in the CUDA repository for Ubuntu have no number.
UNNUMBERED_FROM = 590
#: The first branch with nvidia-driver-cuda in the CUDA repository for Debian.
DRIVER_CUDA_FROM = 560
#: The kernel modules of the driver; the names on disk begin with what PACKAGES says.
MODULES = ("", "-modeset", "-drm", "-uvm", "-peermem")
#: Every name of a driver in NVIDIA's repository, and Debian's names of the same, as apt preferences write them.
DRIVER_GLOBS = (
    "nvidia-* libnvidia-* cuda-drivers* libcuda1 libcudadebugger1 libnvcuvid1 libnvoptix1 libnvsdm* libxnvctrl* "
    "firmware-nvidia-* xserver-xorg-video-nvidia* libgl1-nvidia-* libglx-nvidia0 libegl-nvidia0 libgles-nvidia*"
)
#: Regular expressions for every package of a driver, from whatever source: matched from the begin of the name, as
#: unattended-upgrades does. CUDA, cuDNN, GPUDirect Storage, the container toolkit, the tools of CUDA in Debian's archive, and
#: helpers that work with any driver are not the driver's; nor are NVIDIA's local repositories.
OWNED = (
    "nvidia-(?!container|cuda-(?!mps)|cudnn|docker|cg-|driver-(assistant|local-repo)|fs\\b|gds\\b|openjdk-|prime|profiler|"
    "visual-profiler|vaapi-)",
    "libnvidia-(?!container|egl-|.*-dev$)", "libcuda1$", "libcudadebugger1$", "libnvcuvid1$", "libnvoptix1$", "libnvsdm",
    "libxnvctrl", "nvlsm$", "firmware-nvidia-", "cuda-drivers", "xserver-xorg-video-nvidia", "lib(gl1|glx|egl|gles)-nvidia",
    "linux-(modules|objects|signatures)-nvidia-",
)  # fmt: skip
_OWNED = re.compile("|".join(OWNED))
#: What NVSwitch needs in the driver's exact version, what goes with it where apt has it, and what NVLink 5 needs beside it.
FABRIC_MANAGER = {
    "ubuntu": ("nvidia-fabricmanager-{branch}", "libnvidia-nscq-{branch}"),
    "cuda": ("nvidia-fabricmanager{n}|nvidia-fabricmanager", "libnvidia-nscq{n}|libnvidia-nscq"),
}
FABRIC_MANAGER_OPTIONAL = {"ubuntu": (), "cuda": ("nvidia-imex{n}|nvidia-imex", "libnvsdm{n}|libnvsdm")}
#: Their names as an apt preference writes them: NVIDIA gives them another revision than the driver on Ubuntu.
FABRIC_MANAGER_GLOBS = "nvidia-fabricmanager* libnvidia-nscq* nvidia-imex* libnvsdm*"
NVLINK5_PACKAGES = ("nvlsm", "infiniband-diags")

# ---- Repositories ---------------------------------------------------------------------------------------------------

NVIDIA = "https://developer.download.nvidia.com/"
_OLD_KEY = "EB693B3035CD5710E231E123A4B469963BF863CC"
_NEW_KEY = "02182E60104FCDC26EAE1B8597A5D4CB8793F200"
#: The files of the keys, which lie beside the packages.
KEY_FILES = {_OLD_KEY: "3bf863cc.pub", _NEW_KEY: "8793F200.pub"}
#: The key before them, which NVIDIA took back on 2022-04-27.
OBSOLETE_KEYS = ("AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80",)
#: NVIDIA's repository below compute/cuda/repos/ by system, and the keys that may sign it. apt of Debian 13 refuses the old
#: key (its self-signature is SHA-1), so no other release's repository works there. Which one 26.04 has is not documented.
REPOSITORIES: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {
    ("debian", "12"): ("debian12", (_OLD_KEY,)),
    ("debian", "13"): ("debian13", (_NEW_KEY,)),
    ("ubuntu", "22.04"): ("ubuntu2204", (_OLD_KEY,)),
    ("ubuntu", "24.04"): ("ubuntu2404", (_OLD_KEY,)),
    ("ubuntu", "26.04"): ("ubuntu2604", (_NEW_KEY, _OLD_KEY)),
}
#: dpkg's architecture -> NVIDIA's name of it. arm64 is no directory there.
ARCHITECTURES = {"amd64": "x86_64", "arm64": "sbsa"}


def repository(system: str, release: str, architecture: str) -> dict[str, Any] | None:
    """Return NVIDIA's repository for a system, None where there is none, in the words of the module apt_source.

    path: below the address of NVIDIA or of a mirror; url, key_url: at NVIDIA; fingerprints: keys that may sign it;
    obsolete_keys: keys that no longer may; conflicts: declarations of NVIDIA's repositories that would be beside it.
    """
    found, machine = REPOSITORIES.get((system, release)), ARCHITECTURES.get(architecture)
    if not (found and machine):
        return None
    name, fingerprints = found
    path = f"compute/cuda/repos/{name}/{machine}/"
    return {
        "path": path,
        "url": f"{NVIDIA}{path}",
        "key_url": f"{NVIDIA}{path}{KEY_FILES[fingerprints[0]]}",
        "fingerprints": list(fingerprints),
        "obsolete_keys": list(OBSOLETE_KEYS),
        "conflicts": [f"{NVIDIA}compute/cuda/repos/*"],
    }


# ---- CUDA -----------------------------------------------------------------------------------------------------------

#: The driver that came with each toolkit (documentation). Updates are listed where they differ.
CUDA_DRIVERS = {
    "11.8": "520.61.05",
    "12.0": "525.60.13",
    "12.1": "530.30.02",
    "12.2": "535.54.03",
    "12.2.1": "535.86.09",
    "12.2.2": "535.104.05",
    "12.3": "545.23.06",
    "12.4": "550.54.14",
    "12.4.1": "550.54.15",
    "12.5": "555.42.02",
    "12.6": "560.28.03",
    "12.6.1": "560.35.03",
    "12.6.2": "560.35.03",
    "12.6.3": "560.35.05",
    "12.8": "570.26",
    "12.8.1": "570.124.06",
    "12.9": "575.51.03",
    "12.9.1": "575.57.08",
    "13.0": "580.65.06",
    "13.0.1": "580.82.07",
    "13.0.2": "580.95.05",
    "13.1": "590.44.01",
    "13.1.1": "590.48.01",
    "13.2": "595.45.04",
    "13.2.1": "595.58.03",
    "13.2.2": "595.71.05",
    "13.3": "610.43.02",
    "13.4.1": "615.71.09",
}
#: The oldest driver that runs a major version's programs by minor-version compatibility (documentation).
CUDA_COMPATIBLE_DRIVERS = {"11": "450.80.02", "12": "525.60.13", "13": "580"}
#: The newest gcc that nvcc takes as a host compiler, from this toolkit on (CUDA installation guides).
CUDA_GCC = {"11.8": 11, "12.1": 12, "12.4": 13, "12.8": 14, "13.0": 15, "13.4": 16}
#: The first toolkit in each repository; from memory of public listings, so it only warns.
CUDA_FIRST_IN_REPOSITORY = {
    ("ubuntu", "22.04"): "11.7", ("debian", "12"): "12.3", ("ubuntu", "24.04"): "12.5", ("debian", "13"): "13.1",
}  # fmt: skip
CUDA_METHODS = ("wheel", "apt", "redist", "runfile")
#: The first CUDA major whose wheels hold nvcc; before it they have ptxas and NVRTC.
CUDA_WHEEL_NVCC_FROM = 13
#: These take the newest driver along, or move to the newest toolkit (documentation).
CUDA_METAPACKAGE = r"cuda|cuda-drivers(-\d+)?|cuda-toolkit(-\d+)?|cuda-(runtime-|demo-suite-)?\d+(-\d+)?|latest|\d+"

#: cuDNN major -> CUDA majors with packages of it, and its package names (documentation; cuDNN 8: public listings).
CUDNN: dict[str, dict[str, tuple[str, ...]]] = {
    "8": {"cuda": ("11", "12"), "packages": ("libcudnn8", "libcudnn8-dev")},
    "9": {"cuda": ("12", "13"), "packages": ("libcudnn9-cuda-{cuda}", "libcudnn9-dev-cuda-{cuda}")},
}

# ---- Container toolkit ----------------------------------------------------------------------------------------------

#: All in one version since 1.18 (documentation).
CONTAINER_TOOLKIT_PACKAGES = (
    "nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1",
)  # fmt: skip
CONTAINER_TOOLKIT_FIRST = "1.18.0"
CONTAINER_TOOLKIT_DEFAULT = "1.20.0"


def is_driver_package(name: str) -> bool:
    """Return whether a package, named without architecture, belongs to a driver, from whatever source."""
    return _OWNED.match(name) is not None


def cuda_drivers(version: str) -> tuple[str | None, str | None]:
    """Return the driver that came with a CUDA version, and the oldest one that runs its programs; None where unknown."""
    minor, major = ".".join(version.split(".")[:2]), version.split(".", maxsplit=1)[0]
    own = CUDA_DRIVERS.get(version, CUDA_DRIVERS.get(minor))
    return own, CUDA_COMPATIBLE_DRIVERS.get(major, own)


def cuda_gcc(version: str) -> int | None:
    """Return the newest gcc that this CUDA takes, None for one older than the table."""
    limits = [limit for first, limit in CUDA_GCC.items() if numbers(first) <= numbers(version)]
    return limits[-1] if limits else None
