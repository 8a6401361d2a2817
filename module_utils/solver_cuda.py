"""Which CUDA toolkits, cuDNN and container toolkit fit a host and its driver."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible.module_utils import gpu_catalog as catalog
from ansible.module_utils import versions
from ansible.module_utils.solver_case import Case, Judgement, Offers

CUDA_VERSION = re.compile(r"\d{2}\.\d{1,2}(\.\d+)?")
CUDNN_VERSION = re.compile(r"\d+\.\d+\.\d+(\.\d+)?")


def release_of(version: str) -> str:
    """Return X.Y of a CUDA version X.Y.Z."""
    return ".".join(version.split(".")[:2])


def cuda_plan(case: Case, wish: Mapping[str, Any], driver: str, offers: Offers, judgement: Judgement) -> dict[str, Any]:
    """Judge one wished toolkit against the driver: its version, its branch alone, or "" if there is none.

    Returns:
        The toolkit with its release, package (of the method apt), the driver that came with it, and the newest gcc.
    """
    version, method = str(wish.get("version")), str(wish.get("method") or "wheel")
    release = release_of(version)
    own, _ = catalog.cuda_drivers(version)
    plan = {
        "version": version,
        "release": release,
        "method": method,
        "package": f"cuda-toolkit-{release.replace('.', '-')}" if method == "apt" else "",
        "package_version": "",
        "minimum_driver": own,
        "gcc_max": None,
    }
    if not CUDA_VERSION.fullmatch(version):
        _refuse_version(version, judgement)
        return plan
    if method not in catalog.CUDA_METHODS:
        judgement.refuse(
            "cuda_method",
            f"CUDA {version} is to be installed by {method!r}",
            f"choose one of {', '.join(catalog.CUDA_METHODS)}",
        )
    _judge_gpus(case, version, judgement)
    judge_driver(version, driver, judgement)
    plan["gcc_max"] = _judge_compiler(case, version, judgement)
    if method == "wheel" and versions.numbers(version)[0] < catalog.CUDA_WHEEL_NVCC_FROM:
        judgement.warn(
            "cuda_wheel_no_nvcc",
            f"the wheels of CUDA {version} hold no nvcc: it compiles by NVRTC and ptxas",
            "choose the method runfile, redist or apt where nvcc is needed",
        )
    if method == "apt":
        plan["package_version"] = _judge_package(case, version, plan["package"], offers, judgement)
    return plan


def _refuse_version(version: str, judgement: Judgement) -> None:
    if re.fullmatch(catalog.CUDA_METAPACKAGE, version):
        judgement.refuse(
            "cuda_metapackage",
            f"{version} moves with every release of NVIDIA's, and as a metapackage pulls its newest driver",
            "name one version, such as 12.8.1; the driver has its own wish",
        )
    else:
        judgement.refuse("cuda_version_format", f"the CUDA version is {version!r}", "write a version such as 12.8.1")


def _judge_gpus(case: Case, version: str, judgement: Judgement) -> None:
    for generation, ids in case.generations.items():
        last = catalog.GENERATIONS[generation]["cuda_last"]
        if last and versions.numbers(version)[0] > last:
            judgement.refuse(
                "cuda_gpu",
                f"CUDA {version} does not support the {generation} GPU {', '.join(ids)}: CUDA {last} was the last one to do so",
                f"choose a CUDA {last} for this host",
            )


def judge_driver(version: str, driver: str, judgement: Judgement) -> None:
    """Judge a CUDA version against a driver: its version, its branch alone, or "" if there is none."""
    own, least = catalog.cuda_drivers(version)
    given = versions.numbers(driver)
    # Of a branch alone only the first number is known.
    if least and given < versions.numbers(least)[: len(given)]:
        judgement.refuse(
            "cuda_driver",
            f"CUDA {version} needs driver {least} or newer, this host gets {driver}",
            f"choose driver {own or least} or newer, or an older CUDA",
        )
    elif own is None:
        judgement.warn(
            "cuda_unknown",
            f"CUDA {version} is not in the catalog, and was not compared with driver {driver or 'none'}",
            "compare with the release notes of that CUDA",
        )
    elif given < versions.numbers(own)[: len(given)]:
        judgement.warn(
            "cuda_minor_compatibility",
            f"CUDA {version} came with driver {own}, this host gets {driver}: programs run by minor-version compatibility, but "
            "PTX from this CUDA can't be compiled at load time",
            f"choose driver {own} or newer, or build for the architecture of the GPUs",
        )


def _judge_compiler(case: Case, version: str, judgement: Judgement) -> int | None:
    limit: int | None = catalog.cuda_gcc(version)
    default = (case.compilers or {}).get("gcc")
    if limit and default and default > limit:
        fitting = sorted(major for major in (case.compilers or {}).values() if major and major <= limit)
        judgement.warn(
            "cuda_gcc",
            f"nvcc of CUDA {version} takes gcc {limit} at most, the host's default is gcc {default}",
            f"set NVCC_CCBIN to g++-{fitting[-1]}" if fitting else f"install g++-{limit} and set NVCC_CCBIN to it",
        )
    return limit


def _judge_package(case: Case, version: str, package: str, offers: Offers, judgement: Judgement) -> str:
    """Return the package version that apt has for a toolkit, "" where it is not known."""
    if case.repository is None:
        judgement.refuse(
            "cuda_repository",
            f"NVIDIA has no apt repository for {case.name}",
            "choose the method runfile, redist or wheel",
        )
        return ""
    offered = offers.of(package, "cuda_repository")
    first = catalog.CUDA_FIRST_IN_REPOSITORY.get((case.system, case.release))
    if offered is None:
        if first and versions.numbers(version) < versions.numbers(first):
            judgement.warn(
                "cuda_repository_first",
                f"NVIDIA's repository for {case.name} is said to begin with CUDA {first}, {version} is wished",
                "choose the method runfile, redist or wheel if apt does not have it",
            )
        return ""
    for offer in offered:
        upstream = versions.upstream(str(offer["version"]))
        if upstream == version or upstream.startswith(f"{version}."):
            return str(offer["version"])
    listed = ", ".join(str(offer["version"]) for offer in offered) or "nothing"
    judgement.refuse(
        "cuda_not_offered",
        f"apt has no {package} of version {version}; it has: {listed}",
        "choose a version that apt has, or the method runfile, redist or wheel",
    )
    return ""


def judge_releases(wishes: Iterable[Mapping[str, Any]], judgement: Judgement) -> None:
    """Refuse two toolkits of one release: both would have the prefix /usr/local/cuda-X.Y."""
    by_release: dict[str, list[str]] = {}
    for wish in wishes:
        by_release.setdefault(release_of(str(wish.get("version"))), []).append(str(wish.get("version")))
    for release, found in by_release.items():
        if len(found) > 1:
            judgement.refuse(
                "cuda_twice",
                f"CUDA {' and '.join(found)} would both be /usr/local/cuda-{release}",
                "keep one of them: updates of one release are compatible",
            )


def cudnn_plan(case: Case, wish: Mapping[str, Any], cuda_majors: list[str], judgement: Judgement) -> dict[str, Any]:
    """Judge one wished cuDNN against the CUDA majors that the host gets; return it with the packages of it."""
    version, cuda = str(wish.get("version")), str(wish.get("cuda"))
    major = version.split(".", maxsplit=1)[0]
    entry = catalog.CUDNN.get(major)
    if not CUDNN_VERSION.fullmatch(version):
        judgement.refuse("cudnn_version_format", f"the cuDNN version is {version!r}", "write a version such as 9.10.2.21")
    elif entry is None:
        judgement.warn("cudnn_unknown", f"cuDNN {version} is not in the catalog", "compare with the support matrix of that cuDNN")
    elif cuda not in entry["cuda"]:
        judgement.refuse(
            "cudnn_cuda_pair",
            f"there is no cuDNN {major} for CUDA {cuda}; there is one for CUDA {' and '.join(entry['cuda'])}",
            "choose a cuDNN and a CUDA that go together",
        )
    if cuda not in cuda_majors:
        judgement.refuse(
            "cudnn_cuda_missing",
            f"cuDNN {version} is wished for CUDA {cuda}, and the host gets CUDA {', '.join(cuda_majors) or 'none'}",
            f"wish for a CUDA {cuda}, or choose the cuDNN of a CUDA that is wished",
        )
    old = [name for name in case.generations if catalog.GENERATIONS[name]["last"]]
    if old and versions.numbers(version)[:2] > catalog.CUDNN_LAST_FOR_OLD_GPUS:
        judgement.warn(
            "cudnn_gpu",
            f"cuDNN {version} is newer than the last one said to support {' and '.join(old)} GPUs",
            f"choose a cuDNN up to {'.'.join(map(str, catalog.CUDNN_LAST_FOR_OLD_GPUS))}",
        )
    packages = [name.format(cuda=cuda) for name in entry["packages"]] if entry else []
    return {"version": version, "cuda": cuda, "packages": packages}


def container_toolkit_plan(
    version: str, driver: Mapping[str, Any] | None, offers: Offers, judgement: Judgement
) -> list[dict[str, str]]:
    """Judge the wished container toolkit; return its packages with the version of each."""
    version = version.removesuffix("-1")
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        judgement.refuse(
            "toolkit_version_format",
            f"the container toolkit's version is {version!r}",
            f"write a version such as {catalog.CONTAINER_TOOLKIT_DEFAULT}",
        )
        return []
    if versions.numbers(version) < versions.numbers(catalog.CONTAINER_TOOLKIT_FIRST):
        judgement.refuse(
            "toolkit_old",
            f"container toolkit {version} has packages in different versions and no CDI refresh service",
            f"choose {catalog.CONTAINER_TOOLKIT_FIRST} or newer",
        )
    offered = {name: offers.of(name) for name in catalog.CONTAINER_TOOLKIT_PACKAGES}
    missing = [
        name
        for name, found in offered.items()
        if found is not None and f"{version}-1" not in [offer["version"] for offer in found]
    ]
    # Of none at all: the repository is not configured yet.
    if missing and any(offered.values()):
        judgement.refuse(
            "toolkit_not_offered",
            f"apt has no version {version}-1 of {', '.join(missing)}",
            "choose a version that apt has of all four packages",
        )
    module = str(driver["modules"][0]) if driver else ""
    if module == "nvidia-current-open" or (module.startswith("nvidia-") and version == "1.18.0"):
        judgement.warn(
            "toolkit_cdi_refresh",
            f"nvidia-cdi-refresh of container toolkit {version} does not recognise the module {module}, and would not run",
            "give its unit a drop-in that clears ExecCondition, as the role nvidia_container_toolkit does",
        )
    return [{"name": name, "version": f"{version}-1"} for name in catalog.CONTAINER_TOOLKIT_PACKAGES]
