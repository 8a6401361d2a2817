"""What every role of the repository owes to its users, and to the playbooks that apply it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ROLES = sorted(path.parent.parent for path in ROOT.glob("roles/*/meta/argument_specs.yml"))
LAYERS = [
    (layer["role"], layer["hosts"])
    for layer in yaml.safe_load((ROOT / "playbooks/vars/layers.yml").read_text())["groundwork_layers"]
]


def options(role: Path) -> dict:
    return yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]


def applied(play: dict) -> list[tuple[str, dict]]:
    """Return the roles of a play with the variables that the play sets for each."""
    entries = [{"role": entry} if isinstance(entry, str) else entry for entry in play.get("roles", [])]
    return [(entry["role"], play.get("vars", {}) | entry.get("vars", {})) for entry in entries]


each_role = pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)


def test_every_role_has_an_argument_specification():
    assert sorted(path for path in ROOT.glob("roles/*") if path.is_dir()) == ROLES


@each_role
def test_defaults_are_those_of_the_argument_specification(role):
    defaults = yaml.safe_load((role / "defaults/main.yml").read_text())
    assert defaults == {name: option["default"] for name, option in options(role).items() if "default" in option}


@each_role
def test_options_begin_with_the_name_of_their_role(role):
    assert [name for name in options(role) if not name.startswith(f"{role.name}_")] == []


@each_role
def test_the_readme_has_the_option_table(role):
    assert "<!-- BEGIN_ANSIBLE_DOCS -->" in (readme := (role / "README.md").read_text())
    assert "<!-- END_ANSIBLE_DOCS -->" in readme


@each_role
def test_the_first_example_of_the_readme_is_a_play_that_sets_known_options(role):
    example = re.search(r"^```ya?ml\n(.*?)^```", (role / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    settings = dict(pair for play in yaml.safe_load(example[1]) for pair in applied(play))
    assert role.name in settings
    assert [name for name in settings[role.name] if name not in options(role)] == []


@each_role
def test_the_role_has_a_scenario_and_tests_for_every_host(role):
    expected = [f"molecule/{role.name}/molecule.yml", f"tests/host/test_{role.name}.py"]
    assert [name for name in expected if not (ROOT / name).is_file()] == []


def test_playbooks_apply_each_role_to_the_group_that_the_layers_name():
    plays = [play for path in ROOT.glob("playbooks/*.yml") for play in yaml.safe_load(path.read_text())]
    assert sorted((role, play["hosts"]) for play in plays for role, _ in applied(play)) == sorted(LAYERS)


def test_layers_name_every_role_and_each_pair_once():
    assert sorted({role for role, _ in LAYERS}) == [role.name for role in ROLES]
    assert len(set(LAYERS)) == len(LAYERS)


@pytest.mark.parametrize("role", [role for role in ROLES if role.name != "preflight"], ids=lambda role: role.name)
def test_the_role_can_be_judged_before_any_host_is_changed(role):
    assert (role / "tasks/validate.yml").is_file()
