"""What a node lacks, and the patches that change one: module_utils/k3s_nodes.py, with a small API that applies them."""

from __future__ import annotations

import copy
import json

import pytest
from ansible.module_utils.k3s_nodes import (
    cordon_patch,
    cordoned_by_us,
    faults,
    is_cordoned,
    metadata_patch,
    parse_taint,
    release_patch,
    seconds,
)
from hypothesis import given
from hypothesis import strategies as some

STARTED = seconds("2026-11-30T12:00:00Z")


def a_node(*, ready="True", seen="2026-11-30T12:00:05Z", kubelet="v1.36.3+k3s1", voter=None, **given):
    """A node as `kubectl get node --output json` prints it; `given` has labels and taints."""
    conditions = [
        {"type": "MemoryPressure", "status": "False"},
        {"type": "Ready", "status": ready, "reason": "Because", "message": "it is so", "lastHeartbeatTime": seen},
    ]
    if voter is not None:
        conditions.append({"type": "EtcdIsVoter", "status": voter, "reason": "MemberIsLearner"})
    return {
        "metadata": {"name": "cp2", "labels": given.get("labels", {}), "annotations": {}, "resourceVersion": "7"},
        "spec": {"taints": given["taints"]} if "taints" in given else {},
        "status": {"conditions": conditions, "nodeInfo": {"kubeletVersion": kubelet}},
    }


