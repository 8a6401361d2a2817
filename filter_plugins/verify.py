"""Say where each role's assertions run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Role -> the variable, and its value, with which a host declares that it goes without what the role brings.
DECLINED = {
    "sysctl_tuning": ("sysctl_tuning_state", "absent"),
    "swap_removal": ("swap_removal_policy", "allow"),
    "nouveau_blacklist": ("nouveau_blacklist_state", "absent"),
}


def verify_hosts(
    layers: list[dict[str, str]],
    groups: Mapping[str, list[str]],
    hostvars: Mapping[str, Mapping[str, Any]],
    limit: list[str],
) -> dict[str, list[str]]:
    """Return role -> the addresses of its hosts within the limit, as testinfra writes them.

    A host is left out by what it declares, never by what is found on it: one where the role failed has nothing to find.
    Testinfra reaches a container itself. For Ansible's connection plugin to it, it would start Ansible for each question.
    """

    def address(name: str) -> str:
        if hostvars[name].get("ansible_connection") == "lab_podman":
            return f"podman://{name}"
        return f"ansible://{name}?sudo=true"

    def declines(name: str, role: str) -> bool:
        return role in DECLINED and hostvars[name].get(DECLINED[role][0]) == DECLINED[role][1]

    return {
        layer["role"]: [
            address(name) for name in groups.get(layer["hosts"], []) if name in limit and not declines(name, layer["role"])
        ]
        for layer in layers
    }


class FilterModule:
    """Filters of playbooks/verify.yml."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name and function."""
        return {"verify_hosts": verify_hosts}
