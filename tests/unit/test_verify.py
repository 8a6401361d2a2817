"""Where playbooks/verify.yml runs each role's assertions."""

from pathlib import Path

import pytest
import yaml
from verify import DECLINED, verify_hosts

ROOT = Path(__file__).parents[2]

LAYERS = [
    {"role": "preflight", "hosts": "all"},
    {"role": "torchserve", "hosts": "serving"},
    {"role": "gateway", "hosts": "gateway"},
]
GROUPS = {"all": ["lab-gpu1", "node7"], "serving": ["node7"]}
HOSTVARS = {"lab-gpu1": {"ansible_connection": "lab_podman"}, "node7": {}}


def test_each_role_is_verified_on_the_hosts_of_its_group():
    assert verify_hosts(LAYERS, GROUPS, HOSTVARS, GROUPS["all"])["torchserve"] == ["ansible://node7?sudo=true"]


def test_a_container_is_reached_without_ansible():
    """Through Ansible's connection each assertion would start a whole ansible process."""
    assert verify_hosts(LAYERS, GROUPS, HOSTVARS, GROUPS["all"])["preflight"] == [
        "podman://lab-gpu1",
        "ansible://node7?sudo=true",
    ]


def test_a_group_that_the_inventory_does_not_have_has_no_hosts():
    assert verify_hosts(LAYERS, GROUPS, HOSTVARS, GROUPS["all"])["gateway"] == []


def test_hosts_beyond_the_limit_are_left_out():
    assert verify_hosts(LAYERS, GROUPS, HOSTVARS, ["lab-gpu1"]) == {
        "preflight": ["podman://lab-gpu1"],
        "torchserve": [],
        "gateway": [],
    }


@pytest.mark.parametrize(
    ("role", "variables", "verified"),
    [
        ("swap_removal", {"swap_removal_policy": "allow"}, ["other"]),
        ("swap_removal", {"swap_removal_policy": "remove"}, ["one", "other"]),
        ("swap_removal", {}, ["one", "other"]),
        ("nouveau_blacklist", {"nouveau_blacklist_state": "absent"}, ["other"]),
        ("sysctl_tuning", {"sysctl_tuning_state": "absent"}, ["other"]),
        ("host_limits", {"swap_removal_policy": "allow"}, ["one", "other"]),
    ],
)
def test_only_a_host_that_declares_to_go_without_a_role_is_left_out(role, variables, verified):
    """Also one where the role failed, and left nothing, is verified."""
    hostvars = {"one": variables, "other": {}}
    layers = [{"role": role, "hosts": "all"}]
    assert verify_hosts(layers, {"all": ["one", "other"]}, hostvars, ["one", "other"]) == {
        role: [f"ansible://{name}?sudo=true" for name in verified]
    }


@pytest.mark.parametrize("role", DECLINED)
def test_what_a_host_may_declare_is_an_option_of_the_role(role):
    variable, value = DECLINED[role]
    options = yaml.safe_load((ROOT / f"roles/{role}/meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    assert value in options[variable]["choices"]
    assert options[variable]["default"] != value