def applied(node, patch):
    """The node after a JSON merge patch, by the rules of RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = copy.deepcopy(node) if isinstance(node, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = applied(result.get(key), value)
    return result


@pytest.mark.parametrize(
    ("node", "etcd", "lacking"),
    [
        pytest.param(a_node(), False, [], id="up"),
        pytest.param(a_node(voter="True"), True, [], id="up and voting"),
        pytest.param(a_node(seen="2026-11-30T12:00:00Z"), False, [], id="reported in the second of the start"),
        pytest.param(a_node(ready="Unknown"), False, ["its Node is not Ready: Because it is so"], id="lost"),
        pytest.param(a_node(ready="False"), False, ["its Node is not Ready: Because it is so"], id="not ready"),
        pytest.param(
            a_node(seen="2026-11-30T11:59:59Z"),
            False,
            ["its Node was last reported Ready at 2026-11-30T11:59:59Z, before the service started"],
            id="ready, but that was the kubelet before",
        ),
        pytest.param(a_node(kubelet="v1.35.7+k3s1"), False, ["its kubelet is v1.35.7+k3s1, not v1.36.3+k3s1"], id="old kubelet"),
        pytest.param(a_node(voter="False"), True, ["it is no voting member of etcd: MemberIsLearner"], id="learner"),
        pytest.param(a_node(), True, ["it is no voting member of etcd"], id="no member"),
        pytest.param(a_node(voter="False"), False, [], id="learner that nobody asked about"),
        pytest.param(
            a_node(ready="False", kubelet="v1.35.7+k3s1", voter="False"),
            True,
            [
                "its Node is not Ready: Because it is so",
                "its kubelet is v1.35.7+k3s1, not v1.36.3+k3s1",
                "it is no voting member of etcd: MemberIsLearner",
            ],
            id="everything at once",
        ),
    ],
)
def test_what_a_node_lacks(node, etcd, lacking):
    assert faults(node, "v1.36.3+k3s1", etcd=etcd, since=STARTED + 0.7) == lacking


def test_a_node_without_conditions_is_not_up():
    node = a_node()
    del node["status"]["conditions"]
    assert faults(node, "v1.36.3+k3s1", etcd=False, since=STARTED) == ["its Node is not Ready"]


@pytest.mark.parametrize(
    ("text", "taint"),
    [
        ("nvidia.com/gpu=present:NoSchedule", {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}),
        ("dedicated:NoExecute", {"key": "dedicated", "effect": "NoExecute"}),
        ("dedicated=:PreferNoSchedule", {"key": "dedicated", "effect": "PreferNoSchedule"}),
    ],
)
def test_a_taint_is_read(text, taint):
    assert parse_taint(text) == taint


@pytest.mark.parametrize("text", ["", "key", "key=value", "key=value:Never", ":NoSchedule", "=value:NoSchedule"])
def test_what_is_no_taint_is_refused(text):
    with pytest.raises(ValueError, match=r"is no taint: it is key=value:Effect or key:Effect"):
        parse_taint(text)


def test_labels_and_taints_of_others_stay():
    theirs = [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "timeAdded": "2026-11-30T12:00:00Z"}]
    node = a_node(labels={"kubernetes.io/os": "linux"}, taints=theirs)
    node = applied(node, metadata_patch(node, {"rack": "r1"}, ["gpu=yes:NoSchedule"]))
    assert node["metadata"]["labels"] == {"kubernetes.io/os": "linux", "rack": "r1"}
    assert node["spec"]["taints"] == [*theirs, {"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    assert metadata_patch(node, {"rack": "r1"}, ["gpu=yes:NoSchedule"]) == {}
    node = applied(node, metadata_patch(node, {"zone": "z"}, []))
    assert node["metadata"]["labels"] == {"kubernetes.io/os": "linux", "zone": "z"}
    assert node["spec"]["taints"] == theirs


def test_a_label_that_is_there_by_registration_becomes_ours_and_can_be_taken_back():
    node = a_node(labels={"rack": "r1"})
    patch = metadata_patch(node, {"rack": "r1"}, [])
    assert patch == {"metadata": {"annotations": {"groundwork/labels": '["rack"]'}}}
    assert applied(applied(node, patch), metadata_patch(applied(node, patch), {}, []))["metadata"]["labels"] == {}


def test_the_value_of_a_taint_is_changed_and_not_doubled():
    node = a_node()
    for value in ("a", "b"):
        node = applied(node, metadata_patch(node, {}, [f"pool={value}:NoSchedule"]))
    assert node["spec"]["taints"] == [{"key": "pool", "value": "b", "effect": "NoSchedule"}]


KEYS = some.sampled_from(["rack", "zone", "nvidia.com/gpu.present"])
LISTS = some.tuples(
    some.dictionaries(KEYS, some.sampled_from(["1", "2"])),
    some.lists(some.sampled_from(["a=1:NoSchedule", "b:NoExecute", "a=1:NoExecute"]), unique=True),
)


@given(some.lists(LISTS, min_size=1, max_size=4))
def test_after_any_row_of_wishes_a_node_has_the_last_and_what_others_set(wishes):
    theirs = {"key": "theirs", "effect": "NoSchedule"}
    node = a_node(labels={"kubernetes.io/os": "linux"}, taints=[theirs])
    for labels, taints in wishes:
        node = applied(node, metadata_patch(node, labels, taints))
    assert node["metadata"]["labels"] == {"kubernetes.io/os": "linux", **labels}
    after = [json.dumps(taint, sort_keys=True) for taint in node["spec"]["taints"]]
    assert sorted(after) == sorted(json.dumps(taint, sort_keys=True) for taint in [theirs, *map(parse_taint, taints)])
    assert metadata_patch(node, labels, taints) == {}


def test_our_cordon_is_taken_back():
    node = a_node()
    out = applied(node, cordon_patch(node, "upgrade"))
    assert is_cordoned(out)
    assert cordoned_by_us(out)
    assert cordon_patch(out, "upgrade") == {}
    assert applied(out, release_patch(out)) == node


def test_the_cordon_of_somebody_else_stays():
    node = a_node()
    node["spec"]["unschedulable"] = True
    assert cordon_patch(node, "upgrade") == {}
    assert release_patch(node) == {}
    assert not cordoned_by_us(node)


def test_a_node_that_somebody_uncordoned_by_hand_loses_our_mark_alone():
    node = applied(a_node(), cordon_patch(a_node(), "upgrade"))
    del node["spec"]["unschedulable"]
    assert release_patch(node) == {"metadata": {"annotations": {"groundwork/cordoned": None}}}
