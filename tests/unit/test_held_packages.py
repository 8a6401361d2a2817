"""The module held_packages; a stand-in answers for dpkg-query, apt-get and apt-mark in their own words."""

from __future__ import annotations

import re

import held_packages
import pytest

FOUR = ["nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1"]
HOLD = "apt-mark hold libnvidia-container-tools libnvidia-container1 nvidia-container-toolkit nvidia-container-toolkit-base"


class Apt:
    """The stand-in: `packages` are name -> version and, if it is not "ii", the state of dpkg."""

    def __init__(self):
        """Begin without packages, with two versions of anything in the lists."""
        self.packages = {}
        self.offered, self.newer = ["1.19.1-1", "1.20.0-1"], []
        #: What comes along with what is asked for, and what has to go.
        self.brings, self.removes = {}, []
        self.commands, self.ignores_holds = [], []

    def run_command(self, command, **_):
        """Answer, and remember what was changed."""
        if command[0] == "dpkg-query":
            rows = {"dpkg": "1.21.22", **self.packages}
            lines = [(name, *text.split()) for name, text in rows.items()]
            return 0, "".join(f"{line[0]}\tamd64\t{line[1]}\tsource\t{(*line, 'ii')[2]} \n" for line in lines), ""
        simulated = "--simulate" in command
        words = [word for word in command if not word.startswith("-")]
        if not simulated:
            self.commands.append(" ".join(words))
        if words[:2] == ["apt-mark", "hold"]:
            self.packages |= {name: f"{self.packages[name].split()[0]} hi" for name in words[2:]}
        elif "update" in words:
            self.offered = [*self.offered, *self.newer]
        else:
            self.ignores_holds.append("-oAPT::Ignore-Hold=true" in command)
            return self.install(words[words.index("install") + 1 :], simulated)
        return 0, "", ""

    def install(self, words, simulated):
        """Install, or remove, packages and what comes along."""
        wanted = dict(word.split("=") for word in words if "=" in word)
        for name, pattern in wanted.items():
            versions = [version for version in self.offered if re.fullmatch(pattern.replace("*", ".*"), version)]
            if not versions:
                return 100, "", f"E: Version '{pattern}' for '{name}' was not found"
            wanted[name] = versions[-1]
        gone = [word[:-1] for word in words if word.endswith("-")] + self.removes
        coming = {**wanted, **self.brings}
        text = "".join(f"Remv {name} [1.0]\n" for name in gone)
        for name, version in coming.items():
            old = f" [{self.packages[name].split()[0]}]" if name in self.packages else ""
            text += f"Inst {name}{old} ({version} NVIDIA [amd64])\n"
        if not simulated:
            self.packages = {**{name: text for name, text in self.packages.items() if name not in gone}, **coming}
        return 0, text, ""


@pytest.fixture
def apt(monkeypatch, run_module):
    stand_in = Apt()
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.run_command", lambda _, *a, **k: stand_in.run_command(*a, **k))

    def apply(*packages, check=False, **options):
        stand_in.commands = []
        names = packages or ([] if "absent" in options else [f"{name}=1.20.0-1" for name in FOUR])
        source = "/etc/apt/sources.list.d/toolkit.sources"
        return run_module(held_packages, check=check, packages=list(names), source=source, **options)

    def both(*packages, **options):
        """Return the result of the run, having checked that a dry run announced it and that a second run changes nothing."""
        announced = apply(*packages, check=True, **options)
        assert stand_in.commands == []
        done = apply(*packages, **options)
        assert announced == done
        commands = stand_in.commands
        stand_in.brings = {}
        assert (apply(*packages, **options)["changed"], stand_in.commands) == (False, [])
        stand_in.commands = commands
        return done

    stand_in.apply, stand_in.both = apply, both
    return stand_in


def install(version):
    return "apt-get install " + " ".join(f"{name}={version}" for name in FOUR)


@pytest.mark.parametrize(
    "before",
    [
        {},
        dict.fromkeys(FOUR, "1.19.1-1 hi"),
        dict.fromkeys(FOUR, "1.20.1-1"),
        dict.fromkeys(FOUR, "1.20.0-1 iF"),
    ],
    ids=["none", "older", "newer", "half configured"],
)
def test_all_packages_move_in_one_transaction_and_are_held(apt, before):
    apt.packages = dict(before)
    result = apt.both()
    assert result["changed"] is True
    assert apt.commands == [install("1.20.0-1"), HOLD]
    assert apt.packages == dict.fromkeys(FOUR, "1.20.0-1 hi")


def test_a_package_that_is_not_as_wanted_moves_alone(apt):
    apt.packages = {**dict.fromkeys(FOUR, "1.20.0-1 hi"), "libnvidia-container1": "1.19.1-1 hi"}
    assert apt.both()["changed"] is True
    assert apt.commands == ["apt-get install libnvidia-container1=1.20.0-1", "apt-mark hold libnvidia-container1"]


def test_packages_that_somebody_released_are_held_again(apt):
    apt.packages = dict.fromkeys(FOUR, "1.20.0-1")
    assert apt.both()["changed"] is True
    assert apt.commands == [HOLD]


