"""The modules k3s_node, k3s_ready and k3s_info, against a stand-in for kubectl, systemctl and journalctl."""

from __future__ import annotations

import copy
import json
import time

import k3s_info
import k3s_node
import k3s_ready
import pytest

CORDONED = {"metadata": {"annotations": {"groundwork/cordoned": "x"}}, "spec": {"unschedulable": True}}


def a_node(name="gpu1", *, ready="True", heartbeat="2999-01-01T00:00:00Z", **more):
    node = {
        "metadata": {"name": name, "labels": {}, "annotations": {}, "resourceVersion": "1"},
        "spec": {},
        "status": {
            "conditions": [{"type": "Ready", "status": ready, "reason": "R", "message": "m", "lastHeartbeatTime": heartbeat}],
            "nodeInfo": {"kubeletVersion": "v1.36.3+k3s1"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
        },
    }
    for part, value in more.items():
        node[part].update(copy.deepcopy(value))
    return node


@pytest.fixture
def cluster(monkeypatch, run_module):
    """The stand-in: `nodes` is what the API has; `calls` the changes that were asked of it."""

    class Cluster:
        conflicts = 0
        drain = (0, "node/gpu1 drained\n", "")

        def __init__(self):
            self.nodes = {"gpu1": a_node()}
            self.calls = []

        def run_command(self, argv, **_):
            verb, rest = argv[2], argv[3:]
            if verb == "get":
                assert rest[2:] == ["--ignore-not-found", "--output=json"]
                return 0, json.dumps(self.nodes[rest[1]]) if rest[1] in self.nodes else "", ""
            self.calls.append(" ".join([verb, *rest]))
            if verb == "drain":
                return self.drain
            if verb == "patch" and self.conflicts:
                self.conflicts -= 1
                return 1, "", "Error from server (Conflict): the object has been modified\n"
            if verb == "patch":
                patch = json.loads(rest[-1].removeprefix("--patch="))
                for part in ("metadata", "spec"):
                    for key, value in patch.get(part, {}).items():
                        if isinstance(value, dict):
                            old = self.nodes[rest[1]][part].setdefault(key, {})
                            old.update({name: item for name, item in value.items() if item is not None})
                            for name in [name for name, item in value.items() if item is None]:
                                old.pop(name, None)
                        elif value is None:
                            self.nodes[rest[1]][part].pop(key, None)
                        else:
                            self.nodes[rest[1]][part][key] = value
            if verb == "delete":
                self.nodes.pop(rest[1])
            return 0, "", ""

        def apply(self, **params):
            self.calls.clear()
            return run_module(k3s_node, **{"name": "gpu1", **params})

    standing = Cluster()
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.run_command", lambda _, argv, **__: standing.run_command(argv))
    return standing


def test_labels_are_set_once_and_a_dry_run_says_so_before(cluster):
    wanted = {"labels": {"rack": "r1"}, "taints": ["gpu:NoSchedule"]}
    announced = cluster.apply(check=True, **wanted)
    assert (announced["changed"], cluster.calls) == (True, [])
    done = cluster.apply(**wanted)
    assert announced == done
    assert [call.split()[0] for call in cluster.calls] == ["patch"]
    again = cluster.apply(**wanted)
    assert (again["changed"], cluster.calls) == (False, [])


def test_a_change_is_tried_again_where_somebody_else_came_first(cluster):
    cluster.conflicts = 2
    assert cluster.apply(labels={"rack": "r1"})["changed"]
    assert len(cluster.calls) == 3
    assert cluster.nodes["gpu1"]["metadata"]["labels"] == {"rack": "r1"}


def test_a_change_that_never_comes_through_is_an_error(cluster):
    cluster.conflicts = 99
    result = cluster.apply(labels={"rack": "r1"})
    assert result["failed"]
    assert "node gpu1 could not be changed: the API answered" in result["msg"]
    assert len(cluster.calls) == 5


def test_a_node_is_drained_and_released(cluster):
    assert cluster.apply(scheduling="drained", reason="upgrade")["changed"]
    assert cluster.calls[1] == "drain gpu1 --ignore-daemonsets --timeout=600s --delete-emptydir-data"
    assert cluster.nodes["gpu1"]["spec"] == {"unschedulable": True}
    assert cluster.apply(scheduling="released")["changed"]
    assert cluster.nodes["gpu1"]["spec"] == {}
    assert not cluster.apply(scheduling="released")["changed"]


def test_a_drain_that_was_interrupted_is_finished(cluster):
    cluster.nodes["gpu1"] = a_node(**CORDONED)
    result = cluster.apply(scheduling="drained")
    assert not result["changed"]
    assert [call.split()[0] for call in cluster.calls] == ["drain"]


def test_a_drain_that_fails_puts_the_node_back_into_service(cluster):
    cluster.drain = (1, "", "evicting pod a\nerror when evicting pods/a: violate the pod's disruption budget\n")
    result = cluster.apply(scheduling="drained", drain_timeout=30)
    assert result["failed"]
    assert result["msg"].startswith("node gpu1 could not be drained within 30 s and was put back into service; nothing else")
    assert "disruption budget" in result["msg"]
    assert cluster.nodes["gpu1"]["spec"] == {}


def test_the_cordon_of_somebody_else_stays_also_when_the_drain_fails(cluster):
    cluster.nodes["gpu1"] = a_node(spec={"unschedulable": True})
    result = cluster.apply(scheduling="drained")
    assert result["notes"] == ["gpu1 was cordoned by somebody else and stays so"]
    assert not result["changed"]
    cluster.drain = (1, "", "error\n")
    assert "put back" not in cluster.apply(scheduling="drained")["msg"]
    assert cluster.apply(scheduling="released")["notes"] == ["gpu1 was cordoned by somebody else and stays so"]
    assert cluster.nodes["gpu1"]["spec"] == {"unschedulable": True}


@pytest.mark.parametrize(("ready", "gone"), [("Unknown", True), ("False", True), ("True", False)])
def test_a_node_that_lives_is_not_forgotten_for_a_host_of_the_same_name(cluster, ready, gone):
    cluster.nodes["gpu1"] = a_node(ready=ready)
    result = cluster.apply(state="absent", unless_ready=True)
    assert ("gpu1" not in cluster.nodes) is gone
    assert ("failed" not in result) is gone
    if not gone:
        assert "node gpu1 is in the cluster and Ready (10.0.0.7), and this host is not that node" in result["msg"]


def test_a_node_that_is_not_there_is_gone_already(cluster):
    assert not cluster.apply(name="gpu9", state="absent")["changed"]
    assert cluster.apply(name="gpu9", labels={"a": "b"}, check=True)["changed"]
    assert "there is no node gpu9 in the API" in cluster.apply(name="gpu9", labels={"a": "b"})["msg"]


def test_a_taint_that_is_none_is_refused_before_the_api_is_asked(cluster):
    result = cluster.apply(taints=["gpu"])
    assert "'gpu' is no taint" in result["msg"]
    assert cluster.calls == []


@pytest.fixture
def host(monkeypatch, run_module):
    """A node: what its unit shows, what its API and its log say; it gives up after one look."""

    class Host:
        readyz = (0, "ok", "")
        log = ""

        def __init__(self):
            self.unit = {"ActiveState": "active", "SubState": "running", "Job": "0", "ExecMainStartTimestampMonotonic": "1"}
            self.node = a_node()
            self.argvs = []

        def run_command(self, _, argv, **__):
            self.argvs.append(argv)
            if argv[0] == "systemctl":
                return 0, "".join(f"{key}={value}\n" for key, value in self.unit.items()), ""
            if argv[0] == "journalctl":
                return 0, self.log, ""
            return self.readyz if argv[-1].startswith("--raw") else (0, json.dumps(self.node), "")

        def wait(self, **params):
            given = {"node_name": "gpu1", "version": "v1.36.3+k3s1", "server": True, "timeout": 0, **params}
            return run_module(k3s_ready, **given)

    standing = Host()
    monkeypatch.setattr(
        "ansible.module_utils.basic.AnsibleModule.run_command", lambda module, argv, **_: standing.run_command(module, argv)
    )
    monkeypatch.setattr(k3s_ready, "INTERVAL", 0.01)
    return standing


def test_a_server_that_is_up(host):
    assert "failed" not in host.wait()
    assert ["/usr/local/bin/k3s", "kubectl", "--request-timeout=10s", "get", "--raw=/readyz"] in host.argvs


def test_an_agent_asks_with_the_credentials_of_its_kubelet(host):
    assert "failed" not in host.wait(server=False)
    kubectl = [argv for argv in host.argvs if "kubectl" in argv]
    assert all("--kubeconfig=/var/lib/rancher/k3s/agent/kubelet.kubeconfig" in argv for argv in kubectl)
    assert not any("--raw=/readyz" in argv for argv in kubectl)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"unit": {"ActiveState": "activating", "SubState": "auto-restart"}}, "k3s.service is activating (auto-restart)"),
        ({"unit": {"ActiveState": "active", "SubState": "running", "Job": "123"}}, "k3s.service is active (running)"),
        ({"readyz": (1, "", "[-]etcd failed\nreadyz check failed\n")}, "its API is not ready: readyz check failed"),
        ({"node": a_node(ready="Unknown")}, "its Node is not Ready: R m"),
        ({"node": a_node(heartbeat="2001-01-01T00:00:00Z")}, "before the service started"),
    ],
    ids=["restarting", "restart queued", "no quorum", "not ready", "ready before"],
)
def test_what_is_not_up_is_told_with_the_end_of_the_log(host, change, told):
    for name, value in change.items():
        setattr(host, name, value)
    host.log = "Starting\nWaiting for something\n"
    result = host.wait()
    assert result["failed"]
    assert told in result["msg"]
    assert "Cause: its log says nothing that is known. Remedy: `journalctl -u k3s.service`" in result["msg"]
    assert result["msg"].endswith("Starting\nWaiting for something")


