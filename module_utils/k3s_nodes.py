"""What the Kubernetes API says of a node, and how it is changed: readiness, labels, taints, who took it out of service.

Nodes are the objects that `kubectl get node NAME --output json` prints. Changes are JSON merge patches (RFC 7386) that carry the
resourceVersion that was read: where somebody else changed the node in between, the API refuses them.
"""

from __future__ import annotations

import calendar
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

Node = Mapping[str, Any]
Patch = dict[str, Any]

KUBECTL = ("/usr/local/bin/k3s", "kubectl")

# What Groundwork keeps on a node. The annotations say what is ours, so that what others set is left alone.
LABELS = "groundwork/labels"
TAINTS = "groundwork/taints"
CORDONED = "groundwork/cordoned"


def condition(node: Node, name: str) -> Mapping[str, str]:
    """Return a condition of a node; an empty one if it has none of that name."""
    conditions: list[Mapping[str, str]] = node.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == name), {})


def seconds(timestamp: str) -> float:
    """Return the seconds since the epoch of a time such as 2026-11-30T12:00:00Z."""
    return float(calendar.timegm(time.strptime(timestamp, "%Y-%m-%dT%H:%M:%SZ")))


def faults(node: Node, version: str, *, etcd: bool, since: float) -> list[str]:
    """Return what a node still lacks to count as up; an empty list if nothing.

    Args:
        node: the node.
        version: what its kubelet must be, e.g. v1.36.3+k3s1.
        etcd: whether it must be a voting member of etcd. A learner does not count for the quorum.
        since: seconds since the epoch. For 40 s after a kubelet stopped its node still says Ready, so a report must be newer.
    """
    found = []
    ready = condition(node, "Ready")
    if ready.get("status") != "True":
        why = " ".join(ready[key] for key in ("reason", "message") if ready.get(key))
        found.append(f"its Node is not Ready{': ' if why else ''}{why}")
    elif seconds(ready["lastHeartbeatTime"]) < int(since):
        found.append(f"its Node was last reported Ready at {ready['lastHeartbeatTime']}, before the service started")
    kubelet = node["status"]["nodeInfo"]["kubeletVersion"]
    if kubelet != version:
        found.append(f"its kubelet is {kubelet}, not {version}")
    voter = condition(node, "EtcdIsVoter")
    if etcd and voter.get("status") != "True":
        found.append(f"it is no voting member of etcd{': ' if voter.get('reason') else ''}{voter.get('reason', '')}")
    return found


def _kept(node: Node, annotation: str) -> list[str]:
    """Return the keys that an annotation lists as ours."""
    keys: list[str] = json.loads(node["metadata"].get("annotations", {}).get(annotation, "[]"))
    return keys


def parse_taint(text: str) -> dict[str, str]:
    """Return the taint of a text `key=value:Effect` or `key:Effect`. ValueError with the reason for any other."""
    rest, _, effect = text.rpartition(":")
    key, _, value = rest.partition("=")
    if not key or effect not in {"NoSchedule", "PreferNoSchedule", "NoExecute"}:
        raise ValueError(
            f"{text!r} is no taint: it is key=value:Effect or key:Effect, with NoSchedule, PreferNoSchedule or NoExecute"
        )
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def metadata_patch(node: Node, labels: Mapping[str, str], taints: Iterable[str]) -> Patch:
    """Return the patch that gives a node these labels and taints, and takes back what we gave it before; {} if there is none.

    Labels and taints that others set stay. K3s gives a node those of its configuration at the first registration only.
    """
    present: Mapping[str, str] = node["metadata"].get("labels", {})
    wanted: dict[str, str | None] = {key: None for key in _kept(node, LABELS) if key not in labels and key in present}
    wanted |= {key: value for key, value in labels.items() if present.get(key) != value}
    parsed = [parse_taint(text) for text in taints]
    ours = {(taint["key"], taint["effect"]) for taint in parsed}
    before: list[dict[str, str]] = node.get("spec", {}).get("taints", [])
    given = {tuple(text.split(":")) for text in _kept(node, TAINTS)}
    kept = [taint for taint in before if (taint["key"], taint["effect"]) not in ours | given]
    after = kept + parsed
    marks = {LABELS: sorted(labels), TAINTS: sorted(f"{key}:{effect}" for key, effect in ours)}
    annotations = {name: json.dumps(keys) for name, keys in marks.items() if keys != _kept(node, name)}
    patch: Patch = {}
    if wanted or annotations:
        patch["metadata"] = {
            **({"labels": wanted} if wanted else {}),
            **({"annotations": annotations} if annotations else {}),
        }
    if sorted(map(json.dumps, map(_bare, after))) != sorted(map(json.dumps, map(_bare, before))):
        patch["spec"] = {"taints": after}
    return patch


def _bare(taint: Mapping[str, str]) -> dict[str, str]:
    """Return a taint without the time that the API adds."""
    return {key: taint[key] for key in ("key", "value", "effect") if taint.get(key)}


def is_cordoned(node: Node) -> bool:
    """Tell whether no new pods come to a node."""
    return bool(node.get("spec", {}).get("unschedulable"))


def cordoned_by_us(node: Node) -> bool:
    """Tell whether it was Groundwork that cordoned a node, and not somebody who wants it to stay so."""
    return is_cordoned(node) and CORDONED in node["metadata"].get("annotations", {})


def cordon_patch(node: Node, reason: str) -> Patch:
    """Return the patch that takes a node out of service in our name; {} if it is out already, whoever did it."""
    if is_cordoned(node):
        return {}
    return {"metadata": {"annotations": {CORDONED: reason}}, "spec": {"unschedulable": True}}


def release_patch(node: Node) -> Patch:
    """Return the patch that undoes our cordon, and ours alone."""
    if cordoned_by_us(node):
        return {"metadata": {"annotations": {CORDONED: None}}, "spec": {"unschedulable": None}}
    if CORDONED in node["metadata"].get("annotations", {}):  # somebody uncordoned it by hand
        return {"metadata": {"annotations": {CORDONED: None}}}
    return {}
