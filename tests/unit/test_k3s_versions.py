"""Versions of K3s: their order, what may follow what, where they are, what bypasses a proxy."""

from __future__ import annotations

import pytest
from ansible.module_utils.k3s_versions import minor, no_proxy, parse, release_urls, upgrade_faults


def test_versions_are_ordered_as_they_were_released():
    ordered = [
        "v1.35.9+k3s1",
        "v1.36.2+k3s1",
        "v1.36.3-rc1+k3s1",
        "v1.36.3-rc2+k3s1",
        "v1.36.3+k3s1",
        "v1.36.3+k3s2",
        "v1.36.10+k3s1",
    ]
    assert sorted(set(ordered), key=parse) == ordered
    assert minor("v1.36.10+k3s1") == 36


@pytest.mark.parametrize("version", ["", "1.36.3+k3s1", "v1.36.3", "v1.36+k3s1", "latest", "v1.36.3+rke2r1", "v1.36.3+k3s1 "])
def test_what_is_no_version_is_refused_with_an_example(version):
    with pytest.raises(ValueError, match=r"is no version of K3s: write it as v1\.36\.3\+k3s1"):
        parse(version)


@pytest.mark.parametrize(
    ("servers", "agents", "wanted"),
    [
        pytest.param({"cp1": "v1.35.7+k3s1"}, {"g1": "v1.35.7+k3s1"}, "v1.36.3+k3s1", id="next minor"),
        pytest.param({"cp1": "v1.36.3+k3s1"}, {"g1": "v1.36.3+k3s1"}, "v1.36.3+k3s1", id="the same"),
        pytest.param({"cp1": "v1.36.1+k3s1"}, {}, "v1.36.3+k3s1", id="patch"),
        pytest.param({"cp1": "v1.36.3+k3s1"}, {"g1": "v1.33.1+k3s1"}, "v1.36.3+k3s1", id="agent three behind"),
        pytest.param({"cp1": "v1.36.3+k3s1", "cp2": ""}, {"g1": ""}, "v1.36.3+k3s1", id="new hosts"),
        pytest.param({"cp1": "v1.36.3+k3s1", "cp2": "v1.35.7+k3s1"}, {}, "v1.36.3+k3s1", id="interrupted"),
    ],
)
def test_an_upgrade_that_may_be(servers, agents, wanted):
    assert upgrade_faults(servers, agents, wanted) == []


@pytest.mark.parametrize(
    ("servers", "agents", "wanted", "told"),
    [
        pytest.param(
            {"cp1": "v1.37.0+k3s1"}, {}, "v1.36.3+k3s1", "cp1 has v1.37.0+k3s1, which is newer than v1.36.3+k3s1", id="down"
        ),
        pytest.param({"cp1": "v1.36.3+k3s2"}, {}, "v1.36.3+k3s1", "the data of etcd can't go back", id="build down"),
        pytest.param({"cp1": "v1.36.3+k3s1"}, {}, "v1.36.3-rc1+k3s1", "the data of etcd can't go back", id="to a candidate"),
        pytest.param({"cp1": "v1.34.1+k3s1"}, {}, "v1.36.3+k3s1", "may not skip a minor version. Go to 1.35 first", id="skip"),
        pytest.param(
            {"cp1": "v1.36.3+k3s1"}, {"g1": "v1.32.1+k3s1"}, "v1.36.3+k3s1", "more than 3 minor versions behind", id="agent"
        ),
        pytest.param({"cp1": "v1.36.3+k3s1"}, {"g1": "v1.37.0+k3s1"}, "v1.36.3+k3s1", "g1 has v1.37.0+k3s1", id="agent down"),
    ],
)
def test_an_upgrade_that_may_not_be(servers, agents, wanted, told):
    (fault,) = upgrade_faults(servers, agents, wanted)
    assert told in fault


def test_each_host_that_speaks_against_it_is_named():
    assert len(upgrade_faults({"cp1": "v1.37.0+k3s1", "cp2": "v1.34.0+k3s1"}, {"g1": "v1.30.0+k3s1"}, "v1.36.3+k3s1")) == 3


@pytest.mark.parametrize(
    ("machine", "binary", "sums"),
    [("x86_64", "k3s", "sha256sum-amd64.txt"), ("aarch64", "k3s-arm64", "sha256sum-arm64.txt")],
)
def test_where_a_release_is(machine, binary, sums):
    base = "https://mirror.example.com/k3s"
    assert release_urls("v1.36.3+k3s1", machine, f"{base}/") == {
        "binary": f"{base}/v1.36.3%2Bk3s1/{binary}",
        "sums": f"{base}/v1.36.3%2Bk3s1/{sums}",
    }


def test_a_machine_without_a_release_is_refused():
    with pytest.raises(ValueError, match=r"there is no K3s for riscv64; there are binaries for x86_64, aarch64"):
        release_urls("v1.36.3+k3s1", "riscv64", "https://mirror.example.com")


@pytest.mark.parametrize(
    ("config", "networks"),
    [
        ({}, ["10.42.0.0/16", "10.43.0.0/16", ".cluster.local"]),
        ({"cluster-cidr": "10.200.0.0/16", "cluster-domain": "k.example"}, ["10.200.0.0/16", "10.43.0.0/16", ".k.example"]),
        ({"service-cidr": ["10.43.0.0/16", "2001:db8::/112"]}, ["10.42.0.0/16", "2001:db8::/112"]),
    ],
    ids=str,
)
def test_what_is_the_clusters_own_bypasses_the_proxy(config, networks):
    parts = no_proxy(["registry.example.com", "10.1.0.1"], ["10.1.0.1", "", "k3s.example.com"], config).split(",")
    assert {"localhost", "127.0.0.0/8", ".svc", "10.1.0.1", "k3s.example.com", "registry.example.com", *networks} <= set(parts)
    assert len(parts) == len(set(parts))
    assert "" not in parts
