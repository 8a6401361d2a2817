"""Container toolkit and CDI spec of any host that the role nvidia_container_toolkit was applied to."""

from __future__ import annotations

import re

import pytest

PACKAGES = [
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
]
SPEC = "/var/run/cdi/nvidia.yaml"
KIND = r"""^[{[:space:]]*"?kind"?:[[:space:]]*"?nvidia\.com/gpu\b"""


@pytest.fixture(scope="module")
def versions(host):
    """The installed version of each package."""
    # It fails, and tells of the others, where one is missing.
    lines = host.run(f"dpkg-query --show --showformat '${{Package}} ${{Version}}\\n' {' '.join(PACKAGES)}").stdout.splitlines()
    return dict(line.split() for line in lines if len(line.split()) == 2)


@pytest.fixture(scope="module")
def driver(host):
    """The version of the loaded driver."""
    file = host.file("/proc/driver/nvidia/version")
    if not (file.exists and host.exists("nvidia-smi")):
        pytest.skip("this host has no loaded NVIDIA driver, so no GPU to describe")
    return re.search(r"Kernel Module.*?\s(\d+\.\d+(\.\d+)?)\s", file.content_string)[1]


@pytest.fixture(scope="module")
def spec(host, driver):
    """The text of the spec."""
    assert host.file(SPEC).exists, f"there is a driver {driver} and no {SPEC}: apply the role, or see nvidia-cdi-refresh.service"
    return host.file(SPEC).content_string


def test_all_packages_are_of_one_release(versions):
    assert sorted(versions) == sorted(PACKAGES)
    assert len(set(versions.values())) == 1, versions


def test_the_packages_are_held(host):
    assert set(PACKAGES) <= set(host.check_output("apt-mark showhold").split())


@pytest.mark.parametrize("package", PACKAGES)
def test_apt_would_install_no_other_version(host, versions, package):
    policy = host.check_output("apt-cache policy %s", package)
    assert f"Candidate: {versions[package]}\n" in policy
    assert re.search(rf"{re.escape(versions[package])} 1001$", policy, re.MULTILINE)


def test_apt_has_no_sources_that_contradict_each_other(host):
    assert host.run("apt-get indextargets").rc == 0


def test_the_program_is_that_of_the_packages(host, versions):
    upstream = versions["nvidia-container-toolkit-base"].rpartition("-")[0]
    assert f"version {upstream}" in host.check_output("nvidia-ctk --version").splitlines()[0]


def test_the_runtime_is_where_k3s_looks_for_it(host):
    """K3s searches its PATH, which is systemd's own, with one directory before it."""
    path = "/usr/local/nvidia/toolkit:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
    found = host.check_output("env -i PATH=%s sh -c 'command -v nvidia-container-runtime'", path)
    assert host.run("%s --version", found).rc == 0


def test_k3s_has_found_the_runtime(host):
    generated = host.file("/var/lib/rancher/k3s/agent/etc/containerd/config.toml")
    if not generated.exists:
        pytest.skip("K3s has not been started on this host")
    assert "nvidia-container-runtime" in generated.content_string, "restart k3s or k3s-agent: it looks at its start only"


def test_the_runtime_has_a_mode(host):
    """The program answers from its file, or from its defaults where there is no file."""
    answer = host.check_output("nvidia-ctk config")
    assert re.search(r'^\[nvidia-container-runtime\]\n(?:(?!\[).*\n)*mode = "(auto|cdi|legacy)"$', answer, re.MULTILINE)


def test_the_spec_follows_the_driver_and_each_boot(host):
    assert host.service("nvidia-cdi-refresh.path").is_running
    assert host.service("nvidia-cdi-refresh.path").is_enabled
    assert host.service("nvidia-cdi-refresh.service").is_enabled
    assert host.run("systemctl is-failed nvidia-cdi-refresh.service").stdout.strip() != "failed"


def test_no_spec_but_the_generated_one_describes_gpus(host):
    """Engines would take devices from the other one that the generated one does not name, with the files of another driver."""
    found = host.run("grep --extended-regexp --files-with-matches %s /etc/cdi/*.yaml /etc/cdi/*.json", KIND).stdout.split()
    found += host.run(
        "grep --extended-regexp --files-with-matches %s /var/run/cdi/*.yaml /var/run/cdi/*.json", KIND
    ).stdout.split()
    allowed = {SPEC, "/var/run/cdi/nvidia.coherent.yaml", "/var/run/cdi/nvidia.noncoherent.yaml"}
    assert set(found) - allowed == set()


def test_every_file_and_device_of_the_spec_is_on_the_host(host, spec):
    paths = set(re.findall(r"^\s*(?:- )?hostPath: (/.*)$", spec, re.MULTILINE))
    assert paths
    assert [path for path in sorted(paths) if not host.file(path).exists] == []


def test_the_spec_is_of_the_loaded_driver(driver, spec):
    assert set(re.findall(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)?)$", spec, re.MULTILINE)) == {driver}


def test_engines_can_ask_for_all_gpus(host, driver):
    assert "nvidia.com/gpu=all" in host.check_output("nvidia-ctk cdi list").split(), f"with driver {driver}"
