"""Where playbooks/verify.yml runs each role's assertions."""

from verify import verify_hosts

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
