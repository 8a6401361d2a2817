"""What lines of K3s' log mean. The lines are as K3s and its components write them."""

import pytest
from ansible.module_utils.k3s_log import explain

FATAL = 'time="2026-11-30T12:00:00Z" level=fatal msg="{}"\n'


@pytest.mark.parametrize(
    ("line", "cause", "remedy", "lasts"),
    [
        pytest.param(
            "Failed to configure agent: failed to retrieve configuration from server: https://127.0.0.1:6444/v1-k3s/config: 401 "
            "Unauthorized",
            "the servers refuse its token",
            "k3s_token",
            True,
            id="agent with a wrong token",
        ),
        pytest.param(
            "starting kubernetes: preparing server: bootstrap data already found and encrypted with different token",
            "its data was made with another token",
            "k3s_token",
            True,
            id="server with data of another token",
        ),
        pytest.param(
            "Waiting to retrieve agent configuration; server is not ready: Node password rejected, duplicate hostname or "
            "contents of '/etc/rancher/node/password' may not match server node-passwd entry",
            "the cluster has a node of this name with another password: another host, or this one before it was installed anew",
            "k3s kubectl delete node",
            True,
            id="installed anew",
        ),
        pytest.param(
            "starting kubernetes: preparing server: critical configuration value mismatch between servers: cluster-cidr",
            "a setting that must be alike on all servers differs: cluster-cidr",
            "k3s_server_config",
            True,
            id="critical flag",
        ),
        pytest.param(
            "flag provided but not defined: -bogus-key", "this K3s does not know the key bogus-key", "k3s_config", True, id="key"
        ),
        pytest.param(
            "kubelet exited: failed to parse kubelet flag: unknown flag: --systemd-cgroup",
            "a component does not know the argument systemd-cgroup",
            "-arg lists",
            True,
            id="argument",
        ),
        pytest.param(
            "kubelet exited: unrecognized feature gate: DevicePlugins",
            "this Kubernetes has no feature gate DevicePlugins",
            "feature-gates",
            True,
            id="feature gate",
        ),
        pytest.param(
            'failed to get CA certs: Get \\"https://10.0.0.1:6443/cacerts\\": dial tcp: connect: connection refused',
            "the server that it joins does not answer: connection refused",
            "6443",
            False,
            id="first server down",
        ),
        pytest.param(
            "etcd cluster join failed: etcdserver: too many learner members in cluster",
            "etcd takes one new member at a time, and another one is still joining",
            "wait",
            False,
            id="two join at once",
        ),
    ],
)
def test_a_known_line_is_explained(line, cause, remedy, lasts):
    found = explain("Starting k3s v1.36.3+k3s1\n" + FATAL.format(line) + "Main process exited, status=1/FAILURE\n")
    assert found is not None
    assert found[0] == cause
    assert remedy in found[1]
    assert found[2] is lasts


def test_of_two_known_lines_the_more_telling_one_counts():
    log = FATAL.format("failed to get CA certs: connection refused") + FATAL.format("failed to validate token: 401 Unauthorized")
    assert explain(log) == explain(FATAL.format("401 Unauthorized"))


def test_a_log_without_a_known_line_is_not_explained():
    assert explain('time="2026-11-30T12:00:00Z" level=info msg="Waiting for control-plane node cp1 startup"\n') is None
