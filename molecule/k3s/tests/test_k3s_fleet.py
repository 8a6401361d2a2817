"""The life of a cluster, driven as an operator does, in this order. K3s is a STAND-IN; systemd, files and the runs are real."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SERVERS = [f"molecule-k3s-cp{number}" for number in (1, 2, 3)]
AGENTS = [f"molecule-k3s-gpu{number}" for number in (1, 2, 3)]
OLD, NEW = "v1.35.7+k3s1", "v1.36.3+k3s1"
NODE = "/usr/local/bin/k3s kubectl get nodes --output=json"
WIPE = (
    "systemctl disable --now k3s k3s-agent 2>/dev/null; rm -rf /etc/rancher /var/lib/rancher /usr/local/bin/k3s "
    "/etc/systemd/system/k3s*; systemctl daemon-reload"
)


def on(host, command, *, check=True):
    return subprocess.run(
        ["podman", "exec", host, "sh", "-c", command], capture_output=True, text=True, check=check
    ).stdout.strip()


def nodes(server=SERVERS[1]):
    """Return name -> node, as the API of a server has them."""
    return {node["metadata"]["name"]: node for node in json.loads(on(server, NODE))["items"]}


def ready(node):
    return next(each["status"] for each in node["status"]["conditions"] if each["type"] == "Ready") == "True"


def come_up(names, server=SERVERS[1]):
    """Wait until nodes are Ready: on a busy machine the STAND-IN may report late."""
    end = time.monotonic() + 30
    while waiting := [name for name in names if name not in (found := nodes(server)) or not ready(found[name])]:
        assert time.monotonic() < end, f"{waiting} are not Ready"
        time.sleep(1)


def versions():
    return {name: node["status"]["nodeInfo"]["kubeletVersion"] for name, node in nodes().items()}


def started(host):
    """Return when K3s started on a host, in microseconds of this machine's monotonic clock."""
    unit = "k3s" if host in SERVERS else "k3s-agent"
    return int(on(host, f"systemctl show --property=ExecMainStartTimestampMonotonic --value {unit}") or 0)


@pytest.fixture(scope="module")
def outputs():
    """Everything that the runs printed."""
    return []


@pytest.fixture(scope="module")
def run(tmp_path_factory, outputs):
    """Run a playbook with the third agent in its group; return exit code, output and host -> number of changes."""
    grown = tmp_path_factory.mktemp("inventory") / "hosts.yml"
    grown.write_text(json.dumps({"k3s_agents": {"hosts": {AGENTS[2]: {}}}}))

    def start(playbook, *arguments, **variables):
        inventory = f"{os.environ['MOLECULE_EPHEMERAL_DIRECTORY']}/inventory"
        argv = ["ansible-playbook", "-i", inventory, "-i", str(grown), "--diff", f"playbooks/{playbook}.yml", *arguments]
        argv += ["--extra-vars", json.dumps(variables)]
        result = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        outputs.append(result.stdout + result.stderr)
        print(result.stdout[-6000:], result.stderr)
        recap = [line.split() for line in result.stdout.splitlines() if " changed=" in line]
        changes = {line[0]: int(line[3].removeprefix("changed=")) for line in recap}
        return result.returncode, " ".join(result.stdout.split()), changes

    return start


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        pytest.param(
            {"k3s_servers": SERVERS[:2]}, "2 servers with embedded etcd survive the loss of 0, as 1 would", id="two servers"
        ),
        pytest.param(
            {"k3s_server_config": {"write-kubeconfig-mode": "0644"}}, "administrator of the cluster", id="kubeconfig for all"
        ),
        pytest.param({"k3s_config": {"bogus-key": 1}}, "bogus-key is no key of k3s server", id="unknown key"),
        pytest.param(
            {"k3s_config": {"kubelet-arg": ["feature-gates=DevicePlugins=true"]}}, "removed in Kubernetes 1.28", id="gate"
        ),
        pytest.param({"k3s_version": "v1.34.2+k3s1"}, "the data of etcd can't go back", id="downgrade"),
    ],
)
def test_what_would_hurt_is_refused_before_anything_changes(run, variables, told):
    code, output, changes = run("cluster", "--limit", SERVERS[0], **variables)
    assert code != 0
    assert told in output
    assert changes == {SERVERS[0]: 0}


def test_an_agent_with_a_wrong_token_is_told_so(run):
    code, output, _ = run("cluster", "--limit", AGENTS[2], k3s_token="a-token-of-another-cluster")  # noqa: S106 no secret
    assert code != 0
    assert f"{AGENTS[2]} is not up after" in output
    assert "Cause: the servers refuse its token. Remedy: compare k3s_token" in output
    assert on(AGENTS[2], "systemctl is-active k3s-agent") == "active"
    assert AGENTS[2] not in nodes()


def test_an_agent_joins_later_and_nobody_is_restarted(run):
    before = {host: started(host) for host in SERVERS + AGENTS[:2]}
    code, output, changes = run("cluster")
    assert code == 0, output
    assert changes.pop(AGENTS[2]) > 0
    assert set(changes.values()) == {0}
    assert {host: started(host) for host in before} == before
    come_up(SERVERS + AGENTS)
    assert nodes()[AGENTS[2]]["metadata"]["labels"]["example.com/rack"] == "r1"


def test_an_agent_installed_anew_waits_for_the_first_server_and_then_takes_its_place(run):
    on(AGENTS[1], WIPE)
    on(SERVERS[0], "systemctl stop k3s")
    time.sleep(4)  # until the API calls the node lost
    code, output, _ = run("cluster", "--limit", AGENTS[1], k3s_ready_timeout=15)
    assert code != 0
    assert "Cause: the server that it joins does not answer" in output
    on(SERVERS[0], "systemctl start k3s")
    code, output, _ = run("cluster", "--limit", AGENTS[1])
    assert code == 0, output
    come_up([AGENTS[1]])


