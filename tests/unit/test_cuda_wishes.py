"""What the variables of the role cuda_toolkit come to, and what is refused; asked through the filter of the role."""

from __future__ import annotations

import re
from pathlib import Path

import cuda_toolkit
import pytest
import yaml

ROLE = Path(__file__).parents[2] / "roles/cuda_toolkit"
STAGING = "/var/cache/groundwork/cuda"
SOURCES = {
    "locks": str(ROLE / "files/python"),
    "staging": STAGING,
    "runfiles": yaml.safe_load((ROLE / "vars/main.yml").read_text())["__cuda_toolkit_runfiles"],
}
DOWNLOADS = "https://mirror.example.com/compute"
NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos"
SHA = "a" * 64
KEY = "B" * 40


def plan(*versions, cudnn=(), default="", eula=True, system="Debian 12.12", architecture="x86_64", **more):
    """Give the variables to the filter, for a host with this system."""
    settings = {
        "cuda_toolkit_versions": list(versions),
        "cuda_toolkit_cudnn": list(cudnn),
        "cuda_toolkit_default": default,
        "cuda_toolkit_accept_eula": eula,
        "cuda_toolkit_downloads": DOWNLOADS,
        "cuda_toolkit_mirror": "",
        "cuda_toolkit_mirror_key": "",
        "cuda_toolkit_mirror_fingerprints": [],
        **more,
    }
    name, release = system.split()
    facts = {"distribution": name, "distribution_version": release, "architecture": architecture}
    return cuda_toolkit.FilterModule().filters()["cuda_toolkit_plan"](settings, SOURCES, facts)


def faults(*versions, **options):
    return plan(*versions, **options)["faults"]


def toolkits(*versions, **options):
    found = plan(*versions, **options)
    assert found["faults"] == []
    return found["toolkits"]


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
    ("wished", "system", "refused"),
    [
        (entry("12.1.1", "runfile"), "Debian 13.1", True),
        (entry("12.1.1", "runfile", host_compiler="g++-12"), "Debian 13.1", False),
        (entry("12.1.1", "runfile"), "Debian 12.12", False),
        (entry("12.1.1", "runfile"), "Ubuntu 22.04", False),
        (entry("12.1.1", "wheel"), "Debian 13.1", False),
        (entry("12.1.1", "runfile"), "Debian 99", False),
    ],
)
def test_a_system_compiler_that_is_too_new_is_named_with_the_way_out(wished, system, refused):
    found = faults(wished, system=system)
    assert bool(found) is refused
    assert all("12.1.1 takes gcc 12 at most, and the system's is 14; set host_compiler: g++-12" in fault for fault in found)


def test_a_cudnn_for_a_cuda_that_is_not_wished_is_refused():
    (fault,) = faults(entry("12.8.1"), cudnn=[entry("9.27.0.42", cuda="13")])
    assert "9.27.0.42 is for CUDA 13, and the toolkits here are of 12" in fault


def test_all_faults_are_told_together():
    assert len(faults(entry("13.0.1"), entry("12.4.1", "redist"), default="11.8", eula=False)) == 4


def test_a_wheel_entry_has_the_checksums_of_its_lock_file():
    (tree,) = toolkits(entry("13.0.2"))
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
        (entry("12.8.1", "runfile"), "/cuda/12.8.1/local_installers/cuda_12.8.1_570.124.06_linux.run"),
    ],
)
def test_the_address_is_that_of_nvidia_below_the_mirror(wished, url):
    assert toolkits(wished)[0]["url"] == DOWNLOADS + url


def test_the_address_of_a_cudnn_has_three_numbers():
    found = plan(entry("12.8.1"), cudnn=[entry("9.27.0.42", "redist", cuda=12, sha256=SHA)])
    assert found["cudnn"][0]["url"] == f"{DOWNLOADS}/cudnn/redist/redistrib_9.27.0.json"


def test_the_file_for_arm_servers_has_its_own_name():
    (tree,) = toolkits(entry("13.4.1", "runfile", sha256=SHA), architecture="aarch64")
    assert tree["url"].endswith("/cuda_13.4.1_linux_sbsa.run")


def test_an_md5_is_used_only_where_no_sha256_is_given():
    known, given = toolkits(entry("12.8.1", "runfile"), entry("12.9.1", "runfile", sha256=SHA))
    assert (known["md5"], known.get("sha256")) == ("e281945bf4ea42788db29457ebc1e6ae", None)
    assert (given.get("md5"), given["sha256"]) == (None, SHA)


def test_the_name_of_an_archive_of_wheels_changes_with_its_lock_file():
    found = plan(entry("13.0.2"), entry("12.8.1", "runfile"), cudnn=[entry("9.27.0.42", cuda=13)])["wheels"]
    assert [item["name"] for item in found] == ["cuda-13.0", "cudnn-9.27.0.42-cuda13"]
    assert found[1]["lock"].endswith("/cudnn-9.27.0.42-cuda13.lock")
    assert re.fullmatch(r"cudnn-9\.27\.0\.42-cuda13-[0-9a-f]{12}", found[1]["archive"])


@pytest.mark.parametrize(
    ("versions", "programs"),
    [
        ([entry("13.0.2")], ["g++"]),
        ([entry("12.8.1")], []),
        ([entry("12.1.1", "runfile", host_compiler="g++-12"), entry("13.0.2")], ["g++", "g++-12"]),
    ],
)
def test_only_an_nvcc_needs_a_host_compiler(versions, programs):
    assert plan(*versions)["compilers"] == programs


# Packages


