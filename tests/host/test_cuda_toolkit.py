"""Toolkits and the link of any host that the role cuda_toolkit was applied to."""

from __future__ import annotations

import json
import re

import pytest

LINK = "/usr/local/cuda"


@pytest.fixture(scope="module")
def environments(host):
    """The environment files of the toolkits: path -> its variables."""
    files = host.run("ls /etc/groundwork/cuda/*.env").stdout.split()
    if not files:
        pytest.skip("no toolkit is asked for")
    lines = {file: host.file(file).content_string.splitlines() for file in files}
    return {file: dict(line.split("=", 1) for line in text if not line.startswith("#")) for file, text in lines.items()}


@pytest.fixture(scope="module")
def stamps(host, environments):
    """The toolkits that the role vouches for: prefix -> its stamp."""
    homes = sorted({variables["CUDA_HOME"] for variables in environments.values()})
    return {home: json.loads(host.check_output("cat %s/.groundwork.json", home)) for home in homes}


def test_each_nvcc_is_the_one_of_its_toolkit(host, stamps):
    nvcc = {home: stamp["version"] for home, stamp in stamps.items() if stamp["compiler"] == "nvcc"}
    series = {home: ".".join(version.split(".")[:2]) for home, version in nvcc.items()}
    assert [home for home in nvcc if f"release {series[home]}," not in host.check_output("%s/bin/nvcc --version", home)] == []


def test_the_folders_of_each_environment_exist(host, environments):
    paths = [path for variables in environments.values() for path in variables["LD_LIBRARY_PATH"].split(":")]
    assert [path for path in paths if not host.file(path).is_directory] == []


def test_the_link_leads_to_a_toolkit_of_the_role(host, stamps):
    assert host.check_output("readlink --canonicalize %s", LINK) in stamps


def test_no_package_can_take_the_link(host, environments):
    assert environments
    query = host.run("update-alternatives --query cuda")
    if query.rc != 0:
        pytest.skip("no package registered the group")
    assert "Status: manual" in query.stdout.splitlines()
    assert host.file(LINK).linked_to == host.file("/etc/alternatives/cuda").linked_to


def test_the_loader_knows_no_toolkit_globally(host, stamps):
    """A service chooses by its environment file; an entry here would choose for all of them."""
    cache = host.check_output("ldconfig --print-cache")
    assert [home for home in stamps if f"=> {home}/" in cache] == []


def test_the_first_libcudnn_on_the_path_is_that_of_the_environment(host, environments):
    paths = {file: variables["LD_LIBRARY_PATH"].split(":") for file, variables in environments.items()}
    with_cudnn = {file: folders for file, folders in paths.items() if "/cudnn-" in folders[-1]}
    if not with_cudnn:
        pytest.skip("no cuDNN is asked for")
    found = {file: host.run("ls " + " ".join(f"{folder}/libcudnn.so.*" for folder in folders)) for file, folders in paths.items()}
    winners = {file: found[file].stdout.split()[0] for file in with_cudnn}
    assert [file for file, path in winners.items() if not path.startswith(f"{with_cudnn[file][-1]}/")] == []


def test_no_package_of_a_toolkit_moves_by_itself(host, stamps):
    releases = [home.rpartition("-")[2].replace(".", "-") for home, stamp in stamps.items() if stamp["method"] == "apt"]
    if not releases:
        pytest.skip("no toolkit came by apt")
    states = host.check_output("dpkg-query --show --showformat '${db:Status-Abbrev} ${Package}\\n'").splitlines()
    parts = [line.split() for line in states if re.search(rf"-({'|'.join(releases)})(-|$)", line)]
    assert [name for state, name in parts if state == "ii"] == []


def test_no_installation_was_left_half_done(host):
    assert host.run("ls -d /usr/local/cuda-*.part /usr/local/cuda-*.old /usr/local/cudnn-*.part").stdout == ""
