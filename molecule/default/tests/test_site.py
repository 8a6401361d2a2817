"""What only the whole site shows: one host asks the other for a prediction, through the private network."""

import json

import pytest
import testinfra


@pytest.fixture(scope="module")
def serving(host):
    return host


@pytest.fixture(scope="module")
def client():
    return testinfra.get_host("podman://molecule-default-edge")


@pytest.fixture(scope="module")
def contract(serving):
    return json.loads(serving.file("/etc/groundwork/serving.json").content_string)


@pytest.fixture(scope="module")
def ask(post, serving, client, contract):
    """Send one request from the client host and return status and JSON body."""

    def send(body, kind="inference"):
        keys = json.loads(serving.file(contract["token_file"]).content_string)
        url = f"{contract['inference']}/predictions/text_classifier"
        return post(client, url, keys[kind]["key"], body)

    return send


def test_another_host_gets_a_prediction(ask):
    status, answer = ask('{"text": "The rollout was smooth and the latency is great."}')
    assert status == 200
    assert answer["prediction"] == "positive"
    assert answer["latency_ms"] > 0
    assert answer["gpu_util_pct"] is None
    assert answer["memory_used_gb"] is None


def test_another_host_with_another_token_is_refused(ask):
    status, answer = ask('{"text": "hello"}', kind="management")
    assert (status, answer["type"]) == (400, "InvalidKeyException")


@pytest.mark.parametrize("port", [8081, 7071])
def test_the_management_ports_are_closed_to_other_hosts(serving, client, port):
    address = serving.check_output("hostname -I").split()[0]
    assert not client.addr(address).port(port).is_reachable


def test_the_hosts_are_in_good_order(serving, client):
    for host in (serving, client):
        assert host.check_output("systemctl is-system-running") == "running"
