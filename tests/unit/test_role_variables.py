"""Variables of made-up hosts held against made-up roles, and one run of the real guard."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError, AnsibleTemplateSyntaxError
from jinja2 import UndefinedError
from role_variables import role_specs, role_variable_faults, roles_of_host, unknown_role_variables

ROOT = Path(__file__).parents[2]

LAYERS = [
    {"role": "serve", "hosts": "serving"},
    {"role": "serve_models", "hosts": "serving"},
    {"role": "tuning", "hosts": "all"},
]
SPECS = {
    "serve": {
        "serve_port": {"type": "int", "description": ["Port to listen on.", "8080, as upstream."], "default": 8080},
        "serve_engine": {"type": "str", "choices": ["torchserve", "triton"], "description": "Engine."},
        "serve_address": {"type": "str", "description": "Address.", "default": "{{ ansible_facts['x'] }}"},
        "serve_tls": {
            "type": "dict",
            "description": "Keys.",
            "options": {"cert": {"type": "path"}, "password": {"type": "str", "no_log": True}},
        },
        "serve_token": {"type": "int", "no_log": True, "description": "Token."},
    },
    "serve_models": {"serve_models_list": {"type": "list", "elements": "dict", "required": True, "description": "All."}},
    "tuning": {"tuning_enabled": {"type": "bool", "description": "Whether."}},
}
RIGHT = {"serve_models_list": [{"name": "a"}]}


class Templated(dict):
    """Variables that are templated when they are read, as hostvars are: some can't be."""

    def __getitem__(self, key):
        """Raise what stands for a template that can't be resolved."""
        value = super().__getitem__(key)
        if isinstance(value, Exception):
            raise value
        return value


def faults(groups=("serving",), **variables):
    return role_variable_faults(Templated(variables), SPECS, LAYERS, groups)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"serve_port": 8443},
        {"serve_port": "8443"},
        {"serve_port": None},
        {"serve_tls": {"cert": "/etc/cert"}},
        {"tuning_enabled": "no"},
        {"__serve_internal": 1, "served": 1, "ansible_serve": 1, "serve": 1},
    ],
)
def test_good_variables_have_no_faults(variables):
    assert faults(**RIGHT, **variables) == []


@pytest.mark.parametrize(
    ("variables", "fault"),
    [
        ({"serve_prot": 1}, "serve_prot: the role serve has no such option. Did you mean serve_port?"),
        ({"serve_xyzzy": 1}, "serve_xyzzy: the role serve has no such option. roles/serve/README.md lists its options."),
        ({"serve_port": "http"}, "serve_port: given 'http', expected int. Port to listen on."),
        (
            {"serve_engine": "vllm"},
            "serve_engine: value of serve_engine must be one of: torchserve, triton, got: vllm. Engine.",
        ),
        ({"tuning_enabled": "maybe"}, "tuning_enabled: given 'maybe', expected bool. Whether."),
    ],
)
def test_a_fault_says_what_was_given_and_what_was_expected(variables, fault):
    assert faults(**RIGHT, **variables) == [fault]


def test_a_missing_required_variable_is_a_fault_of_hosts_that_get_the_role():
    assert faults() == ["serve_models_list: not set, and the role serve_models needs it. All."]
    assert faults(groups=["monitoring"]) == []


def test_variables_of_roles_that_the_host_does_not_get_are_left_alone():
    assert faults(groups=["monitoring"], serve_prot=1, serve_port="http") == []


def test_a_variable_belongs_to_the_longest_role_name_that_begins_it():
    assert unknown_role_variables(["serve_models_lost", "serve_models_list", "serve_model"], SPECS) == {
        "serve_models_lost": "serve_models",
        "serve_model": "serve",
    }


def test_faults_of_all_roles_are_reported_together():
    assert [fault.split(":")[0] for fault in faults(serve_prot=1, serve_engine="vllm", tuning_enabled="maybe")] == [
        "serve_prot",
        "serve_engine",
        "serve_models_list",
        "tuning_enabled",
    ]


