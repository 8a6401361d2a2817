"""lab/prepare.py: what it finds missing, where it takes Debian from, and what it says on unusual machines."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("lab_prepare", Path(__file__).parents[2] / "lab/prepare.py")
lab = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(lab)

DEBIAN = """\
Debian http://mirror.example.com/debian/
Debian http://mirror.example.com/debian/
Debian-Security http://mirror.example.com/debian-security/
Example https://packages.example.com/tools/
"""
UBUNTU = "Ubuntu http://mirror.example.com/ubuntu/\n"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine by its programs, what they answer, its user and its cgroup version; `calls` are what was run."""

    class Machine:
        def __init__(self):
            self.programs = {"apt-get", "sudo", *lab.PROGRAMS, "crun", "runc", "slirp4netns"}
            self.user, self.cgroup_v2, self.capable = 0, True, True
            self.answers = {"indextargets": DEBIAN}
            self.calls = []

        def run(self, argv, **_):
            self.calls.append(" ".join(argv))
            if argv[0] not in self.programs:
                raise FileNotFoundError(argv[0])
            return subprocess.CompletedProcess(argv, 0, self.answers.get(argv[1], ""), "")

    standing = Machine()
    monkeypatch.setattr(lab, "CONTAINERS_CONF", tmp_path / "containers.conf")
    monkeypatch.setattr(lab, "CACHE", tmp_path)
    monkeypatch.setattr(lab.subprocess, "run", standing.run)
    monkeypatch.setattr(lab.shutil, "which", lambda name: name if name in standing.programs else None)
    monkeypatch.setattr(lab.os, "geteuid", lambda: standing.user)
    monkeypatch.setattr(lab, "unified_cgroups", lambda: standing.cgroup_v2)
    monkeypatch.setattr(lab, "may_raise_limits", lambda: standing.capable)
    monkeypatch.setattr(Path, "is_file", lambda _: False)
    monkeypatch.setenv("CONTAINERS_CONF", "")
    lab.debian_sources.cache_clear()
    yield standing
    lab.debian_sources.cache_clear()


def without(machine, *programs):
    machine.programs = machine.programs - set(programs)


@pytest.mark.parametrize(
    ("absent", "cgroup_v2", "packages"),
    [
        ([], True, []),
        (["podman", "newuidmap"], True, ["podman", "uidmap"]),
        (["/usr/lib/podman/netavark"], True, ["netavark"]),
        (["crun"], True, ["crun"]),
        (["crun"], False, []),
        (["runc"], False, ["runc"]),
    ],
)
def test_only_what_is_not_there_is_missing(machine, absent, cgroup_v2, packages):
    without(machine, *absent)
    machine.cgroup_v2 = cgroup_v2
    assert lab.missing_packages(lab.container_programs()) == packages


@pytest.mark.parametrize(("user", "prefix"), [(0, ""), (1000, "sudo ")])
def test_missing_packages_are_installed_as_root(machine, user, prefix):
    without(machine, "mmdebstrap", "podman")
    machine.user = user
    lab.install_packages(lab.container_programs())
    install = f"{prefix}apt-get install -y -qq --no-install-recommends mmdebstrap podman"
    assert machine.calls == [f"{prefix}apt-get update -qq", install]


def test_a_machine_with_everything_is_left_alone(machine):
    lab.install_packages(lab.container_programs())
    assert machine.calls == []


@pytest.mark.usefixtures("machine")
def test_debian_comes_from_the_machines_own_mirrors():
    assert lab.debian_sources("trixie") == (
        "deb http://mirror.example.com/debian/ trixie main",
        "deb http://mirror.example.com/debian/ trixie-updates main",
        "deb http://mirror.example.com/debian-security/ trixie-security main",
    )


def test_a_machine_that_is_no_debian_leaves_the_choice_to_mmdebstrap(machine):
    machine.answers = {"indextargets": UBUNTU}
    assert lab.debian_sources("trixie") == ()


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("part", ["IMAGE_PACKAGES", "IMAGE_EXCLUDES", "IMAGE_MASKED"])
def test_the_tag_of_an_image_changes_with_its_recipe(monkeypatch, part):
    before = lab.image_tag("bookworm")
    monkeypatch.setattr(lab, part, (*getattr(lab, part), "another"))
    assert lab.image_tag("bookworm") != before


