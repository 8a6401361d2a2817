"""STAND-INs for the packages of NVIDIA's and Ubuntu's repositories, as data.

Names, version patterns and the dependencies that make trouble are those of the real repositories (NVIDIA's driver and CUDA
installation guides of 2026, packages.ubuntu.com). The content is none of theirs: texts, small scripts, and kernel modules
that load and drive nothing. What a package says of itself begins with STAND-IN.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

CONTENT = Path(__file__).with_name("content")
#: The kernel modules of the driver.
MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem")
#: Driver versions in the CUDA repository by branch, oldest first. From 590 on the branch is no part of the names.
DRIVERS = {
    "535": ("535.261.03", "535.309.01"),
    "580": ("580.95.05", "580.178.04"),
    "590": ("590.44.01", "590.48.01"),
    "610": ("610.43.02", "610.57.04"),
}
#: What NVIDIA's pin packages cover.
PINNED = "nvidia-* libnvidia-* libnvsdm* cuda-drivers* libcuda1 firmware-nvidia-* xserver-xorg-video-nvidia*"


@dataclass(frozen=True)
class Package:
    """A package; `relations` are further fields such as Conflicts, `files` and `scripts` are name -> text."""

    name: str
    version: str
    depends: tuple[str, ...] = ()
    relations: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)


def content(file: str, /, **values: str) -> str:
    """Read a file of the folder content and put the values in the place of @NAME@."""
    text = (CONTENT / file).read_text()
    for key, value in values.items():
        text = text.replace(f"@{key.upper()}@", value)
    return text


def alone(virtual: str) -> dict[str, str]:
    """Fields by which only one package of a kind can be installed."""
    return {"Provides": virtual, "Conflicts": virtual, "Replaces": virtual}


def dkms(name: str, version: str, upstream: str, depends: tuple[str, ...], module: str = "nvidia") -> Package:
    """A package whose tiny kernel modules dkms really builds, signed for by the licence of their flavour."""
    folder, is_open = f"usr/src/{module}-{upstream}", "-open" in name
    entries = [
        f'BUILT_MODULE_NAME[{index}]="{built}"\nDEST_MODULE_LOCATION[{index}]="/updates/dkms"'
        for index, built in enumerate(MODULES)
    ]
    values = {
        "version": upstream,
        "license": "Dual MIT/GPL" if is_open else "NVIDIA",
        "banner": "Open Kernel Module for x86_64" if is_open else "x86_64 Kernel Module",
    }
    sources = {
        f"{folder}/{built}.c": content("nvidia.c" if built == "nvidia" else "nvidia-other.c", name=built, **values)
        for built in MODULES
    }
    return Package(
        name,
        version,
        ("dkms", *depends),
        alone("nvidia-dkms-kernel"),
        files={
            f"{folder}/dkms.conf": content("dkms.conf", module=module, version=upstream, modules="\n".join(entries)),
            f"{folder}/Makefile": f"# STAND-IN\nobj-m := {' '.join(f'{built}.o' for built in MODULES)}\n",
            **sources,
        },
        scripts={script: content(f"dkms.{script}", module=module, version=upstream) for script in ("postinst", "prerm")},
    )


def pins(suffix: str) -> Iterator[Package]:
    """NVIDIA's pin packages; only one can be installed, and none moves an installed driver back (priority 1000)."""
    names = {**{branch: f"{branch}-2" for branch in DRIVERS}, **{v: f"{v}-1" for row in DRIVERS.values() for v in row}}
    for what, version in names.items():
        pattern = f"{what}{'.' if what in DRIVERS else '-'}*"
        text = f"# STAND-IN\nPackage: {PINNED}\nPin: version {pattern}\nPin-Priority: 1000\n"
        files = {"etc/apt/preferences.d/nvidia-driver-pin": text}
        yield Package(f"nvidia-driver-pinning-{what}", version + suffix, (), alone("nvidia-driver-pinning"), files)


def cuda_ubuntu() -> Iterator[Package]:
    """The CUDA repository for Ubuntu."""
    for branch, versions in DRIVERS.items():
        number = f"-{branch}" if int(branch) < 590 else ""
        for upstream in versions:
            yield from _cuda_ubuntu_driver(upstream, number)
    yield from pins("ubuntu1")
    yield from toolkits()


