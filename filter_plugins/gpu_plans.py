"""Filters that show the plans of gpu_plan to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DOCUMENTATION = r"""
name: gpu_plan_report
short_description: Say why a plan can't work
description:
  - Returns each reason with its remedy, and the nearest choice that works, as text.
options:
  _input:
    description: The C(plan) that the module gpu_plan returns.
    type: dict
    required: true
"""

EXAMPLES = r"""
text: "{{ __plan.plan | gpu_plan_report }}"
"""

RETURN = r"""
_value:
  description: The text, a paragraph for each reason.
  type: str
"""

Plan = Mapping[str, Any]
COLUMNS = ("HOST", "SYSTEM", "GPUS", "DRIVER NOW", "DRIVER PLANNED", "VERDICT")


def _choice(nearest: Mapping[str, Any]) -> str:
    """Return the wishes to change, such as "driver branch 580, cudnn version 9.27.0.42 cuda 13"."""
    parts = []
    for key, value in nearest.items():
        if isinstance(value, Mapping):
            parts += [f"{key} {name} {item or 'left open'}" for name, item in value.items()]
        elif isinstance(value, list):
            parts += [f"{key} {' '.join(f'{name} {item}' for name, item in entry.items())}" for entry in value] or [f"no {key}"]
        else:
            parts.append(f"{key} {value or 'left out'}")
    return ", ".join(parts)


def gpu_plan_report(plan: Plan) -> str:
    """Return the reasons of a plan, each with its remedy, then the nearest choice that works."""
    lines = [f"- {reason['code']}: {reason['message']}.\n  Remedy: {reason['remedy']}." for reason in plan["reasons"]]
    if plan["nearest"]:
        lines.append(f"Nearest choice that works: {_choice(plan['nearest'])}.")
    return "\n".join(lines)


def _row(host: str, result: Mapping[str, Any]) -> tuple[str, ...]:
    plan, now = result["plan"], result["host"]
    driver = plan["driver"] or {}
    version = driver.get("version") or (f"newest {driver['branch']}" if driver else "-")
    flavour = f" {driver['flavour']}" if driver else ""
    verdict = "ok" if plan["ok"] else ", ".join(reason["code"] for reason in plan["reasons"])
    return (
        host,
        now["distribution"],
        f"{len(now['gpus'])} ({', '.join(dict.fromkeys(now['gpus']))})" if now["gpus"] else "0",
        now["driver"]["installed"] or "-",
        f"{version}{flavour}",
        verdict,
    )


def gpu_plan_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the plans of hosts, by name, as a table; below it what speaks against each one, and what to know."""
    rows = [COLUMNS, *(_row(host, result) for host, result in results.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    warnings: dict[str, list[str]] = {}
    for host, result in results.items():
        if result["plan"]["reasons"]:
            lines += ["", f"{host} can't get this:", gpu_plan_report(result["plan"])]
        for warning in result["plan"]["warnings"]:
            text = f"{warning['message']}. {warning['remedy'][:1].upper()}{warning['remedy'][1:]}."
            warnings.setdefault(text, []).append(host)
    for text, hosts in warnings.items():
        lines += ["", f"To know of {', '.join(hosts)}: {text}"]
    return "\n".join(lines)


def gpu_plan_data(results: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the plans of hosts, by name, without what Ansible adds to results."""
    return {host: {key: result[key] for key in ("host", "plan", "declared", "settled")} for host, result in results.items()}


class FilterModule:
    """The filters as Ansible finds them."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"gpu_plan_report": gpu_plan_report, "gpu_plan_table": gpu_plan_table, "gpu_plan_data": gpu_plan_data}