def test_what_never_mends_itself_ends_the_wait_early(host):
    host.node, host.log = a_node(ready="Unknown"), "config: 401 Unauthorized\n"
    result = host.wait(timeout=3600)
    assert "Cause: the servers refuse its token" in result["msg"]


def test_what_may_mend_itself_is_waited_for(host):
    host.node = a_node(ready="Unknown")
    host.log = "failed to get CA certs: connect: connection refused\n"
    result = host.wait(timeout=1)
    assert "gpu1 is not up after 1 s" in result["msg"]
    assert "Cause: the server that it joins does not answer: connection refused" in result["msg"]


def test_only_the_log_since_the_last_start_counts(host):
    host.node = a_node(ready="Unknown")
    host.unit["ExecMainStartTimestampMonotonic"] = str(int((time.monotonic() - 100) * 1e6))
    host.wait()
    since = next(each for argv in host.argvs for each in argv if each.startswith("--since=@"))
    assert abs(time.time() - 100 - int(since.removeprefix("--since=@"))) < 3


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, {"server": False, "node": False, "joined": "", "ca_hash": ""}, id="nothing"),
        pytest.param(
            {
                "etc/rancher/node/password": "p",
                "etc/rancher/k3s/config.yaml": "node-name: gpu1\nserver: https://cp1:6443\n",
                "etc/rancher/k3s/token": f"K10{'a' * 64}::server:secret\n",
            },
            {"server": False, "node": True, "joined": "https://cp1:6443", "ca_hash": "a" * 64},
            id="agent",
        ),
        pytest.param(
            {
                "etc/rancher/node/password": "p",
                "etc/rancher/k3s/token": "secret\n",
                "var/lib/rancher/k3s/server/token": f"K10{'b' * 64}::server:secret\n",
                "var/lib/rancher/k3s/server/db/state.db": "",
            },
            {"server": True, "node": True, "joined": "", "ca_hash": "b" * 64},
            id="first server",
        ),
    ],
)
def test_what_k3s_is_on_a_host(tmp_path, monkeypatch, run_module, files, expected):
    monkeypatch.setattr(k3s_info, "ROOT", tmp_path)
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.run_command", lambda *_, **__: (1, "", ""))
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    result = run_module(k3s_info)
    assert {key: result[key] for key in expected} == expected
    assert "secret" not in json.dumps(result)