def _cuda_ubuntu_driver(upstream: str, number: str) -> Iterator[Package]:
    version = f"{upstream}-1ubuntu1"
    same, newest = f"(= {version})", f"(>= {upstream})"
    for flavour, meta in (("", "cuda-drivers"), ("-open", "nvidia-open")):
        # The trap: an exact version of the metapackage takes the newest driver that there is.
        yield Package(f"{meta}{number}", version, (f"nvidia-driver{number}{flavour} {newest}",))
        if number:
            yield Package(meta, version, (f"{meta}{number} {same}",))
        parts = (f"nvidia-dkms{number}{flavour}", f"libnvidia-compute{number}", f"nvidia-kernel-common{number}")
        needs = (*(f"{part} {same}" for part in parts), f"nvidia-modprobe {newest}")
        yield Package(f"nvidia-driver{number}{flavour}", version, needs, alone("nvidia-driver-binary"))
        yield dkms(f"nvidia-dkms{number}{flavour}", version, upstream, (f"nvidia-kernel-common{number} {same}",))
    compute = alone("libnvidia-compute-binary")
    yield Package(f"libnvidia-compute{number}", version, (f"nvidia-kernel-common{number} {same}",), compute)
    common = alone("nvidia-kernel-common-binary")
    yield Package(f"nvidia-kernel-common{number}", version, (f"nvidia-firmware{number} {same}",), common)
    yield Package(f"nvidia-firmware{number}", version)
    yield Package("nvidia-modprobe", version)
    yield from _nvswitch(version, number)
    if number:
        needs = (f"cuda-drivers{number} {newest}", f"nvidia-fabricmanager{number} {newest}")
        yield Package(f"cuda-drivers-fabricmanager{number}", version, needs)


def _nvswitch(version: str, number: str) -> Iterator[Package]:
    names = ("nvidia-fabricmanager", "libnvidia-nscq") if number else NVSWITCH
    return (Package(f"{name}{number}", version, (), alone(f"{name}-binary")) for name in names)


#: What must equal the driver on hosts with NVSwitch.
NVSWITCH = ("nvidia-fabricmanager", "libnvidia-nscq", "libnvsdm", "nvidia-imex")


def cuda_debian() -> Iterator[Package]:
    """The CUDA repository for Debian: Debian's own names, and numbers on the metapackages of the old branches only."""
    for branch, versions in DRIVERS.items():
        for upstream in versions:
            yield from _cuda_debian_driver(upstream, f"-{branch}" if int(branch) < 590 else "")
    yield from pins("")
    yield from toolkits()


def _cuda_debian_driver(upstream: str, number: str) -> Iterator[Package]:
    version = f"{upstream}-1"
    same, newest = f"(= {version})", f"(>= {upstream})"
    kernel = f"nvidia-kernel-dkms {same} | nvidia-kernel-open-dkms {same}"
    for meta, module in (("cuda-drivers", "nvidia-kernel-dkms"), ("nvidia-open", "nvidia-kernel-open-dkms")):
        needs = tuple(f"{name} {newest}" for name in ("nvidia-driver", "nvidia-driver-cuda", module))
        yield Package(f"{meta}{number}", version, needs)
        if number:
            yield Package(meta, version, (f"{meta}{number} {same}",))
        yield dkms(module, version, upstream, (f"nvidia-kernel-support {same}",))
    yield Package("nvidia-driver", version, (kernel, f"nvidia-kernel-support {same}", f"xserver-xorg-video-nvidia {same}"))
    parts = ("libcuda1", "libnvidia-ml1", "nvidia-smi")
    yield Package("nvidia-driver-cuda", version, (*(f"{part} {same}" for part in parts), kernel, "nvidia-persistenced"))
    for name in (*parts, "xserver-xorg-video-nvidia", "nvidia-persistenced", "nvidia-modprobe", "firmware-nvidia-gsp"):
        yield Package(name, version)
    yield Package("nvidia-kernel-support", version, (f"firmware-nvidia-gsp {same}", f"nvidia-modprobe {newest}"))
    yield from _nvswitch(version, "")


def toolkits() -> Iterator[Package]:
    """CUDA toolkits side by side, and the metapackages that bring a driver along."""
    for release, toolkit, compiler, driver, priority in (
        ("12.8", "12.8.1", "12.8.93", "570.124.06", "128"),
        ("13.0", "13.0.2", "13.0.88", "580.95.05", "130"),
    ):
        tail, version, prefix = release.replace(".", "-"), f"{toolkit}-1", f"usr/local/cuda-{release}"
        values = {"release": release, "major": release.split(".")[0], "priority": priority}
        info = {
            "stand-in": {"name": "STAND-IN for NVIDIA's CUDA toolkit", "version": toolkit},
            "cuda": {"name": "CUDA SDK", "version": toolkit},
            "cuda_nvcc": {"name": "CUDA NVCC", "version": compiler},
        }
        yield Package(
            f"cuda-toolkit-{tail}-config-common",
            version,
            files={f"{prefix}/README": "STAND-IN\n"},
            scripts={script: content(f"toolkit.{script}", **values) for script in ("postinst", "prerm")},
        )
        # A runtime alone registers the alternative too, and so flips /usr/local/cuda.
        config = f"cuda-toolkit-{tail}-config-common"
        yield Package(f"cuda-cudart-{tail}", version, (config,), files={f"{prefix}/lib64/libcudart.so.STAND-IN": "STAND-IN\n"})
        nvcc = {f"{prefix}/bin/nvcc": content("nvcc", release=release, compiler=compiler)}
        yield Package(f"cuda-nvcc-{tail}", f"{compiler}-1", (config,), files=nvcc)
        needs = (config, f"cuda-nvcc-{tail} (>= {compiler})", f"cuda-cudart-{tail} (>= {toolkit})")
        files = {f"{prefix}/version.json": json.dumps(info, indent=2) + "\n"}
        yield Package(f"cuda-toolkit-{tail}", version, needs, files=files)
        yield Package(f"cuda-runtime-{tail}", version, (f"cuda-cudart-{tail}", f"cuda-drivers (>= {driver})"))
        yield Package(f"cuda-{tail}", version, (f"cuda-toolkit-{tail} (>= {toolkit})", f"cuda-runtime-{tail} (>= {toolkit})"))
    yield Package("cuda-toolkit", "13.0.2-1", ("cuda-toolkit-13-0 (>= 13.0.2)",))
    yield Package("cuda", "13.0.2-1", ("cuda-13-0 (>= 13.0.2)",))


