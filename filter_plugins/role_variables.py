"""Filters that find faults in role variables on the controller, before a host is touched."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError, AnsibleTemplateSyntaxError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.parameters import remove_values
from ansible.module_utils.common.yaml import yaml_load
from ansible.module_utils.errors import ArgumentTypeError
from jinja2 import UndefinedError
from yaml import YAMLError

DOCUMENTATION = r"""
name: role_variable_faults
short_description: Find unknown, missing and malformed role variables
description:
  - Holds the variables of a host against the argument specifications of the roles that it gets.
  - A value that can't be resolved yet, since it refers to facts, is left to the validation at the role's start.
positional: specs, layers, groups
options:
  _input:
    description: The host's variables, templated (C(hostvars[inventory_hostname])).
    type: dict
    required: true
  specs:
    description: Options of every role, from the filter C(role_specs).
    type: dict
    required: true
  layers:
    description: Which role goes to which group, as C(playbooks/vars/layers.yml) lists them.
    type: list
    elements: dict
    required: true
  groups:
    description: The groups that the host is in (C(group_names)).
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
specs: "{{ 'roles' | role_specs }}"
faults: "{{ hostvars[inventory_hostname] | role_variable_faults(specs, groundwork_layers, group_names) }}"
"""

RETURN = r"""
_value:
  description: One sentence or two for each fault.
  type: list
  elements: str
"""

Specs = Mapping[str, Mapping[str, dict[str, Any]]]


def role_specs(directory: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the options of the main entry point of every role below a directory."""
    specs = {}
    for path in sorted(Path(directory).glob("*/meta/argument_specs.yml")):
        try:
            entry_points = yaml_load(path.read_text(encoding="utf-8"))["argument_specs"]
            specs[path.parts[-3]] = entry_points["main"].get("options", {})
        except (KeyError, TypeError, YAMLError) as error:
            raise AnsibleFilterError(f"{path} is no argument specification with a main entry point: {error}") from error
    return specs


def owner(name: str, roles: Iterable[str]) -> str | None:
    """Return the role that a variable belongs to: the longest one that begins its name."""
    return max((role for role in roles if name.startswith(f"{role}_")), key=len, default=None)


def unknown_role_variables(names: Iterable[str], specs: Specs) -> dict[str, str]:
    """Return the variables that carry a role's prefix and are no option of it, with the role's name."""
    owners = {name: role for name in names if (role := owner(name, specs))}
    return {name: role for name, role in owners.items() if name not in specs[role]}


def _unknown_fault(name: str, role: str, options: Iterable[str]) -> str:
    # Without the prefix, which they share and which would make all of them alike.
    start = len(role) + 1
    near = difflib.get_close_matches(name[start:], (option[start:] for option in options), n=1)
    hint = f"Did you mean {role}_{near[0]}?" if near else f"roles/{role}/README.md lists its options."
    return f"{name}: the role {role} has no such option. {hint}"


def _meaning(option: Mapping[str, Any]) -> str:
    """Return the first sentence of an option's description."""
    description = option.get("description", "")
    text = description if isinstance(description, str) else " ".join(description)
    return f"{text.partition('. ')[0].rstrip('.')}."


def _value_fault(name: str, value: object, option: Mapping[str, Any]) -> str | None:
    # The default belongs to the role, where it may refer to facts.
    spec = {key: item for key, item in option.items() if key != "default"}
    result = ArgumentSpecValidator({name: spec}).validate({name: value})
    faults = [
        f"given {textwrap.shorten(repr(value), 120)}, expected {option.get('type', 'str')}"
        if isinstance(error, ArgumentTypeError)
        else error.msg
        for error in result.errors
    ]
    # A secret in an option with no_log, at any depth, is masked.
    return str(remove_values("; ".join(faults), result._no_log_values)) or None


def _fault(variables: Mapping[str, Any], name: str, role: str, option: Mapping[str, Any]) -> str | None:
    """Return what is wrong with one option of a role."""
    if name not in variables:
        return f"not set, and the role {role} needs it" if option.get("required") else None
    try:
        return _value_fault(name, variables[name], option)
    except UndefinedError as error:
        # What can't be parsed stays a fault; what refers to facts is only not known yet.
        cause = error.__cause__
        return " ".join(str(cause).split()) if isinstance(cause, AnsibleTemplateSyntaxError) else None


def roles_of_host(layers: Iterable[Mapping[str, str]], groups: Iterable[str]) -> list[str]:
    """Return the roles that a host in these groups gets, in the order of the layers."""
    return [layer["role"] for layer in layers if layer["hosts"] in {"all", *groups}]


def role_variable_faults(
    variables: Mapping[str, Any], specs: Specs, layers: Iterable[Mapping[str, str]], groups: Iterable[str]
) -> list[str]:
    """Return the faults of a host's variables for the roles that its groups get, all of them."""
    roles = roles_of_host(layers, groups)
    if strangers := [role for role in roles if role not in specs]:
        raise AnsibleFilterError(
            f"the layers name {', '.join(strangers)}, and there is no such role with an argument specification"
        )
    unknown = unknown_role_variables(variables, specs)
    faults = [_unknown_fault(name, role, specs[role]) for name, role in unknown.items() if role in roles]
    for role in roles:
        for name, option in specs[role].items():
            if fault := _fault(variables, name, role, option):
                faults.append(f"{name}: {fault.rstrip('.')}. {_meaning(option)}")
    return faults


class FilterModule:
    """The filters as Ansible finds them."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"role_specs": role_specs, "role_variable_faults": role_variable_faults, "roles_of_host": roles_of_host}
