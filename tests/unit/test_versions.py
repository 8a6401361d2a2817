"""Versions of packages and programs, taken apart."""

from __future__ import annotations

import pytest
from ansible.module_utils import versions


@pytest.mark.parametrize(
    ("package", "version"),
    [
        ("535.309.01-0+deb12u1", "535.309.01"),
        ("550.163.01-4~bpo13+1", "550.163.01"),
        ("580.173.02-0ubuntu0.22.04.1", "580.173.02"),
        ("1:12.8.1-1", "12.8.1"),
        ("2:1.0-rc1-3", "1.0-rc1"),
        ("580.95.05", "580.95.05"),
        ("", ""),
    ],
)
def test_the_upstream_version_is_without_epoch_and_revision(package, version):
    assert versions.upstream(package) == version


def test_versions_are_compared_by_their_numbers():
    listed = ["580.95.05", "99.1", "580.178.04", "580"]
    assert sorted(listed, key=versions.numbers) == ["99.1", "580", "580.95.05", "580.178.04"]
    assert versions.numbers("none") == ()
