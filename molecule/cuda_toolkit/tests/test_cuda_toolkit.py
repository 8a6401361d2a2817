"""Toolkits of both hosts, after all that side_effect.yml did to them."""

from __future__ import annotations

import pytest

EXPECTED = {
    "12": {"cuda-12.4": ("nvcc", "stand-in"), "cuda-13.0": ("nvcc", "13.0.88")},
    "13": {"cuda-12.8": ("nvrtc", ""), "cuda-12.9": ("nvcc", "stand-in"), "cuda-13.5": ("nvcc", "13.5.37")},
}


@pytest.fixture
def release(host):
    return host.system_info.release.split(".")[0]


def test_the_toolkits_are_those_of_the_list_and_no_others(host, release):
    listed = host.check_output("ls -d /usr/local/cuda-*").split()
    assert listed == [f"/usr/local/{name}" for name in EXPECTED[release]]


def test_each_compiler_is_the_one_of_its_toolkit(host, release):
    nvcc = {name: what for name, (kind, what) in EXPECTED[release].items() if kind == "nvcc"}
    told = {name: host.check_output("/usr/local/%s/bin/nvcc --version", name) for name in nvcc}
    assert [name for name, what in nvcc.items() if what not in told[name]] == []


def test_a_real_program_is_linked_by_every_real_nvcc(host, release):
    """Without a driver it can only say so; it needs the runtime of its toolkit, half precision and a linker for that."""
    source = (
        "#include <cuda_fp16.h>\n#include <cstdio>\n"
        "__global__ void k(float *x) { *x = __half2float(__float2half(*x)); }\n"
        "int main() { puts(cudaGetErrorString(cudaFree(0))); k<<<1, 1>>>(nullptr); }\n"
    )
    real = [name for name, (kind, what) in EXPECTED[release].items() if kind == "nvcc" and what != "stand-in"]
    assert real
    for name in real:
        out = host.check_output(
            "d=$(mktemp -d) && printf %s %s > $d/a.cu && /usr/local/%s/bin/nvcc -arch=sm_80 -o $d/a $d/a.cu && $d/a; rm -r $d",
            "%s",
            source,
            name,
        )
        assert "driver" in out


def test_the_installer_left_no_driver_and_nothing_global(host):
    assert not host.file("/var/lib/stand-in-driver").exists
    assert host.run("grep -rl /usr/local/cu /etc/ld.so.conf.d /etc/profile.d /etc/environment").stdout == ""


def test_the_link_of_a_registered_group_is_in_manual_mode(host, release):
    query = host.run("update-alternatives --query cuda")
    if release == "13":
        assert {"Status: manual", "Value: /usr/local/cuda-12.8"} <= set(query.stdout.splitlines())
    else:
        assert host.check_output("readlink --canonicalize /usr/local/cuda") == "/usr/local/cuda-13.0"


def test_the_packages_of_the_pruned_toolkit_are_gone(host):
    assert host.run("dpkg-query --show 'cuda-*-12-8*'").rc == 1


def test_each_cudnn_has_its_environment(host, release):
    if release == "13":
        pytest.skip("no cuDNN is asked for")
    name = "/etc/groundwork/cuda/12.4{}.env"
    folder = "LD_LIBRARY_PATH=/usr/local/cuda-12.4/lib64:/usr/local/cudnn-{}-cuda12/lib"
    assert folder.format("9.27.0.42") in host.file(name.format("")).content_string
    assert folder.format("9.13.0.50") in host.file(name.format("-cudnn-9.13.0.50")).content_string


def test_a_unit_with_the_environment_file_finds_its_nvcc(host, release):
    series = {"12": "13.0", "13": "13.5"}[release]
    command = (
        f"systemd-run --quiet --wait --pipe --property=EnvironmentFile=/etc/groundwork/cuda/{series}.env sh -c 'nvcc --version'"
    )
    assert f"release {series}," in host.check_output(command)
