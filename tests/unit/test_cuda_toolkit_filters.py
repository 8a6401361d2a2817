"""The filters of the role cuda_toolkit: what is refused, and what an entry becomes."""

from __future__ import annotations

import re
from pathlib import Path

import cuda_toolkit
import pytest
import yaml

ROLE = Path(__file__).parents[2] / "roles/cuda_toolkit"
RUNFILES = yaml.safe_load((ROLE / "vars/main.yml").read_text())["__cuda_toolkit_runfiles"]
MIRROR = "https://mirror.example.com/compute"
SHA = "a" * 64


def sources(architecture="x86_64"):
    staging = "/var/cache/groundwork/cuda"
    return {"mirror": MIRROR, "locks": str(ROLE / "files/python"), "staging": staging, "runfiles": RUNFILES,
            "architecture": architecture}  # fmt: skip


def faults(*versions, cudnn=(), default="", eula=True, gcc=12, architecture="x86_64"):
    settings = {
        "cuda_toolkit_versions": list(versions),
        "cuda_toolkit_cudnn": list(cudnn),
        "cuda_toolkit_default": default,
        "cuda_toolkit_accept_eula": eula,
    }
    return cuda_toolkit.faults(settings, sources(architecture), gcc)


def entry(version, method="wheel", **more):
    return {"version": version, "method": method, **more}


def test_good_settings_have_no_faults():
    assert (
        faults(
            entry("13.0.2"),
            entry("12.8.1", "runfile"),
            entry("12.4.1", "redist", sha256=SHA),
            entry("13.4.1", "apt"),
            cudnn=[entry("9.27.0.42", cuda=13), entry("9.26.0.51", "redist", cuda="12", sha256=SHA)],
            default=13.0,
        )
        == []
    )


def test_nothing_asked_for_needs_no_acceptance():
    assert faults(eula=False) == []


def test_the_license_has_to_be_accepted():
    (fault,) = faults(entry("13.0.2"), eula=False)
    assert (
        fault
        == "cuda_toolkit_accept_eula: read NVIDIA's license at docs.nvidia.com/cuda/eula, and set it to true if you accept it"
    )


@pytest.mark.parametrize(
    "package",
    ["cuda", "cuda-13-0", "cuda-runtime-13-0", "cuda-demo-suite-13-0", "cuda-drivers", "cuda-drivers-580", "cuda-toolkit",
     "cuda-toolkit-13", "cuda=13.0.2-1"],
)  # fmt: skip
def test_a_metapackage_is_refused_for_what_it_brings(package):
    (fault,) = faults(entry("13.0.2", "apt", packages=[package]))
    assert f"13.0.2 by apt asks for {package.split('=')[0]}: it brings a driver of its own choice" in fault


def test_a_package_without_a_version_is_refused():
    (fault,) = faults(entry("13.0.2", "apt", packages=["cuda-nvcc-13-0"]))
    assert "asks for cuda-nvcc-13-0 in any version; write cuda-nvcc-13-0=<version>" in fault


@pytest.mark.parametrize(
    ("wished", "fault"),
    [
        (entry("13.0"), "13.0 is no full version such as 13.0.2"),
        (entry("latest"), "latest is no full version such as 13.0.2"),
        (entry("13.0.1"), "13.0.1 has no lock file"),
        (entry("13.0.2", "redist"), "13.0.2 by redist needs the sha256 of its manifest"),
        (entry("12.2.1", "runfile"), "12.2.1 by runfile needs url and sha256, since the file's name can't be derived"),
        (entry("12.8.1", "runfile", url="file:///srv/cuda.run"), "12.8.1 by runfile needs a sha256"),
    ],
)
def test_what_can_not_be_fetched_and_checked_is_refused(wished, fault):
    (found,) = faults(wished)
    assert fault in found


def test_the_md5_sums_are_those_of_files_for_x86_64():
    (fault,) = faults(entry("12.8.1", "runfile"), architecture="aarch64")
    assert "needs a sha256: NVIDIA's MD5 is known for its own files for x86_64 alone" in fault


def test_two_updates_of_one_release_are_refused():
    (fault,) = faults(entry("12.8.1", "runfile"), entry("12.8.2", "runfile"))
    assert fault == "cuda_toolkit_versions: 12.8 is listed twice; both would be /usr/local/cuda-12.8"


def test_a_default_that_is_not_listed_is_refused():
    assert faults(entry("13.0.2"), default="12.8") == ["cuda_toolkit_default: 12.8 is none of 13.0"]


@pytest.mark.parametrize(
    ("wished", "gcc", "refused"),
    [
        (entry("12.1.1", "runfile"), 14, True),
        (entry("12.1.1", "runfile", host_compiler="g++-12"), 14, False),
        (entry("12.1.1", "runfile"), 12, False),
        (entry("12.1.1", "wheel"), 14, False),
        (entry("12.1.1", "runfile"), None, False),
    ],
)
def test_a_system_compiler_that_is_too_new_is_named_with_the_way_out(wished, gcc, refused):
    found = faults(wished, gcc=gcc)
    assert bool(found) is refused
    assert all("12.1.1 takes gcc 12 at most, and the system's is 14; set host_compiler: g++-12" in fault for fault in found)


