"""Swap of any host that the role swap_removal was applied to, right after the run as well as after a reboot."""

from __future__ import annotations

import re

import pytest


def swap_units(host):
    """Properties of each swap unit that systemd knows, by property."""
    shown = host.check_output("systemctl show --all --property=Id,LoadState,ActiveState,WantedBy,RequiredBy,UpheldBy '*.swap'")
    return [dict(re.findall(r"^(\w+)=(.*)$", block, re.MULTILINE)) for block in shown.split("\n\n") if block.strip()]


def test_no_swap_is_on(host):
    if host.run("systemd-detect-virt --container --quiet").succeeded:
        pytest.skip("a container shows the swap of the machine that it runs on")
    assert host.check_output("swapon --show --noheadings") == ""


def test_fstab_has_no_entry_of_swap(host):
    assert host.run("findmnt --fstab --noheadings --types swap --output SOURCE").stdout == ""


def test_the_target_that_starts_swap_units_at_boot_is_masked(host):
    assert host.run("systemctl is-enabled swap.target").stdout.strip() == "masked"


def test_nothing_but_that_target_wants_a_swap_unit(host):
    wanted = {
        unit["Id"]: starters
        for unit in swap_units(host)
        if unit["LoadState"] != "masked"
        and (
            starters := {name for key in ("WantedBy", "RequiredBy", "UpheldBy") for name in unit.get(key, "").split()}
            - {"swap.target"}
        )
    }
    assert wanted == {}


def test_no_unit_file_turns_swap_on(host):
    """Generated units are not listed by their file but by their generator, and wanted by swap.target alone."""
    # It fails where there is no such unit at all.
    listed = host.run("systemctl list-unit-files --type=swap --no-legend --no-pager")
    assert listed.stderr == ""
    states = dict(line.split()[:2] for line in listed.stdout.splitlines())
    assert {name: state for name, state in states.items() if state not in ("masked", "generated")} == {}


@pytest.mark.parametrize("name", ["zramswap", "zram-config", "dphys-swapfile", "swapspace"])
def test_no_service_makes_swap(host, name):
    assert host.run("systemctl is-enabled %s.service", name).stdout.strip() not in ("enabled", "enabled-runtime", "generated")
    assert host.run("systemctl is-active %s.service", name).stdout.strip() in ("inactive", "failed")