def test_apt_is_asked_for_one_release_in_one_version():
    found = plan(entry("12.8.1", "apt"), entry("13.0.2", "apt", packages=["cuda-nvcc-13-0=13.0.88-1"]))
    assert found["packages"] == ["cuda-toolkit-12-8=12.8.1-*", "cuda-nvcc-13-0=13.0.88-1"]


@pytest.mark.parametrize(
    ("package", "held"),
    [
        ("libcublas-12-8", True),
        ("cuda-toolkit-12-8-config-common", True),
        ("cuda-nvcc-12-80", False),
        ("cuda-nvcc-12-9", False),
        ("libnvidia-ml1", False),
    ],
)
def test_all_packages_of_the_release_are_parts(package, held):
    (pattern,) = plan(entry("12.8.1", "apt"))["parts"]
    assert bool(re.search(pattern, package)) is held


@pytest.mark.parametrize(
    ("system", "architecture", "folder", "file", "key"),
    [
        ("Debian 12.12", "x86_64", "debian12/x86_64", "3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC"),
        ("Debian 13.1", "x86_64", "debian13/x86_64", "8793F200.pub", "02182E60104FCDC26EAE1B8597A5D4CB8793F200"),
        ("Ubuntu 24.04", "aarch64", "ubuntu2404/sbsa", "3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC"),
    ],
)
def test_the_repository_is_that_of_the_release_with_its_own_key(system, architecture, folder, file, key):
    wished = entry("13.4.1", "apt", host_compiler="g++-12")
    assert plan(wished, system=system, architecture=architecture)["repository"] == {
        "name": "cuda",
        "uris": [f"{NVIDIA}/{folder}/"],
        "key_url": f"{NVIDIA}/{folder}/{file}",
        "fingerprints": [key],
        "conflicts": [f"{NVIDIA}/*"],
        "obsolete_keys": ["AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80"],
    }


def test_without_packages_no_repository_is_declared():
    assert plan(entry("13.0.2"))["repository"] is None


MIRROR = {
    "cuda_toolkit_mirror": "file:/srv/cuda",
    "cuda_toolkit_mirror_key": "/srv/key.asc",
    "cuda_toolkit_mirror_fingerprints": [KEY],
}


def test_a_mirror_has_a_name_and_a_key_of_its_own():
    found = plan(entry("13.4.1", "apt"), **MIRROR)["repository"]
    assert (found["name"], found["uris"], found["key_url"], found["fingerprints"]) == (
        "cuda-mirror",
        ["file:/srv/cuda"],
        "",
        [KEY],
    )


def test_a_mirror_without_a_key_is_signed_by_nvidia():
    found = plan(entry("13.4.1", "apt"), cuda_toolkit_mirror="file:/srv/cuda")["repository"]
    assert found["key_url"] == f"{NVIDIA}/debian12/x86_64/3bf863cc.pub"
    assert found["fingerprints"] == ["EB693B3035CD5710E231E123A4B469963BF863CC"]


@pytest.mark.parametrize(
    ("system", "architecture"), [("Debian 99", "x86_64"), ("Pop!_OS 22.04", "x86_64"), ("Debian 12", "ppc64le")]
)
def test_a_system_that_nvidia_has_no_repository_for_is_refused_unless_a_mirror_says_all(system, architecture):
    wished = entry("13.4.1", "apt")
    (fault,) = faults(wished, system=system, architecture=architecture)
    assert "cuda_toolkit_versions: NVIDIA has no apt repository for" in fault
    assert f"on {architecture}; take another method than apt, or set cuda_toolkit_mirror with its _key and _fingerprints" in fault
    assert faults(wished, system=system, architecture=architecture, **MIRROR) == []
    assert faults(entry("12.4.1"), system=system) == []


def test_a_short_key_id_is_refused():
    (fault,) = faults(entry("13.4.1", "apt"), **{**MIRROR, "cuda_toolkit_mirror_fingerprints": ["3BF863CC"]})
    assert fault == "cuda_toolkit_mirror_fingerprints: 3BF863CC is no fingerprint of 40 hexadecimal digits"


DRIVER = {
    "nvidia_driver_source": "mirror",
    "nvidia_driver_mirror": "file:/srv/cuda",
    "nvidia_driver_mirror_key": "/srv/key.asc",
    "nvidia_driver_mirror_fingerprints": [KEY],
}


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({**DRIVER, **MIRROR}, ""),
        (
            {**DRIVER, **MIRROR, "nvidia_driver_mirror": "file:/srv/other"},
            "cuda_toolkit_mirror: .*file:/srv/other.*file:/srv/cuda",
        ),
        ({**DRIVER, **MIRROR, "nvidia_driver_mirror_fingerprints": []}, "cuda_toolkit_mirror_fingerprints: "),
        ({**MIRROR, "nvidia_driver_source": "cuda_repository"}, r"cuda_toolkit_mirror: .*\(NVIDIA\), not of file:/srv/cuda"),
        ({"nvidia_driver_source": "cuda_repository"}, ""),
        ({**MIRROR, **DRIVER, "nvidia_driver_source": "distribution", "nvidia_driver_mirror": ""}, ""),
        (MIRROR, ""),
    ],
    ids=["same mirror", "other mirror", "other key", "mirror beside NVIDIA", "NVIDIA", "driver of the distribution", "no driver"],
)
def test_driver_and_packages_of_cuda_come_from_one_repository(settings, fault):
    found = faults(entry("13.4.1", "apt"), **settings)
    assert re.match(fault, found[0]) if fault else found == []
    assert faults(entry("13.0.2"), **settings) == [], "wheels have nothing to do with it"