def test_the_first_server_installed_anew_joins_the_others_and_makes_no_second_cluster(run):
    identity = json.loads(on(SERVERS[1], "cat /var/lib/rancher/k3s/server/db/state.json"))["id"]
    on(SERVERS[0], WIPE)
    time.sleep(4)
    code, output, _ = run("cluster", "--limit", SERVERS[0])
    assert code == 0, output
    state = json.loads(on(SERVERS[0], "cat /var/lib/rancher/k3s/server/db/state.json"))
    assert (state["id"], sorted(state["members"])) == (identity, SERVERS)
    come_up(SERVERS + AGENTS, SERVERS[0])
    code, output, changes = run("cluster", "--limit", SERVERS[0])
    assert (code, changes) == (0, {SERVERS[0]: 0})


def test_a_label_that_leaves_the_inventory_leaves_the_node_without_a_restart(run):
    before = started(AGENTS[0])
    code, output, _ = run(
        "cluster", "--limit", AGENTS[0], k3s_node_labels={"example.com/pool": "a"}, k3s_node_taints=["gpu:NoSchedule"]
    )
    assert code == 0, output
    node = nodes()[AGENTS[0]]
    assert "example.com/rack" not in node["metadata"]["labels"]
    assert node["metadata"]["labels"]["example.com/pool"] == "a"
    assert node["spec"]["taints"] == [{"key": "gpu", "effect": "NoSchedule"}]
    assert started(AGENTS[0]) == before


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("v1.37.0+k3s1", "servers may not skip a minor version. Go to 1.36 first"),
        ("v1.34.2+k3s1", "the data of etcd can't go back"),
    ],
)
def test_an_upgrade_that_kubernetes_does_not_support_is_refused(run, version, told):
    code, output, changes = run("k3s_upgrade", k3s_version=version)
    assert code != 0
    assert told in output
    assert set(changes.values()) == {0}


def test_a_site_run_upgrades_nobody_and_says_so(run):
    code, output, changes = run("cluster", "--limit", SERVERS[2], k3s_version=NEW)
    assert (code, changes) == (0, {SERVERS[2]: 0})
    assert f"keeps K3s {OLD}; k3s_version is {NEW}" in output


def test_an_upgrade_stops_at_the_second_agent_that_does_not_come_up(run):
    on(
        SERVERS[1],
        f'/usr/local/bin/k3s kubectl patch node {AGENTS[0]} --type=merge --patch \'{{"spec": {{"unschedulable": true}}}}\'',
    )
    on(AGENTS[1], "echo other > /etc/rancher/node/password")
    untouched = started(AGENTS[2])
    code, output, _ = run("k3s_upgrade", k3s_version=NEW)
    assert code != 0
    assert f"{AGENTS[1]} is not up after" in output
    assert "Cause: the cluster has a node of this name with another password" in output
    assert f"{AGENTS[0]} was cordoned by somebody else and stays so" in output
    assert versions() == {**dict.fromkeys(SERVERS + AGENTS[:1], NEW), **dict.fromkeys(AGENTS[1:], OLD)}
    assert started(AGENTS[2]) == untouched
    order = [started(host) for host in SERVERS + AGENTS[:2]]
    assert order == sorted(order)
    assert "before-v1.36.3-k3s1" in on(SERVERS[0], "ls /var/lib/rancher/k3s/server/db/snapshots")
    found = nodes()
    assert [name for name, node in found.items() if node["spec"].get("unschedulable")] == AGENTS[:2]


def test_the_next_run_finishes_the_upgrade_and_takes_back_only_our_cordon(run):
    # The remedy that the message gave.
    on(SERVERS[1], f"/usr/local/bin/k3s kubectl delete node {AGENTS[1]}")
    servers = {host: started(host) for host in [*SERVERS, AGENTS[0]]}
    time.sleep(2)  # until the kubelet has registered again
    code, output, _ = run("k3s_upgrade", k3s_version=NEW)
    assert code == 0, output
    assert set(versions().values()) == {NEW}
    assert {host: started(host) for host in servers} == servers
    assert [name for name, node in nodes().items() if node["spec"].get("unschedulable")] == AGENTS[:1]


def test_a_removed_node_leaves_nothing_behind(run):
    code, output, _ = run("k3s_remove", "--limit", AGENTS[2])
    assert code == 0, output
    assert AGENTS[2] not in nodes()
    left = "find / -xdev -not -path '/proc/*' ( -name '*k3s*' -o -path '*/rancher*' ) -not -path '/root/.ansible/*'"
    assert on(AGENTS[2], left.replace("(", "\\(").replace(")", "\\)")) == ""
    assert on(AGENTS[2], "systemctl list-units --all --plain --no-legend 'k3s*'") == ""
    code, output, changes = run("k3s_remove", "--limit", AGENTS[2])
    assert (code, changes) == (0, {AGENTS[2]: 0})


def test_the_whole_cluster_is_not_removed_by_accident(run):
    code, output, changes = run("k3s_remove")
    assert code != 0
    assert "This run would remove every server" in output
    assert set(changes.values()) == {0}


def test_the_token_was_in_no_output_of_any_run(outputs):
    secret = (ROOT / ".cache/standins/k3s/token").read_text().strip()
    assert len(secret) == 48
    assert (ROOT / ".cache/standins/k3s/token").stat().st_mode & 0o777 == 0o600
    assert len(outputs) > 10
    assert [output for output in outputs if secret in output] == []
