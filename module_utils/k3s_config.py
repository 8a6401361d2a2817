"""What K3s may be configured with: one dictionary for a host, checked before anything is written.

Keys are those of `k3s server` and `k3s agent` (k3s-io/k3s, pkg/cli/cmds/server.go and agent.go, release 1.30; K3s ends at once on
a key that it does not know). A value is a scalar, or a list where the flag may be given more than once.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible.module_utils.k3s_versions import minor

Config = Mapping[str, Any]

LISTS = {
    "airgap-extra-registry", "cluster-cidr", "cluster-dns", "disable", "etcd-arg", "kube-apiserver-arg",
    "kube-cloud-controller-manager-arg", "kube-controller-manager-arg", "kube-proxy-arg", "kube-scheduler-arg", "kubelet-arg",
    "node-external-ip", "node-ip", "node-label", "node-taint", "service-cidr", "tls-san",
}  # fmt: skip
NODE_KEYS = {
    "airgap-extra-registry", "alsologtostderr", "container-runtime-endpoint", "data-dir", "debug", "default-runtime",
    "disable-default-registry-endpoint", "docker", "flannel-cni-conf", "flannel-conf", "flannel-iface",
    "image-credential-provider-bin-dir", "image-credential-provider-config", "image-service-endpoint", "kube-proxy-arg",
    "kubelet-arg", "lb-server-port", "log", "node-external-ip", "node-ip", "node-label", "node-name", "node-taint",
    "nonroot-devices", "pause-image", "prefer-bundled-bin", "private-registry", "protect-kernel-defaults", "resolv-conf",
    "rootless", "selinux", "server", "snapshotter", "token", "token-file", "v", "vmodule", "vpn-auth", "vpn-auth-file",
    "with-node-id",
}  # fmt: skip
SERVER_KEYS = NODE_KEYS | {
    "advertise-address", "advertise-port", "agent-token", "agent-token-file", "bind-address", "cluster-cidr", "cluster-dns",
    "cluster-domain", "cluster-init", "cluster-reset", "cluster-reset-restore-path", "datastore-cafile", "datastore-certfile",
    "datastore-endpoint", "datastore-keyfile", "default-local-storage-path", "disable", "disable-apiserver",
    "disable-cloud-controller", "disable-controller-manager", "disable-etcd", "disable-helm-controller", "disable-kube-proxy",
    "disable-network-policy", "disable-scheduler", "egress-selector-mode", "embedded-registry", "enable-pprof", "etcd-arg",
    "etcd-disable-snapshots", "etcd-expose-metrics", "etcd-s3", "etcd-s3-access-key", "etcd-s3-bucket", "etcd-s3-endpoint",
    "etcd-s3-endpoint-ca", "etcd-s3-folder", "etcd-s3-insecure", "etcd-s3-region", "etcd-s3-secret-key",
    "etcd-s3-skip-ssl-verify", "etcd-s3-timeout", "etcd-snapshot-compress", "etcd-snapshot-dir", "etcd-snapshot-name",
    "etcd-snapshot-retention", "etcd-snapshot-schedule-cron", "flannel-backend", "flannel-external-ip", "flannel-ipv6-masq",
    "helm-job-image", "https-listen-port", "kube-apiserver-arg", "kube-cloud-controller-manager-arg",
    "kube-controller-manager-arg", "kube-scheduler-arg", "secrets-encryption", "secrets-encryption-provider", "service-cidr",
    "service-node-port-range", "servicelb-namespace", "system-default-registry", "tls-san", "tls-san-security",
    "write-kubeconfig", "write-kubeconfig-group", "write-kubeconfig-mode",
}  # fmt: skip
#: First minor release that knows the key, where older ones are still in use.
SINCE = {"nonroot-devices": 29, "default-runtime": 25, "embedded-registry": 26, "secrets-encryption-provider": 33}
#: What all servers must have alike: "critical configuration value mismatch" otherwise.
CRITICAL = (
    "cluster-cidr", "cluster-dns", "cluster-domain", "disable-helm-controller", "disable-network-policy", "egress-selector-mode",
    "flannel-backend", "flannel-external-ip", "flannel-ipv6-masq", "secrets-encryption", "service-cidr",
)  # fmt: skip
DISABLE = {"coredns", "local-storage", "metrics-server", "runtimes", "servicelb", "traefik"}

#: Keys that the role sets itself; the remedy says by which variable.
OURS = {
    "token": "set k3s_token or k3s_token_file: it then goes into a file of its own, not into the configuration",
    "token-file": "set k3s_token or k3s_token_file",
    "server": "the role derives it from k3s_servers and k3s_api_address",
    "cluster-init": "the role derives it from k3s_servers",
    "node-label": "set k3s_node_labels: K3s reads this key at the first registration only, the role keeps labels in sync",
    "node-taint": "set k3s_node_taints: K3s reads this key at the first registration only, the role keeps taints in sync",
    "cluster-reset": "it would throw the other servers out at each start; run `k3s server --cluster-reset` by hand",
    "cluster-reset-restore-path": "restore by hand with `k3s server --cluster-reset --cluster-reset-restore-path=...`",
    "data-dir": "the other roles and the removal rely on /var/lib/rancher/k3s; mount a disk there",
    "rootless": "a rootless K3s runs no GPU pods",
    "docker": "the NVIDIA runtime is configured for the embedded containerd",
}

#: Arguments that end a component or weaken a host: pattern on "key=value", first minor from which it counts, reason and remedy.
BAD_ARGUMENTS = {
    "kubelet-arg": [
        (
            r"feature-gates=.*\bDevicePlugins\b",
            28,
            "the gate DevicePlugins was removed in Kubernetes 1.28, and the kubelet ends with 'unrecognized feature gate'; "
            "device plugins are always on: remove it",
        ),
        (
            r"systemd-cgroup\b",
            0,
            "the kubelet has no such flag, and K3s ends with 'unknown flag'; K3s chooses the systemd driver by itself: remove it",
        ),
        (
            r"cgroup-driver=",
            0,
            "K3s chooses the driver for kubelet and containerd together; set by hand they can differ: remove it",
        ),
        (
            r"(network-plugin|cni-bin-dir|cni-conf-dir|container-runtime)=",
            24,
            "it went with dockershim: remove it",
        ),
        (
            r"anonymous-auth=true",
            0,
            "everybody who reaches port 10250 could run commands in the pods of this host: remove it",
        ),
        (
            r"read-only-port=(?!0$)",
            0,
            "that port tells everybody about the pods of this host, without asking who: remove it",
        ),
        (
            r"fail-swap-on=true",
            0,
            "swap is the business of the role swap_removal, and the kubelet would end: remove it",
        ),
    ],
    "kube-apiserver-arg": [
        (r"anonymous-auth=true", 0, "it opens the API to requests without credentials: remove it"),
        (r"insecure-port=", 24, "the flag was removed in Kubernetes 1.24: remove it"),
        (
            r"enable-admission-plugins=.*\bPodSecurityPolicy\b",
            25,
            "PodSecurityPolicy was removed in Kubernetes 1.25: use PodSecurity",
        ),
        (r"authorization-mode=.*\bAlwaysAllow\b", 0, "it makes everybody an administrator: remove it"),
    ],
}


def _suggest(key: str, known: Iterable[str]) -> str:
    """Return a hint at the known name that is most alike."""
    close = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {close[0]}?" if close else "`k3s server --help` lists them"


def _check_value(key: str, value: object) -> str:
    """Return what is wrong with the shape of a value, nothing if it is right."""
    if key not in LISTS:
        return "" if isinstance(value, (str, int, float, bool)) else "it takes one value, not a list or dictionary"
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(item, (str, int)) and not isinstance(item, bool) for item in value):
        return "it takes a list of texts"
    return ""


def _as_list(value: object) -> list[str]:
    """Return the texts of a list key."""
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _check_arguments(key: str, value: object, version: str) -> list[str]:
    """Return what is wrong with the arguments for a component."""
    found, seen = [], set()
    for argument in _as_list(value):
        name, equals, _ = argument.partition("=")
        if argument.startswith("-"):
            found.append(f"{key}: {argument!r} begins with dashes; K3s adds them: write {argument.lstrip('-')!r}")
        if not equals:
            found.append(f"{key}: {argument!r} is no argument: write name=value")
        if name in seen:
            found.append(f"{key}: {name} is given twice, and only the last would count; remove one")
        seen.add(name)
        for pattern, since, reason in BAD_ARGUMENTS.get(key, []):
            if re.match(pattern, argument.lstrip("-")) and minor(version) >= since:
                found.append(f"{key}: {argument!r}: {reason}")
    return found


def _check_kubeconfig(config: Config, world_readable: bool) -> list[str]:
    """Return what is wrong with who may read the kubeconfig, which makes its reader an administrator of the cluster."""
    if "write-kubeconfig-mode" not in config:
        return []
    mode = str(config["write-kubeconfig-mode"])
    if not re.fullmatch(r"0?[0-7]{3}", mode) or not isinstance(config["write-kubeconfig-mode"], str):
        return [f'write-kubeconfig-mode: {mode} is no mode: write it in quotes, such as "0600"']
    bits = int(mode, 8)
    if bits & 0o007 and not world_readable:
        return [
            f"write-kubeconfig-mode: {mode} makes every user of this host an administrator of the cluster: use 0600, or 0640 "
            "with write-kubeconfig-group; k3s_kubeconfig_world_readable: true allows it all the same"
        ]
    if bits & 0o070 and not world_readable and not config.get("write-kubeconfig-group"):
        return [f"write-kubeconfig-mode: {mode} opens the file to its group, which is root: set write-kubeconfig-group"]
    return []


def check(config: Config, *, server: bool, version: str, world_readable: bool = False) -> list[str]:
    """Return what is wrong with the user's part of a configuration, one sentence each with field, cause and remedy.

    Args:
        config: the dictionary for a host, without what the role adds.
        server: whether the host is a server.
        version: version of K3s, e.g. v1.36.3+k3s1.
        world_readable: whether everybody may read the kubeconfig.
    """
    known = SERVER_KEYS if server else NODE_KEYS
    kind = "server" if server else "agent"
    found = []
    for key, value in config.items():
        if key in OURS:
            found.append(f"{key} is not for the configuration: {OURS[key]}")
        elif key.endswith("+"):
            found.append(f"{key}: the + is for files in config.yaml.d; give the whole list under {key[:-1]}")
        elif key not in known and key in SERVER_KEYS:
            found.append(f"{key} is a key of servers, and this host is an agent: move it to k3s_server_config")
        elif key not in known:
            found.append(f"{key} is no key of k3s {kind}, which would end at once: {_suggest(key, known)}")
        elif minor(version) < SINCE.get(key, 0):
            found.append(f"{key} is known from Kubernetes 1.{SINCE[key]} on, and k3s_version is {version}: remove it")
        elif wrong := _check_value(key, value):
            found.append(f"{key}: {wrong}")
        elif key.endswith("-arg"):
            found += _check_arguments(key, value, version)
    unknown = sorted(set(_as_list(config.get("disable", []))) - DISABLE)
    if unknown:
        found.append(f"disable: {', '.join(unknown)} can't be disabled so; there are {', '.join(sorted(DISABLE))}")
    return found + _check_kubeconfig(config, world_readable)


def differing_critical(configs: Mapping[str, Config]) -> list[str]:
    """Return the keys that must be alike on all servers and are not; `configs` is host -> its configuration."""
    found = []
    for key in CRITICAL:
        values = {host: json.dumps(config.get(key), sort_keys=True) for host, config in configs.items()}
        if len(set(values.values())) > 1:
            told = ", ".join(f"{host}: {'unset' if value == 'null' else value}" for host, value in values.items())
            found.append(f"{key} must be the same on all servers ({told}): set it in k3s_server_config for the whole group")
    return found


def count_faults(servers: int, *, external_datastore: bool) -> list[str]:
    """Return what is wrong with the number of servers."""
    if servers == 0:
        return ["k3s_servers is empty: name at least one server"]
    if external_datastore or servers % 2 == 1:
        return []
    tolerated = (servers - 1) // 2
    return [
        f"{servers} servers with embedded etcd survive the loss of {tolerated}, as {servers - 1} would, with one more to lose: "
        f"use {servers - 1} or {servers + 1}, or an external datastore (datastore-endpoint)"
    ]
