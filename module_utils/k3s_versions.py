"""Versions of K3s: what may follow what, and where a release is found."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: How many minor versions a kubelet may be older than the API: Kubernetes' version skew policy, from 1.28 on.
KUBELET_SKEW = 3
ASSETS = {"x86_64": ("k3s", "amd64"), "aarch64": ("k3s-arm64", "arm64")}


def parse(version: str) -> tuple[int, int, int, int, int]:
    """Return a key that orders versions such as v1.36.3+k3s1 and v1.37.0-rc2+k3s1. ValueError for anything else.

    A release candidate comes before its release.
    """
    found = re.fullmatch(r"v(\d+)\.(\d+)\.(\d+)(?:-rc(\d+))?\+k3s(\d+)", version)
    if not found:
        raise ValueError(f"{version!r} is no version of K3s: write it as v1.36.3+k3s1, as its releases are named")
    major, minor_, patch, candidate, build = found.groups()
    return int(major), int(minor_), int(patch), int(candidate) if candidate else 1_000_000, int(build)


def minor(version: str) -> int:
    """Return the minor version of Kubernetes in a version."""
    return parse(version)[1]


def upgrade_faults(servers: Mapping[str, str], agents: Mapping[str, str], wanted: str) -> list[str]:
    """Return why a fleet may not go to a version, one sentence each with the remedy; an empty list if it may.

    Args:
        servers: host -> version that it has; empty where it has none yet.
        agents: the same for agents.
        wanted: the version that all shall have.
    """
    found = []
    present = {**servers, **agents}
    for host, version in present.items():
        if not version:
            continue
        if parse(version) > parse(wanted):
            found.append(
                f"{host} has {version}, which is newer than {wanted}: the data of etcd can't go back. Restore a snapshot of that "
                "version on new servers, or set k3s_version to what is there"
            )
        elif minor(wanted) - minor(version) > 1 and host in servers:
            step = minor(version) + 1
            found.append(f"{host} has {version}: servers may not skip a minor version. Go to 1.{step} first")
        elif minor(wanted) - minor(version) > KUBELET_SKEW and host in agents:
            found.append(
                f"{host} has {version}, more than {KUBELET_SKEW} minor versions behind {wanted}: go to one between first"
            )
    return found


def release_urls(version: str, machine: str, base: str) -> dict[str, str]:
    """Return the addresses of a release: `binary` and `sums`, its SHA-256 sums.

    Args:
        version: e.g. v1.36.3+k3s1; the plus sign is encoded.
        machine: as `uname -m` says. ValueError if K3s has no binary for it.
        base: the address that holds a folder for each version.
    """
    if machine not in ASSETS:
        raise ValueError(f"there is no K3s for {machine}; there are binaries for {', '.join(ASSETS)}")
    name, arch = ASSETS[machine]
    folder = f"{base.rstrip('/')}/{version.replace('+', '%2B')}"
    return {"binary": f"{folder}/{name}", "sums": f"{folder}/sha256sum-{arch}.txt"}


def no_proxy(given: list[str], addresses: list[str], config: Mapping[str, object]) -> str:
    """Return a NO_PROXY that holds all that must not go through a proxy.

    A list that is too narrow sends the traffic of the API server to its webhooks and kubelets through the proxy.

    Args:
        given: what the user lists.
        addresses: names and addresses of the nodes and of the API.
        config: the configuration of K3s, for its networks and its domain.
    """
    networks = [
        config.get(key) or default for key, default in (("cluster-cidr", "10.42.0.0/16"), ("service-cidr", "10.43.0.0/16"))
    ]
    flat = [str(item) for network in networks for item in (network if isinstance(network, list) else [network])]
    domain = str(config.get("cluster-domain") or "cluster.local")
    parts = ["localhost", "127.0.0.0/8", "::1", *flat, ".svc", f".{domain}", *addresses, *given]
    return ",".join(dict.fromkeys(part for part in parts if part))
