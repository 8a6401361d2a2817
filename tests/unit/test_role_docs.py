"""tools/role_docs.py: what is generated from argument_specs is up to date, and the program says so."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
import role_docs

OPTION = {"type": "str", "description": "What it is."}


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the program and return its exit code and output."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["role_docs.py", *arguments])
        code = role_docs.main()
        return code, capsys.readouterr().out

    return run


@pytest.fixture
def stale_role(tmp_path, monkeypatch):
    """A copy of one of the roles whose README has lost its table."""
    role = tmp_path / "roles" / "host_limits"
    shutil.copytree(role_docs.ROLES / "host_limits", role)
    readme = role / "README.md"
    readme.write_text(f"# Before\n{role_docs.BEGIN}\nold\n{role_docs.END}\nAfter\n")
    monkeypatch.setattr(role_docs, "ROLES", role.parent)
    return role


def test_the_files_of_all_roles_are_up_to_date(run):
    assert run("--check") == (0, "")


def test_check_names_what_is_out_of_date_and_writes_nothing(run, stale_role):
    before = (stale_role / "README.md").read_text()
    assert run("--check") == (1, "roles/host_limits/README.md: out of date, run `make docs`\n")
    assert (stale_role / "README.md").read_text() == before


def test_the_table_is_renewed_and_the_rest_of_the_readme_kept(run, stale_role):
    assert run() == (0, "roles/host_limits/README.md: written\n")
    readme = (stale_role / "README.md").read_text()
    assert readme.startswith(f"# Before\n{role_docs.BEGIN}\n\n| Variable | Type | Default | Meaning |\n")
    assert readme.endswith(f"{role_docs.END}\nAfter\n")
    assert run() == (0, "")


@pytest.mark.parametrize(
    ("option", "row"),
    [
        ({"default": "token", "choices": ["token", "disabled"]}, "str: `token`, `disabled` | `token` | What it is."),
        ({"required": True}, "str | **required** | What it is."),
        ({}, "str |  | What it is."),
        ({"default": ""}, 'str | `""` | What it is.'),
        ({"type": "bool", "default": False}, "bool | `false` | What it is."),
        ({"type": "int", "default": 0}, "int | `0` | What it is."),
        ({"type": "list", "elements": "str", "default": []}, "list of str | `[]` | What it is."),
        ({"default": "x" * 61}, "str | see defaults/main.yml | What it is."),
        ({"default": "a|b"}, "str | `a\\|b` | What it is."),
        ({"description": ["One | two.", "Three\nlines."]}, "str |  | One \\| two. Three lines."),
    ],
    ids=json.dumps,
)
def test_an_option_is_one_row(option, row):
    assert role_docs.table({"x": OPTION | option}, "Variable")[2] == f"| `x` | {row} |"


def test_the_keys_of_an_option_have_a_table_of_their_own():
    lines = role_docs.table({"models": OPTION | {"type": "list", "elements": "dict", "options": {"name": OPTION}}}, "Variable")
    assert lines[4] == "Each entry of `models`:"
    assert lines[-1] == "| `name` | str |  | What it is. |"