def test_unknown_and_malformed_suboptions_are_named():
    [fault] = faults(**RIGHT, serve_tls={"cret": "/etc/cert"})
    assert "serve_tls.cret" in fault


@pytest.mark.parametrize("variables", [{"serve_token": "s3cret"}, {"serve_tls": {"password": "s3cret", "cret": "s3cret"}}])
def test_secrets_are_not_shown(variables):
    [fault] = faults(**RIGHT, **variables)
    assert "s3cret" not in fault


def test_a_value_that_refers_to_facts_is_left_to_the_start_of_the_role():
    assert faults(**RIGHT, serve_port=UndefinedError("no attribute 'default_ipv4'")) == []


def test_a_value_that_can_never_be_parsed_is_a_fault():
    error = UndefinedError("captured")
    error.__cause__ = AnsibleTemplateSyntaxError("No filter named 'ipaddr'.")
    assert faults(**RIGHT, serve_port=error) == ["serve_port: No filter named 'ipaddr'. Port to listen on."]


@pytest.mark.parametrize(
    ("groups", "roles"), [(["serving"], ["serve", "serve_models", "tuning"]), (["edge"], ["tuning"]), ([], ["tuning"])]
)
def test_a_host_gets_the_roles_of_its_groups_in_the_order_of_the_layers(groups, roles):
    assert roles_of_host(LAYERS, groups) == roles


def test_a_layer_with_an_unknown_role_is_refused():
    with pytest.raises(AnsibleFilterError, match="nowhere"):
        role_variable_faults({}, SPECS, [{"role": "nowhere", "hosts": "all"}], [])


def test_the_options_of_every_role_are_read(tmp_path):
    for role, options in {"one": "{one_a: {type: int}}", "two": "{}"}.items():
        (tmp_path / role / "meta").mkdir(parents=True)
        (tmp_path / role / "meta/argument_specs.yml").write_text(f"argument_specs: {{main: {{options: {options}}}}}")
    assert role_specs(str(tmp_path)) == {"one": {"one_a": {"type": "int"}}, "two": {}}


@pytest.mark.parametrize("text", ["", "argument_specs: {}", "argument_specs: {main: {options: [}}"])
def test_a_broken_specification_is_named(tmp_path, text):
    (tmp_path / "one/meta").mkdir(parents=True)
    (tmp_path / "one/meta/argument_specs.yml").write_text(text)
    with pytest.raises(AnsibleFilterError, match=r"one/meta/argument_specs\.yml"):
        role_specs(str(tmp_path))


def test_the_guard_stops_the_run_before_any_host_is_touched(tmp_path):
    """Through the playbook itself, with hosts that nobody can reach."""
    hosts = {
        "bad": {
            "preflight_profil": "lab",
            "preflight_memory_min_gib": "lots",
            "preflight_python_min": "{{ '3' | nofilter }}",
            "preflight_reachable": ["{{ ansible_facts['default_ipv4']['address'] }}:443"],
        },
        "good": {},
    }
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": {"ansible_host": "192.0.2.1"}}}))
    layers = {"groundwork_layers": [{"role": "preflight", "hosts": "all"}]}
    run = subprocess.run(
        [
            *(sys.executable, "-m", "ansible", "playbook", ROOT / "playbooks/preflight.yml"),
            *("-i", tmp_path / "hosts.json", "-e", json.dumps(layers)),
        ],
        env=os.environ | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    message = run.stdout[run.stdout.index("msg: |-") : run.stdout.index("PLAY RECAP")]
    assert run.returncode != 0
    assert [line.split(":")[0].strip(" -") for line in message.splitlines() if line.strip().startswith("- ")] == [
        "preflight_profil",
        "preflight_python_min",
        "preflight_memory_min_gib",
    ]
    assert "UNREACHABLE" not in run.stdout
    assert "Check that the hosts" not in run.stdout
