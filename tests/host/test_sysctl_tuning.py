"""Kernel parameters of any host that the role sysctl_tuning was applied to."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

HEADER = "# Managed by Groundwork (role sysctl_tuning)."


class Setting(NamedTuple):
    """One assignment of a sysctl file; a minimum stands below a line `# at least`."""

    name: str
    value: list[str]
    minimum: bool

    def holds_with(self, value):
        """Whether a value that comes later, or the live one, satisfies this one."""
        if self.minimum:
            return all(int(theirs) >= int(ours) for theirs, ours in zip(value, self.value, strict=True))
        return value == self.value


def settings(text):
    """Assignments by the parts of their key, the last one of each key."""
    found, above = {}, ""
    for line in text.splitlines():
        if match := re.fullmatch(r"\s*-?([^#;=\s][^=]*?)\s*=\s*(.*?)\s*", line):
            name, value = match.groups()
            found[tuple(re.split("[./]", name))] = Setting(name, value.split(), above == "# at least")
        above = line
    return found


@pytest.fixture(scope="module")
def ours(host):
    files = host.run("grep --files-with-matches --fixed-strings %s --recursive /etc/sysctl.d", HEADER).stdout.split()
    if not files:
        pytest.skip("no file of sysctl.d is the role's: the host is to be without it (sysctl_tuning_state: absent)")
    assert len(files) == 1, "only one file of sysctl.d is the role's"
    return settings(host.file(files[0]).content_string)


def test_the_boot_ends_with_the_values_of_the_role(host, ours):
    merged = settings(host.check_output("systemd-analyze cat-config sysctl.d"))
    undone = {key: merged[key].value for key, setting in ours.items() if not setting.holds_with(merged[key].value)}
    assert undone == {}


def test_the_live_values_are_those_of_the_file(host, ours):
    if host.run("systemd-detect-virt --container --quiet").succeeded:
        pytest.skip("a container shows the kernel of the machine that it runs on")
    live = {setting.name: host.check_output("sysctl -n %s", setting.name).split() for setting in ours.values()}
    assert {setting.name: live[setting.name] for setting in ours.values() if not setting.holds_with(live[setting.name])} == {}
