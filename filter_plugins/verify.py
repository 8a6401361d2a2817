"""Say where each role's assertions run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def verify_hosts(
    layers: list[dict[str, str]],
    groups: Mapping[str, list[str]],
    hostvars: Mapping[str, Mapping[str, Any]],
    limit: list[str],
) -> dict[str, list[str]]:
    """Return role -> the addresses of its hosts within the limit, as testinfra writes them.

    Testinfra reaches a container itself. For Ansible's connection plugin to it, it would start Ansible for each question.
    """

    def address(name: str) -> str:
        if hostvars[name].get("ansible_connection") == "lab_podman":
            return f"podman://{name}"
        return f"ansible://{name}?sudo=true"

    return {layer["role"]: [address(name) for name in groups.get(layer["hosts"], []) if name in limit] for layer in layers}


class FilterModule:
    """Filters of playbooks/verify.yml."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name and function."""
        return {"verify_hosts": verify_hosts}
