"""The tables of the catalog: cards by their id, and that the tables agree with each other."""

from __future__ import annotations

import itertools
import re

import pytest
from ansible.module_utils import gpu_catalog as catalog


@pytest.mark.parametrize(
    ("gpu", "generation"),
    [
        ("10de:102d", "kepler"),  # Tesla K80
        ("10de:1180", "kepler"),  # GeForce GTX 680
        ("10de:13f2", "maxwell"),  # Tesla M60
        ("10de:17f0", "maxwell"),  # Quadro M6000
        ("10de:15f8", "pascal"),  # Tesla P100
        ("10de:1b38", "pascal"),  # Tesla P40
        ("10de:1db6", "volta"),  # Tesla V100 32GB
        ("10de:1eb8", "turing"),  # Tesla T4
        ("10de:2184", "turing"),  # GeForce GTX 1660
        ("10de:20B2", "ampere"),  # A100 80GB, in capitals
        ("10de:2235", "ampere"),  # A40
        ("10de:25b6", "ampere"),  # A2
        ("10de:2330", "hopper"),  # H100 SXM5
        ("10de:2342", "hopper"),  # GH200
        ("10de:26b5", "ada"),  # L40
        ("10de:27b8", "ada"),  # L4
        ("10de:2901", "blackwell"),  # B200
        ("10de:2b85", "blackwell"),  # GeForce RTX 5090
    ],
)
def test_a_card_is_of_its_generation(gpu, generation):
    assert catalog.generation(gpu) == generation


@pytest.mark.parametrize(
    "gpu", ["10de:1081", "10de:1140", "10de:2a00", "10de:3300", "10de:ffff", "1002:2235", "10de", "None", ""]
)
def test_other_ids_are_of_no_known_generation(gpu):
    assert catalog.generation(gpu) is None


def test_ranges_are_ordered_and_do_not_overlap():
    for (first, last, _), (following, _, _) in itertools.pairwise(catalog.GENERATION_RANGES):
        assert first <= last < following


def test_every_generation_has_its_limits():
    assert {name for *_, name in catalog.GENERATION_RANGES} == set(catalog.GENERATIONS)


def test_branches_with_an_end_of_life_name_a_month():
    for branch, entry in catalog.BRANCHES.items():
        assert re.fullmatch(r"\d{3}", branch)
        assert re.fullmatch(r"(20\d\d-(0[1-9]|1[0-2]))?", entry["eol"])
        assert entry["kind"] in ("lts", "production", "new_feature", "retired")
        assert entry["eol"] or entry["kind"] in ("new_feature", "retired")


def test_the_default_branch_has_long_support_and_every_card_but_kepler():
    branch = int(catalog.DEFAULT_BRANCH)
    assert catalog.BRANCHES[catalog.DEFAULT_BRANCH]["kind"] == "lts"
    left_out = [name for name, row in catalog.GENERATIONS.items() if branch < row["first"] or 0 < row["last"] < branch]
    assert left_out == ["kepler"]


@pytest.mark.parametrize(
    ("version", "own", "least"),
    [
        ("12.1", "530.30.02", "525.60.13"),
        ("12.1.1", "530.30.02", "525.60.13"),  # an update without a driver of its own
        ("12.6.3", "560.35.05", "525.60.13"),
        ("13.0.2", "580.95.05", "580"),
        ("12.7", None, "525.60.13"),
        ("14.0", None, None),
    ],
)
def test_a_toolkit_has_a_driver_of_its_own_and_an_oldest_one(version, own, least):
    assert catalog.cuda_drivers(version) == (own, least)


@pytest.mark.parametrize(
    ("version", "gcc"), [("11.8", 11), ("12.0", 11), ("12.1.1", 12), ("12.9.1", 14), ("13.2", 15), ("13.4.1", 16), ("11.4", None)]
)
def test_a_toolkit_has_a_newest_gcc(version, gcc):
    assert catalog.cuda_gcc(version) == gcc


def test_the_toolkit_that_came_with_a_branch_came_with_a_driver_of_it():
    for branch, entry in catalog.BRANCHES.items():
        if entry["cuda"] in catalog.CUDA_DRIVERS:
            assert catalog.CUDA_DRIVERS[entry["cuda"]].startswith(f"{branch}.")


@pytest.mark.parametrize(
    ("package", "version"),
    [
        ("535.309.01-0+deb12u1", "535.309.01"),
        ("550.163.01-4~bpo13+1", "550.163.01"),
        ("580.173.02-0ubuntu0.22.04.1", "580.173.02"),
        ("1:12.8.1-1", "12.8.1"),
        ("580.95.05", "580.95.05"),
    ],
)
def test_the_upstream_version_is_without_epoch_and_revision(package, version):
    assert catalog.upstream(package) == version
