"""Filters of the role k3s: what is wrong with a configuration or an upgrade, and texts made of variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleFilterError

DOCUMENTATION = r"""
name: k3s_config_faults
short_description: Say what is wrong with a configuration of K3s
description:
  - Returns a sentence for each key that K3s does not know, that the role sets itself, or whose value is dangerous.
  - Beside it there are C(k3s_server_faults), for what concerns the servers together, C(k3s_upgrade_faults),
    C(k3s_release_urls) and C(k3s_no_proxy).
positional: server, version, world_readable
options:
  _input: {description: The dictionary for a host., type: dict, required: true}
  server: {description: Whether the host is a server., type: bool, required: true}
  version: {description: Version of K3s., type: str, required: true}
  world_readable: {description: Whether everybody may read the kubeconfig., type: bool, default: false}
"""

EXAMPLES = r"""
faults: "{{ {'kubelet-arg': ['max-pods=200']} | k3s_config_faults(false, 'v1.36.3+k3s1') }}"
"""

RETURN = r"""
_value: {description: The sentences., type: list, elements: str}
"""

# Ansible adds the project's module_utils to modules only; filters find them here.
ansible.module_utils.__path__.append(str(Path(__file__).parents[1] / "module_utils"))
from ansible.module_utils import k3s_config, k3s_versions  # noqa: E402 the path above comes first


def k3s_config_faults(config: Mapping[str, Any], server: bool, version: str, world_readable: bool = False) -> list[str]:
    """Return what is wrong with a configuration."""
    try:
        found = k3s_config.check(config, server=server, version=version, world_readable=world_readable)
    except ValueError as error:
        return [f"k3s_version: {error}"]
    return list(found)


def k3s_server_faults(servers: list[str], hostvars: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with the servers together: how many there are, and what must be alike."""
    configs = {
        host: {**hostvars[host].get("k3s_config", {}), **hostvars[host].get("k3s_server_config", {})}
        for host in servers
        if host in hostvars
    }
    external = any("datastore-endpoint" in config for config in configs.values())
    faults: list[str] = k3s_config.count_faults(len(servers), external_datastore=external)
    faults += k3s_config.differing_critical(configs)
    return faults


def refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter whose complaints Ansible shows as such."""

    def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 it passes on what it is given
        try:
            return function(*arguments, **named)
        except ValueError as error:
            raise AnsibleFilterError(str(error)) from error

    return call


class FilterModule:
    """The filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name -> function."""
        return {
            "k3s_config_faults": k3s_config_faults,
            "k3s_server_faults": k3s_server_faults,
            "k3s_upgrade_faults": refusing(k3s_versions.upgrade_faults),
            "k3s_release_urls": refusing(k3s_versions.release_urls),
            "k3s_no_proxy": k3s_versions.no_proxy,
        }