def test_a_cudnn_for_a_cuda_that_is_not_wished_is_refused():
    (fault,) = faults(entry("12.8.1"), cudnn=[entry("9.27.0.42", cuda="13")])
    assert "9.27.0.42 is for CUDA 13, and the toolkits here are of 12" in fault


def test_all_faults_are_told_together():
    assert len(faults(entry("13.0.1"), entry("12.4.1", "redist"), default="11.8", eula=False)) == 4


def test_a_wheel_entry_has_the_checksums_of_its_lock_file():
    (tree,) = cuda_toolkit.trees([entry("13.0.2")], sources())
    assert tree["wheels"] == "/var/cache/groundwork/cuda/cuda-13.0.tar"
    assert tree["components"] == ["cuda-toolkit[nvcc,crt,nvvm,cudart,cccl,nvrtc]==13.0.2"]
    assert "7c3a32c8ca9866addfd784da363ddee2f6874d560027a296f583e86a61f2d543" in tree["sha256s"]


@pytest.mark.parametrize("lock", sorted(ROLE.glob("files/python/cuda-13.*.lock")), ids=lambda path: path.stem)
def test_the_parts_of_a_compiler_are_locked_in_one_version(lock):
    """The nvcc asks for any nvvm and crt; another version than its own can't read what it writes."""
    pins = dict(re.findall(r"^(nvidia-[\w-]+)==(\S+)", lock.read_text(), re.MULTILINE))
    assert pins["nvidia-cuda-nvcc"] == pins["nvidia-nvvm"] == pins["nvidia-cuda-crt"]
    assert ".".join(pins["nvidia-cuda-nvcc"].split(".")[:2]) in lock.stem


@pytest.mark.parametrize(
    ("wished", "url"),
    [
        (entry("12.4.1", "redist", sha256=SHA), "/cuda/redist/redistrib_12.4.1.json"),
        (entry("9.27.0.42", "redist", cuda="12", sha256=SHA), "/cudnn/redist/redistrib_9.27.0.json"),
        (entry("12.8.1", "runfile"), "/cuda/12.8.1/local_installers/cuda_12.8.1_570.124.06_linux.run"),
    ],
)
def test_the_address_is_that_of_nvidia_below_the_mirror(wished, url):
    assert cuda_toolkit.trees([wished], sources())[0]["url"] == MIRROR + url


def test_the_file_for_arm_servers_has_its_own_name():
    (tree,) = cuda_toolkit.trees([entry("13.4.1", "runfile", sha256=SHA)], sources("aarch64"))
    assert tree["url"].endswith("/cuda_13.4.1_linux_sbsa.run")


def test_an_md5_is_used_only_where_no_sha256_is_given():
    known, given = cuda_toolkit.trees([entry("12.8.1", "runfile"), entry("12.9.1", "runfile", sha256=SHA)], sources())
    assert (known["md5"], known.get("sha256")) == ("e281945bf4ea42788db29457ebc1e6ae", None)
    assert (given.get("md5"), given["sha256"]) == (None, SHA)


def test_only_missing_trees_are_fetched():
    wished = [entry("13.0.2"), entry("12.8.1", "runfile"), entry("9.27.0.42", cuda="13")]
    fetched = cuda_toolkit.wheels(wished, sources(), ["cudnn-9.27.0.42-cuda13"])
    assert [item["name"] for item in fetched] == ["cudnn-9.27.0.42-cuda13"]
    assert fetched[0]["lock"].endswith("/cudnn-9.27.0.42-cuda13.lock")
    assert re.fullmatch(r"cudnn-9\.27\.0\.42-cuda13-[0-9a-f]{12}", fetched[0]["archive"])


@pytest.mark.parametrize(
    ("versions", "programs"),
    [
        ([entry("13.0.2")], ["g++"]),
        ([entry("12.8.1")], []),
        ([entry("12.1.1", "runfile", host_compiler="g++-12"), entry("13.0.2")], ["g++", "g++-12"]),
    ],
)
def test_only_an_nvcc_needs_a_host_compiler(versions, programs):
    assert cuda_toolkit.compilers(versions) == programs


def test_apt_is_asked_for_one_release_in_one_version():
    packages = cuda_toolkit.FilterModule().filters()["cuda_toolkit_packages"]
    chosen = entry("13.0.2", "apt", packages=["cuda-nvcc-13-0=13.0.88-1"])
    assert packages([entry("12.8.1", "apt"), chosen]) == ["cuda-toolkit-12-8=12.8.1-*", "cuda-nvcc-13-0=13.0.88-1"]