def ubuntu_restricted() -> Iterator[Package]:
    """Ubuntu's own archive: a real 580, and a 535 whose packages are empty and pull the 580 ones."""
    upstream, version = "580.173.02", "580.173.02-0ubuntu0.22.04.1"
    same = f"(= {version})"
    for server in ("", "-server"):
        tail = f"580{server}"
        common, firmware, compute = (
            f"nvidia-kernel-common-{tail}",
            f"nvidia-firmware-{tail}-{upstream}",
            f"libnvidia-compute-{tail}",
        )
        module = "nvidia-srv" if server else "nvidia"
        yield Package(firmware, version)
        yield Package(common, version, (f"{firmware} {same}",), alone("nvidia-kernel-common"))
        yield Package(compute, version, (), alone("libnvidia-compute"))
        yield Package(f"libnvidia-cfg1-{tail}", version, (), alone("libnvidia-cfg1"))
        yield Package(f"nvidia-utils-{tail}", version, (f"{compute} {same}",), alone("nvidia-utils"))
        yield Package(f"nvidia-compute-utils-{tail}", version, (f"{compute} {same}",), alone("nvidia-compute-utils"))
        for flavour in ("", "-open"):
            kind = f"{tail}{flavour}"
            source = f"nvidia-kernel-source-{kind}"
            yield Package(source, version)
            yield dkms(f"nvidia-dkms-{kind}", version, upstream, (f"{source} {same}", f"{common} {same}"), module)
            parts = (compute, f"nvidia-utils-{tail}", f"nvidia-compute-utils-{tail}", f"libnvidia-cfg1-{tail}")
            no_dkms = (*(f"{part} {same}" for part in parts), common)
            yield Package(f"nvidia-headless-no-dkms-{kind}", version, no_dkms)
            yield Package(f"nvidia-headless-{kind}", version, (f"nvidia-headless-no-dkms-{kind}", f"nvidia-dkms-{kind} {same}"))
            yield Package(f"nvidia-driver-{kind}", version, (f"nvidia-headless-{kind} {same}",))
            yield Package(f"linux-modules-nvidia-{kind}-generic", "5.15.0-190.200", (f"{common} (>= {upstream})",))
            for what in ("headless", "driver", "dkms"):
                old = f"nvidia-{what}-535{server}{flavour}"
                yield Package(old, "535.309.01-0ubuntu0.22.04.2", (f"nvidia-{what}-{kind}",))
        yield Package(f"nvidia-utils-535{server}", "535.309.01-0ubuntu0.22.04.2", (f"nvidia-utils-{tail}",))
    # Fabric Manager goes with the server flavour only.
    yield Package("nvidia-fabricmanager-580", version, (f"nvidia-kernel-common-580-server {same}",))
    yield Package("libnvidia-nscq-580", version)


def container_toolkit() -> Iterator[Package]:
    """NVIDIA Container Toolkit: four packages of one version."""
    for upstream in ("1.19.1", "1.20.0"):
        version, same = f"{upstream}-1", f"(= {upstream}-1)"
        yield Package("libnvidia-container1", version)
        yield Package("libnvidia-container-tools", version, (f"libnvidia-container1 {same}",))
        yield Package(
            "nvidia-container-toolkit-base",
            version,
            ("python3",),
            files={
                "usr/bin/nvidia-ctk": content("nvidia-ctk", version=upstream),
                "usr/bin/nvidia-container-runtime": content("nvidia-container-runtime", version=upstream),
                "usr/lib/systemd/system/nvidia-cdi-refresh.service": content("nvidia-cdi-refresh.service"),
                "usr/lib/systemd/system/nvidia-cdi-refresh.path": content("nvidia-cdi-refresh.path"),
            },
        )
        needs = (f"nvidia-container-toolkit-base {same}", f"libnvidia-container-tools {same}")
        yield Package("nvidia-container-toolkit", version, needs)


SETS: dict[str, Callable[[], Iterator[Package]]] = {
    "cuda-ubuntu2204": cuda_ubuntu,
    "cuda-ubuntu2404": cuda_ubuntu,
    "cuda-debian12": cuda_debian,
    "cuda-debian13": cuda_debian,
    "ubuntu-restricted": ubuntu_restricted,
    "container-toolkit": container_toolkit,
}