def test_the_tag_of_an_image_changes_with_the_mirror(machine):
    before = lab.image_tag("bookworm")
    machine.answers = {"indextargets": DEBIAN.replace("mirror.", "other.")}
    lab.debian_sources.cache_clear()
    assert lab.image_tag("bookworm") != before


@pytest.mark.usefixtures("machine")
def test_the_tag_of_an_image_names_its_release_and_stays_the_same():
    tags = {release: lab.image_tag(release) for release in lab.RELEASES}
    assert [tag for release, tag in tags.items() if not tag.startswith(f"{release}-")] == []
    assert {release: lab.image_tag(release) for release in lab.RELEASES} == tags


@pytest.mark.usefixtures("machine")
def test_a_variant_of_an_image_has_the_release_and_more_packages():
    release, packages = lab.image_parts("trixie-kernel")
    assert release == "trixie"
    assert packages == (*lab.IMAGE_PACKAGES, "linux-headers-amd64", "dkms")
    assert lab.image_tag("trixie-kernel").startswith("trixie-kernel-")
    assert lab.image_tag("trixie-kernel").rsplit("-", 1)[1] != lab.image_tag("trixie").rsplit("-", 1)[1]


@pytest.mark.parametrize("image", ["sid", "sid-kernel", "trixie-desktop"])
def test_an_image_that_there_is_not_is_refused(image):
    with pytest.raises(lab.LabError, match=rf"there is no image {image}; there are: bookworm, trixie, bookworm-kernel"):
        lab.image_parts(image)


@pytest.mark.parametrize(
    ("capable", "cgroup_v2", "lines"),
    [
        (True, True, []),
        (False, True, ["[containers]"]),
        (True, False, ["[engine]"]),
        (False, False, ["[containers]", "[engine]"]),
    ],
)
def test_podman_gets_settings_only_where_the_machine_needs_them(machine, capable, cgroup_v2, lines):
    machine.capable, machine.cgroup_v2 = capable, cgroup_v2
    lab.configure_podman()
    text = lab.CONTAINERS_CONF.read_text() if lab.CONTAINERS_CONF.exists() else ""
    assert [line for line in text.splitlines() if line.startswith("[")] == lines


def no_apt(machine):
    without(machine, "apt-get", "podman")


def no_apt_with_all_packages(machine):
    without(machine, "apt-get")


def no_sudo(machine):
    without(machine, "sudo", "podman")
    machine.user = 1000


def old_cgroups_without_root(machine):
    machine.user, machine.cgroup_v2 = 1000, False


@pytest.mark.parametrize(
    ("arrange", "sentence"),
    [
        (no_apt, "the lab needs podman, and this machine has no apt-get: install them by its own means"),
        (no_apt_with_all_packages, "the lab needs apt-get, and this machine has none: install it by the machine's own means"),
        (no_sudo, "the lab needs the packages podman: install them as root, or install sudo"),
        (
            old_cgroups_without_root,
            "this machine runs cgroup v1, where only root can start systemd containers: "
            "run make as root, or boot with systemd.unified_cgroup_hierarchy=1",
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_a_machine_lacks_is_told_in_one_sentence(machine, monkeypatch, capsys, arrange, sentence):
    arrange(machine)
    monkeypatch.setattr(sys, "argv", ["prepare.py", "prepare"])
    assert lab.main() == 1
    assert capsys.readouterr().err == f"groundwork: {sentence}\n"


def test_a_program_that_fails_is_told_with_its_last_line(machine, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "reading\nE: Unable to locate package crun\n")
    monkeypatch.setattr(lab.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(lab.LabError, match=r"`apt-get install -y` failed: E: Unable to locate package crun"):
        lab.run("apt-get", "install", "-y", "crun")
    assert machine.calls == []