def test_the_difference_names_versions_and_holds(apt):
    apt.packages = {"nvidia-container-toolkit": "1.19.1-1 hi", "libnvidia-container1": "1.19.1-1", "bash": "5.2"}
    result = apt.both()
    assert result["before"] == {"nvidia-container-toolkit": "1.19.1-1", "libnvidia-container1": "1.19.1-1"}
    assert result["diff"]["before"] == "libnvidia-container1 1.19.1-1\nnvidia-container-toolkit 1.19.1-1 held\n"
    assert result["diff"]["after"] == "".join(f"{name} 1.20.0-1 held\n" for name in sorted(FOUR))


def test_lists_without_the_version_are_fetched_once(apt):
    apt.newer = ["1.21.0-1"]
    wanted = [f"{name}=1.21.0-1" for name in FOUR]
    assert apt.apply(*wanted)["changed"] is True
    assert apt.commands == ["apt-get update", install("1.21.0-1"), HOLD]


def test_a_dry_run_before_the_repository_is_declared_counts_on_it(apt):
    apt.offered = []
    assert apt.apply(check=True)["diff"]["after"] == "".join(f"{name} 1.20.0-1 held\n" for name in sorted(FOUR))
    assert apt.commands == []


def test_a_version_that_there_is_not_is_told_with_where_to_look(apt):
    result = apt.apply("nvidia-container-toolkit=1.99.0-1")
    assert "can't bring the host to nvidia-container-toolkit=1.99.0-1: E: Version '1.99.0-1'" in result["msg"]
    assert "apt-cache madison" in result["msg"]
    assert apt.commands == ["apt-get update"]


@pytest.mark.parametrize("check", [True, False])
def test_a_transaction_that_takes_a_package_away_is_refused(apt, check):
    apt.removes = ["my-runtime"]
    assert "apt would remove my-runtime for it" in apt.apply(check=check)["msg"]
    assert apt.commands == []


# A toolkit, which brings parts

TOOLKIT, PARTS = "cuda-toolkit-12-8=12.8.1-*", {"parts": ["-12-8(-|$)"]}


@pytest.fixture
def cuda(apt):
    apt.offered = ["12.8.1-1", "12.8.2-1"]
    return apt


def test_what_came_along_with_a_toolkit_is_held_with_it(cuda):
    cuda.brings = {"cuda-nvcc-12-8": "12.8.93-1", "cuda-toolkit-12-8-config-common": "12.8.90-1", "g++": "4:12.2"}
    result = cuda.both(TOOLKIT, **PARTS)
    assert cuda.packages == {
        "cuda-nvcc-12-8": "12.8.93-1 hi",
        "cuda-toolkit-12-8": "12.8.1-1 hi",
        "cuda-toolkit-12-8-config-common": "12.8.90-1 hi",
        "g++": "4:12.2",
    }
    assert "cuda-nvcc-12-8 12.8.93-1 held\n" in result["diff"]["after"]
    assert "g++ 4:12.2\n" in result["diff"]["after"]


def test_parts_that_float_are_held_and_those_of_another_release_are_left_alone(cuda):
    cuda.packages = {
        "cuda-toolkit-12-8": "12.8.1-1 hi",
        "libcublas-12-8": "12.8.4-1",
        "libcublas-12-80": "1",
        "libcublas-13-0": "2",
    }
    assert cuda.both(TOOLKIT, **PARTS)["changed"] is True
    assert cuda.commands == ["apt-mark hold libcublas-12-8"]


def test_parts_that_are_held_move_with_their_toolkit(cuda):
    """Otherwise apt says: you have held broken packages."""
    cuda.packages = {"cuda-toolkit-12-8": "12.8.1-1 hi", "cuda-nvcc-12-8": "12.8.93-1 hi"}
    cuda.brings = {"cuda-nvcc-12-8": "12.8.99-1"}
    assert cuda.both("cuda-toolkit-12-8=12.8.2-*", **PARTS)["changed"] is True
    assert cuda.packages == {"cuda-toolkit-12-8": "12.8.2-1 hi", "cuda-nvcc-12-8": "12.8.99-1 hi"}
    assert set(cuda.ignores_holds) == {True}


def test_what_somebody_else_holds_does_not_move(cuda):
    cuda.packages = {"libcuda1": "570.1-1 hi"}
    cuda.brings = {"libcuda1": "580.1-1"}
    assert "apt would change libcuda1 for it, which somebody holds" in cuda.apply(TOOLKIT, **PARTS)["msg"]
    assert cuda.commands == []


def test_a_release_is_removed_with_its_parts_and_nothing_else(cuda):
    cuda.packages = {"cuda-nvcc-12-8": "1 hi", "libcublas-12-8": "1 hi", "cuda-nvcc-13-0": "1", "bash": "5.2"}
    result = cuda.both("cuda-nvcc-13-0=*", absent=["-12-8(-|$)"])
    assert cuda.commands == ["apt-get install cuda-nvcc-12-8- libcublas-12-8-", "apt-mark hold cuda-nvcc-13-0"]
    assert result["diff"]["after"] == "cuda-nvcc-13-0 1 held\n"


@pytest.mark.parametrize("check", [True, False])
def test_a_removal_that_takes_along_what_depends_on_it_is_refused(cuda, check):
    cuda.packages, cuda.removes = {"cuda-cudart-12-8": "1 hi", "my-app": "1"}, ["my-app"]
    message = cuda.apply(check=check, absent=["-12-8(-|$)"])["msg"]
    assert "to no cuda-cudart-12-8: apt would remove my-app for it" in message
    assert cuda.commands == []
