"""What a configuration of K3s is refused for, row by row."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from ansible.module_utils.k3s_config import check, count_faults, differing_critical

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("k3s_filters", ROOT / "filter_plugins/k3s.py")
filters = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = filters
SPEC.loader.exec_module(filters)
V = "v1.36.3+k3s1"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"tls-san": ["k3s.example.com"], "disable": ["traefik", "local-storage"]},
        {"disable": "traefik"},
        {"kubelet-arg": ["max-pods=200", "feature-gates=GracefulNodeShutdown=true"]},
        {"write-kubeconfig-mode": "0600"},
        {"write-kubeconfig-mode": "0640", "write-kubeconfig-group": "ops"},
        {"cluster-cidr": ["10.42.0.0/16", "2001:db8:42::/56"], "flannel-backend": "wireguard-native"},
        {"etcd-snapshot-retention": 10, "etcd-expose-metrics": True},
        {"datastore-endpoint": "postgres://db.example.com/k3s"},
        {"default-runtime": "nvidia", "protect-kernel-defaults": True},
        {"kube-apiserver-arg": ["audit-log-path=/var/log/k3s/audit.log"]},
        {"kubelet-arg": ["read-only-port=0", "anonymous-auth=false"]},
    ],
    ids=str,
)
def test_what_servers_may_have(config):
    assert check(config, server=True, version=V) == []


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"kubelet-arg": ["max-pods=200"]},
        {"default-runtime": "nvidia"},
        {"node-ip": ["10.0.0.7"]},
        {"pause-image": "r.example.com/p"},
    ],
    ids=str,
)
def test_what_agents_may_have(config):
    assert check(config, server=False, version=V) == []


@pytest.mark.parametrize(
    ("config", "version", "told"),
    [
        ({"bogus-key": 1}, V, "bogus-key is no key of k3s server, which would end at once: `k3s server --help` lists them"),
        ({"tls_san": ["a"]}, V, "did you mean tls-san?"),
        ({"disabled": ["traefik"]}, V, "did you mean disable?"),
        ({"kubelet-args": ["max-pods=200"]}, V, "did you mean kubelet-arg?"),
        (
            {"kubelet-arg+": ["max-pods=200"]},
            V,
            "kubelet-arg+: the + is for files in config.yaml.d; give the whole list under kubelet-arg",
        ),
        ({"token": "secret"}, V, "token is not for the configuration: set k3s_token or k3s_token_file"),
        ({"token-file": "/t"}, V, "token-file is not for the configuration: set k3s_token"),
        ({"server": "https://cp1:6443"}, V, "server is not for the configuration: the role derives it from k3s_servers"),
        ({"cluster-init": True}, V, "cluster-init is not for the configuration: the role derives it"),
        ({"cluster-reset": True}, V, "it would throw the other servers out at each start"),
        ({"node-label": ["a=b"]}, V, "set k3s_node_labels"),
        ({"node-taint": ["a=b:NoSchedule"]}, V, "set k3s_node_taints"),
        ({"data-dir": "/data"}, V, "mount a disk there"),
        ({"docker": True}, V, "the NVIDIA runtime is configured for the embedded containerd"),
        ({"rootless": True}, V, "a rootless K3s runs no GPU pods"),
        ({"disable": ["treafik"]}, V, "disable: treafik can't be disabled so; there are coredns, local-storage"),
        ({"flannel-backend": ["vxlan"]}, V, "flannel-backend: it takes one value, not a list or dictionary"),
        ({"tls-san": {"a": 1}}, V, "tls-san: it takes a list of texts"),
        ({"tls-san": [True]}, V, "tls-san: it takes a list of texts"),
        ({"kubelet-arg": ["feature-gates=DevicePlugins=true"]}, V, "the gate DevicePlugins was removed in Kubernetes 1.28"),
        ({"kubelet-arg": ["feature-gates=A=true,DevicePlugins=true"]}, V, "the gate DevicePlugins was removed"),
        ({"kubelet-arg": ["systemd-cgroup=true"]}, V, "the kubelet has no such flag"),
        ({"kubelet-arg": ["cgroup-driver=systemd"]}, V, "K3s chooses the driver for kubelet and containerd together"),
        ({"kubelet-arg": ["container-runtime=remote"]}, V, "it went with dockershim"),
        ({"kubelet-arg": ["anonymous-auth=true"]}, V, "everybody who reaches port 10250"),
        ({"kubelet-arg": ["read-only-port=10255"]}, V, "tells everybody about the pods"),
        ({"kubelet-arg": ["fail-swap-on=true"]}, V, "swap is the business of the role swap_removal"),
        ({"kubelet-arg": ["--max-pods=200"]}, V, "begins with dashes; K3s adds them: write 'max-pods=200'"),
        ({"kubelet-arg": ["max-pods"]}, V, "'max-pods' is no argument: write name=value"),
        ({"kubelet-arg": ["max-pods=1", "max-pods=2"]}, V, "max-pods is given twice, and only the last would count"),
        ({"kube-apiserver-arg": ["anonymous-auth=true"]}, V, "it opens the API to requests without credentials"),
        ({"kube-apiserver-arg": ["insecure-port=8080"]}, V, "the flag was removed in Kubernetes 1.24"),
        ({"kube-apiserver-arg": ["enable-admission-plugins=PodSecurityPolicy"]}, V, "PodSecurityPolicy was removed"),
        ({"kube-apiserver-arg": ["authorization-mode=AlwaysAllow"]}, V, "it makes everybody an administrator"),
        ({"write-kubeconfig-mode": "644"}, V, "644 makes every user of this host an administrator of the cluster"),
        ({"write-kubeconfig-mode": "0604"}, V, "administrator of the cluster"),
        ({"write-kubeconfig-mode": "0640"}, V, "opens the file to its group, which is root: set write-kubeconfig-group"),
        ({"write-kubeconfig-mode": 420}, V, 'is no mode: write it in quotes, such as "0600"'),
        ({"write-kubeconfig-mode": "u=rw"}, V, "u=rw is no mode"),
        (
            {"secrets-encryption-provider": "aescbc"},
            "v1.32.1+k3s1",
            "known from Kubernetes 1.33 on, and k3s_version is v1.32.1+k3s1",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_a_server_is_refused_for(config, version, told):
    (fault,) = check(config, server=True, version=version)
    assert told in fault


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"tls-san": ["a"]}, "tls-san is a key of servers, and this host is an agent: move it to k3s_server_config"),
        ({"write-kubeconfig-mode": "0600"}, "write-kubeconfig-mode is a key of servers"),
        ({"kube-scheduler-arg": ["v=2"]}, "kube-scheduler-arg is a key of servers"),
        ({"kubelet-arg": ["systemd-cgroup=true"]}, "the kubelet has no such flag"),
    ],
    ids=str,
)
def test_what_an_agent_is_refused_for(config, told):
    (fault,) = check(config, server=False, version=V)
    assert told in fault


def test_all_faults_are_told_at_once():
    config = {"bogus": 1, "kubelet-arg": ["systemd-cgroup=true", "--v=2"], "write-kubeconfig-mode": "0644"}
    assert len(check(config, server=True, version=V)) == 4


def test_an_old_gate_is_no_fault_of_an_old_version():
    assert check({"kubelet-arg": ["feature-gates=DevicePlugins=true"]}, server=True, version="v1.27.9+k3s1") == []


def test_a_kubeconfig_for_everybody_can_be_asked_for():
    assert check({"write-kubeconfig-mode": "0644"}, server=True, version=V, world_readable=True) == []


@pytest.mark.parametrize(
    ("servers", "external", "faults"), [(1, False, 0), (3, False, 0), (5, False, 0), (2, True, 0), (0, False, 1)]
)
def test_how_many_servers_there_may_be(servers, external, faults):
    assert len(count_faults(servers, external_datastore=external)) == faults


@pytest.mark.parametrize(
    ("servers", "told"),
    [
        (2, "survive the loss of 0, as 1 would, with one more to lose: use 1 or 3"),
        (4, "survive the loss of 1, as 3 would"),
        (6, "use 5 or 7"),
    ],
)
def test_an_even_number_of_servers_is_refused_with_the_reason(servers, told):
    (fault,) = count_faults(servers, external_datastore=False)
    assert told in fault


def test_what_must_be_alike_on_all_servers_is_named_with_its_values():
    configs = {"cp1": {"cluster-cidr": "10.42.0.0/16", "debug": True}, "cp2": {}, "cp3": {"cluster-cidr": "10.42.0.0/16"}}
    (fault,) = differing_critical(configs)
    assert fault == (
        'cluster-cidr must be the same on all servers (cp1: "10.42.0.0/16", cp2: unset, cp3: "10.42.0.0/16"): set it in '
        "k3s_server_config for the whole group"
    )


def test_the_filter_reads_the_configurations_of_the_servers_from_their_variables():
    hostvars = {
        "cp1": {"k3s_config": {"cluster-domain": "a.example"}},
        "cp2": {"k3s_server_config": {"cluster-domain": "b.example"}},
        "cp3": {"k3s_server_config": {"cluster-domain": "a.example"}},
    }
    (fault,) = filters.k3s_server_faults(["cp1", "cp2", "cp3"], hostvars)
    assert fault.startswith("cluster-domain must be the same")
    (fault,) = filters.k3s_server_faults(["cp1", "cp3"], hostvars)
    assert fault.startswith("2 servers with embedded etcd")


def test_a_version_that_is_none_is_a_fault_of_its_variable():
    (fault,) = filters.k3s_config_faults({"kubelet-arg": ["a=b"], "default-runtime": "nvidia"}, server=True, version="1.36")
    assert fault == "k3s_version: '1.36' is no version of K3s: write it as v1.36.3+k3s1, as its releases are named"
