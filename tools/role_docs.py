#!/usr/bin/env python3
"""Write each role's defaults/main.yml and the option table of its README from meta/argument_specs.yml.

`--check` writes nothing and fails where something is out of date.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROLES = Path(__file__).resolve().parents[1] / "roles"
BEGIN, END = "<!-- BEGIN_ANSIBLE_DOCS -->", "<!-- END_ANSIBLE_DOCS -->"
WIDEST_DEFAULT = 60  # characters; longer ones would stretch the table


def text(description: str | list[str]) -> str:
    """Return a description as one line for a table cell."""
    sentences = [description] if isinstance(description, str) else description
    return " ".join(sentence.strip() for sentence in sentences).replace("|", "\\|").replace("\n", " ")


def kind(option: dict[str, Any]) -> str:
    """Return the type of an option, with its choices."""
    name = str(option["type"])
    if "elements" in option:
        name += f" of {option['elements']}"
    if "choices" in option:
        name += ": " + ", ".join(f"`{choice}`" for choice in option["choices"])
    return name


def default(option: dict[str, Any]) -> str:
    """Return the default, short enough for a table."""
    if option.get("required"):
        return "**required**"
    if "default" not in option:
        return ""
    value = json.dumps(option["default"]) if not isinstance(option["default"], str) else option["default"]
    return "see defaults/main.yml" if len(value) > WIDEST_DEFAULT else f"`{value}`".replace("|", "\\|") if value else '`""`'


def table(options: dict[str, Any], first: str) -> list[str]:
    """Return a Markdown table of options and, below it, a table for each option that has some of its own."""
    lines = [f"| {first} | Type | Default | Meaning |", "|---|---|---|---|"]
    for name, option in options.items():
        lines.append(f"| `{name}` | {kind(option)} | {default(option)} | {text(option['description'])} |")
    for name, option in options.items():
        if "options" in option:
            lines += ["", f"Each entry of `{name}`:", "", *table(option["options"], "Key")]
    return lines


def readme(role: Path) -> str:
    """Return the README with its table renewed."""
    specs = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    before, _, rest = (role / "README.md").read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    return "\n".join([before + BEGIN, "", *table(specs["options"], "Variable"), "", END + after])


def defaults(role: Path) -> str:
    """Return defaults/main.yml as aar-doc writes it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / role.name
        (copy / "meta").mkdir(parents=True)
        for name in ("argument_specs.yml", "main.yml"):
            (copy / "meta" / name).write_text((role / "meta" / name).read_text())
        subprocess.run([Path(sys.executable).parent / "aar-doc", copy, "defaults"], check=True, capture_output=True)
        return (copy / "defaults/main.yml").read_text().rstrip("\n") + "\n"


def main() -> int:
    """Renew or check all roles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where something is out of date")
    check = parser.parse_args().check
    stale = []
    for role in sorted(path for path in ROLES.iterdir() if path.is_dir()):
        # The README first: where the YAML is wrong, its reader says so, and aar-doc does not.
        for path, content in ((role / "README.md", readme(role)), (role / "defaults/main.yml", defaults(role))):
            if path.exists() and path.read_text() == content:
                continue
            stale.append(path)
            if not check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(content)
    for path in stale:
        print(f"{path.relative_to(ROLES.parent)}: {'out of date, run `make docs`' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
