"""What a change of the driver means, on a stand-in of dpkg, apt and DKMS (tests/standins/apt_host.py)."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ansible.module_utils import apt_packages, driver_plan, gpu_catalog
from ansible.module_utils.apt_packages import Change
from ansible.module_utils.driver_host import DriverError, Host
from ansible.module_utils.driver_plan import PREFERENCES, UNATTENDED, Wish
from ansible.module_utils.driver_record import DriverSet

sys.path.append(str(Path(__file__).parents[1] / "standins"))
standin = importlib.import_module("apt_host")
Deb = standin.Deb

OLD, NEW = "535.261.03", "535.309.01"
FIRST_KERNEL, SECOND_KERNEL = standin.KERNELS
NAMES = ["nvidia-kernel-dkms", "nvidia-smi", "libcuda1"]


def debs(version, **differences):
    return [
        Deb("nvidia-kernel-dkms", f"{version}-1", dkms=("nvidia-current", version), **differences),
        Deb("nvidia-smi", f"{version}-1", **differences),
        Deb("libcuda1", f"{version}-1", **differences),
    ]


def wish(version=NEW, packages=NAMES, source="nvidia-graphics-drivers", **differences):
    pins = [{"package": f"src:{source}", "version": f"{version}-*"}]
    values = {"packages": list(packages), "pins": pins, "modules": ["nvidia-current"], "source": "distribution", **differences}
    return Wish(version=version, owned=list(gpu_catalog.OWNED), **values)


@pytest.fixture
def there(tmp_path):
    """The stand-in, with the old driver installed and both on offer."""
    found = standin.DriverHost(tmp_path / "root")
    found.offered = [*debs(OLD), *debs(NEW), *debs("580.95.05")]
    for deb in debs(OLD):
        found.put(deb)
    return found


@pytest.fixture
def host(there):
    return Host(there.root, there.run, there.kernels())


def plan(host, wanted):
    return driver_plan.plan(host, wanted, apt_packages.installed(host.run))


# apt's files


def test_pins_stand_above_1000_so_that_an_older_version_is_taken():
    """R03: the whole set is pinned, not its metapackage alone."""
    pins = [{"package": "src:nvidia-graphics-drivers", "version": "580.95.05-1"}, {"package": "nvlsm", "version": "2025.*"}]
    assert re.sub(r"Explanation: .*", "Explanation: x", driver_plan.preferences(pins)) == (
        "Explanation: x\n"
        "Package: src:nvidia-graphics-drivers\nPin: version 580.95.05-1\nPin-Priority: 1001\n"
        "\n"
        "Package: nvlsm\nPin: version 2025.*\nPin-Priority: 1001\n"
    )


def test_without_pins_apt_gets_no_record_that_it_calls_invalid():
    assert driver_plan.preferences([]) == ""


def test_unattended_upgrades_keep_off_exactly_the_set():
    """R01. unattended-upgrades matches from the start of a name, without the architecture."""
    text = driver_plan.unattended(["libcuda1:i386", "libcuda1", "libnvidia-ml1", "libx+y.so"])
    patterns = re.findall(r'^  "(.+)";$', text, re.MULTILINE)
    assert patterns == ["^libcuda1$", "^libnvidia-ml1$", r"^libx\+y\.so$"]
    assert "Unattended-Upgrade::Package-Blacklist {\n" in text
    assert not any(re.match(pattern, name) for pattern in patterns for name in ("libnvidia-ml10", "alibcuda1", "libxxy-so"))
    assert re.match(patterns[2], "libx+y.so")


# What belongs to a driver


@pytest.mark.parametrize(
    ("name", "owned"),
    [
        ("libcuda1", True),
        ("libcuda1:i386", True),
        ("nvidia-utils-570-server", True),
        ("linux-modules-nvidia-580-generic", True),
        ("nvidia-container-toolkit", False),
        ("libnvidia-container1", False),
        ("nvidia-cuda-toolkit", False),
        ("nvidia-cuda-mps", True),
        ("cuda-toolkit-12-8", False),
        ("libcuda10", False),
        ("my-nvidia-monitor", False),
    ],
)
def test_the_set_is_known_by_the_names_of_its_packages(name, owned):
    assert wish().owns(name) is owned


# Planning


def test_a_plan_has_what_moves_and_what_is_asked_for(host, there):
    wanted = wish(packages=[*NAMES, "nvidia-persistenced"])
    there.offered.append(Deb("nvidia-persistenced", "535.171.04-1", source="nvidia-persistenced"))
    assert {name: change[:2] for name, change in plan(host, wanted).items()} == {
        "nvidia-kernel-dkms": ("535.261.03-1", "535.309.01-1"),
        "nvidia-smi": ("535.261.03-1", "535.309.01-1"),
        "libcuda1": ("535.261.03-1", "535.309.01-1"),
        "nvidia-persistenced": (None, "535.171.04-1"),
    }


def test_a_plan_takes_the_wished_version_and_not_the_newest(host):
    """R03: a newer branch is on offer."""
    assert {change.after for change in plan(host, wish()).values()} == {"535.309.01-1"}


def test_an_older_version_is_planned_like_a_newer_one(there, host):
    for deb in debs("580.95.05"):
        there.put(deb)
    assert plan(host, wish(OLD))["libcuda1"][:2] == ("580.95.05-1", "535.261.03-1")


def test_what_is_installed_of_the_set_moves_along_though_nobody_asked_for_it(host):
    assert plan(host, wish(packages=["nvidia-kernel-dkms"]))["libcuda1"][:2] == ("535.261.03-1", "535.309.01-1")


def test_what_stays_as_it_is_is_part_of_the_set(host, there):
    there.put(Deb("nvidia-settings", "535.171.04-1", source="nvidia-settings"))
    assert plan(host, wish(OLD)) == {
        "nvidia-kernel-dkms": Change("535.261.03-1", "535.261.03-1"),
        "nvidia-smi": Change("535.261.03-1", "535.261.03-1"),
        "libcuda1": Change("535.261.03-1", "535.261.03-1"),
        "nvidia-settings": Change("535.171.04-1", "535.171.04-1"),
    }


def test_planning_writes_nothing_and_leaves_other_preferences_in_force(host, there):
    there.write(
        "etc/apt/preferences.d/groundwork-nvidia-driver", "Package: src:nvidia-graphics-drivers\nPin: version 535.261.03-*\n"
    )
    there.write("etc/apt/preferences.d/mine", "Package: other\nPin: version 1\nPin-Priority: 1001\n")
    (there.root / "etc/apt/preferences.d/folder").mkdir()
    seen = []

    def look(argv):
        folder = (
            Path(next(word for word in argv if "PreferencesParts" in word).partition("=")[2]) if argv[0] == "apt-get" else None
        )
        if folder:
            seen.append({path.name: path.read_text() for path in folder.iterdir()})

    there.fails = look
    before = there.tree()
    plan(host, wish())
    assert there.tree() == before
    assert seen == [
        {
            "mine": "Package: other\nPin: version 1\nPin-Priority: 1001\n",
            "groundwork-nvidia-driver": driver_plan.preferences(wish().pins),
        }
    ]


def server(branch, version, source=None):
    source = source or f"nvidia-graphics-drivers-{branch}-server"
    return [Deb(f"nvidia-{name}-{branch}-server", f"{version}-0ubuntu0.22.04.1", source) for name in ("headless", "utils")]


BRANCH_WISH = ["nvidia-headless-580-server", "nvidia-utils-580-server"]


@pytest.mark.parametrize("state", ["ii", "hi"], ids=["not held", "held"])
@pytest.mark.parametrize(
    "newest", ["570.133.20", "570.172.08"], ids=["no update of the old branch", "an update of the old branch"]
)
def test_a_change_of_branch_replaces_the_packages_of_the_old_one(tmp_path, state, newest):
    """R04, R06: the old branch conflicts, is held, and has updates of its own; apt 2.6 and 3.0 refuse both."""
    there = standin.DriverHost(tmp_path / "root")
    for deb in server("570", "570.133.20"):
        there.put(deb, state)
    there.offered = [*server("570", newest), *server("580", "580.95.05")]
    there.conflicts = {new: ["nvidia-headless-570-server", "nvidia-utils-570-server"] for new in BRANCH_WISH}
    wanted = wish("580.95.05", BRANCH_WISH, "nvidia-graphics-drivers-580-server")
    assert {name: change[:2] for name, change in plan(Host(there.root, there.run, []), wanted).items()} == {
        "nvidia-headless-570-server": ("570.133.20-0ubuntu0.22.04.1", None),
        "nvidia-utils-570-server": ("570.133.20-0ubuntu0.22.04.1", None),
        "nvidia-headless-580-server": (None, "580.95.05-0ubuntu0.22.04.1"),
        "nvidia-utils-580-server": (None, "580.95.05-0ubuntu0.22.04.1"),
    }


# Refusals


def test_a_package_that_no_source_has_is_named(host):
    with pytest.raises(DriverError, match=r"apt knows no package nvidia-nosuch\. Remedy: add the source that has it"):
        plan(host, wish(packages=[*NAMES, "nvidia-nosuch"]))


def test_a_version_that_no_source_has_is_refused_with_what_apt_would_take(host, there):
    """The pins match nothing, and apt would install the newest."""
    with pytest.raises(DriverError) as caught:
        plan(host, wish("535.288.01"))
    assert str(caught.value).startswith(
        "no source has driver 535.288.01; apt would install nvidia-kernel-dkms 580.95.05-1, nvidia-smi 580.95.05-1, "
        "libcuda1 580.95.05-1. Nothing was changed. Remedy: "
    )
    assert there.ran("apt-get") == []


def test_what_apt_says_of_a_plan_without_solution_is_passed_on(host, there):
    error = "E: Unable to correct problems, you have held broken packages.\n"
    there.fails = lambda argv: (100, "", error) if argv[0] == "apt-get" else None
    with pytest.raises(DriverError) as caught:
        plan(host, wish())
    assert str(caught.value) == (
        f"apt can't install driver 535.309.01: {error.strip()}. Remedy: `apt-cache policy {' '.join(NAMES)}` shows "
        "which versions there are; choose one that has all of them"
    )


@pytest.mark.parametrize("ask", [driver_plan.plan, driver_plan.plan_removal], ids=["upgrade", "removal"])
def test_others_are_not_removed(host, there, ask):
    """R04."""
    there.put(Deb("hashcat", "6.2.6-1", source="hashcat"))
    there.put(Deb("blender", "3.4.1-1", source="blender"))
    there.users = {"libcuda1": ["hashcat", "blender"]}
    packages = apt_packages.installed(host.run)
    with pytest.raises(
        DriverError, match=r"apt would remove blender, hashcat, which are not part of the driver\. Nothing was cha"
    ):
        ask(host, wish(), packages)


@pytest.mark.parametrize(("state", "refused"), [("hi", True), ("ii", False)])
def test_others_move_along_only_if_nobody_holds_them(host, there, state, refused):
    there.put(Deb("dkms", "3.0.10-8", source="dkms"), state)
    there.offered.append(Deb("dkms", "3.2.2-1", source="dkms"))
    said = "Inst dkms [3.0.10-8] (3.2.2-1 Debian:13/stable [all])\n"
    there.fails = lambda argv: (0, said, "") if "--simulate" in argv else None
    if refused:
        with pytest.raises(
            DriverError, match=r"apt would change dkms, which you hold\. Nothing was changed\. Remedy: `apt-mark unhold`"
        ):
            plan(host, wish())
    else:
        assert plan(host, wish())["dkms"] == Change("3.0.10-8", "3.2.2-1", "Debian:13/stable")


def test_packages_that_are_asked_for_by_name_are_no_strangers(host, there):
    there.put(Deb("dkms", "3.0.10-8", source="dkms"), "hi")
    there.offered.append(Deb("dkms", "3.2.2-1", source="dkms"))
    assert plan(host, wish(packages=[*NAMES, "dkms"]))["dkms"].after == "3.2.2-1"


# Removal


def test_a_removal_takes_all_of_the_driver_and_nothing_else(host, there):
    there.put(Deb("nvidia-container-toolkit", "1.20.0-1", source="nvidia-container-toolkit"))
    there.put(Deb("libcuda1", f"{OLD}-1", architecture="i386"), "hi")
    changes = driver_plan.plan_removal(host, wish(), apt_packages.installed(host.run))
    assert {name: change.after for name, change in changes.items()} == dict.fromkeys([*NAMES, "libcuda1:i386"])


def test_a_host_without_driver_has_nothing_to_remove(tmp_path):
    there = standin.DriverHost(tmp_path / "root")
    assert driver_plan.plan_removal(Host(there.root, there.run, []), wish(), {}) == {}
    assert there.calls == []


def test_a_removal_that_apt_refuses_says_what_to_do(host, there):
    there.fails = lambda argv: (100, "", "E: Unmet dependencies\n") if argv[0] == "apt-get" else None
    with pytest.raises(DriverError, match=r"apt can't remove the driver: E: Unmet dependencies\. Nothing was changed\. Remedy: "):
        driver_plan.plan_removal(host, wish(), apt_packages.installed(host.run))


# Sets


def test_a_new_set_holds_its_packages_and_leaves_others_free():
    changes = {
        "nvidia-smi": Change("1-1", "2-1"),
        "libcuda1:i386": Change(None, "2-1"),
        "nvidia-old": Change("1-1", None),
        "linux-headers-amd64": Change(None, "6.1-1"),
        "libfreebl3": Change(None, "3-1"),
    }
    wanted = wish("2", ["nvidia-smi", "linux-headers-amd64"])
    found = driver_plan.new_set(wanted, changes)
    assert found.holds == ["libcuda1:i386", "linux-headers-amd64", "nvidia-smi"]
    assert found.packages == {name: change.after for name, change in changes.items()}
    assert found.config == {
        PREFERENCES: driver_plan.preferences(wanted.pins),
        UNATTENDED: driver_plan.unattended(["libcuda1", "linux-headers-amd64", "nvidia-smi"]),
    }
    assert (found.version, found.modules, found.wish) == ("2", ["nvidia-current"], wanted.record())
    assert "owned" not in found.wish


def present(host, goal, known=None, wanted=None):
    return driver_plan.present_set(host, goal, wanted or wish(), apt_packages.installed(host.run), known)


def test_the_present_set_of_a_host_that_nobody_managed(host, there):
    there.states["libcuda1"] = "hi"
    there.write(PREFERENCES, "mine\n")
    there.put(Deb("nvidia-settings", "550.1-1", source="nvidia-settings"))
    goal = DriverSet(packages={"nvidia-new": "1", "libcuda1": "1"}, modules=["nvidia-current"])
    assert present(host, goal) == DriverSet(
        version=OLD,
        packages={
            "libcuda1": "535.261.03-1",
            "nvidia-kernel-dkms": "535.261.03-1",
            "nvidia-new": None,
            "nvidia-settings": "550.1-1",
            "nvidia-smi": "535.261.03-1",
        },
        holds=["libcuda1"],
        config={PREFERENCES: "mine\n", UNATTENDED: None},
        sources=[["nvidia-current", OLD]],
        modules=["nvidia-current"],
    )


def test_what_the_record_knows_of_the_present_set_stays_known(host):
    known = DriverSet(version="known", modules=["m"], debs={"a": {"file": "f", "sha256": "s"}}, wish={"version": "known"})
    found = present(host, DriverSet(), known)
    assert (found.version, found.modules, found.debs, found.wish) == ("known", ["m"], known.debs, known.wish)


def test_a_host_without_driver_has_an_empty_set(tmp_path):
    there = standin.DriverHost(tmp_path / "root")
    goal = DriverSet(packages={"nvidia-smi": "1", "libdrm2": "1"})
    found = driver_plan.present_set(Host(there.root, there.run, []), goal, wish(), {}, None)
    # What comes along and is no driver's stays when the driver goes.
    assert found == DriverSet(packages={"nvidia-smi": None}, config={PREFERENCES: None, UNATTENDED: None})


@pytest.mark.parametrize("known_to_dkms", [True, False])
def test_sources_of_modules_are_those_that_the_driver_brought_and_dkms_knows(host, there, known_to_dkms):
    there.put(Deb("zfs-dkms", "2.1-1", source="zfs-linux", dkms=("zfs", "2.1")))
    there.write("usr/src/own-1/dkms.conf", 'PACKAGE_NAME="own"\nPACKAGE_VERSION="1"\n')
    (there.root / "var/lib/dkms/own/1").mkdir(parents=True)
    if not known_to_dkms:
        there.run(["dkms", "remove", "-m", "nvidia-current", "-v", OLD, "--all"])
    assert present(host, DriverSet()).sources == ([["nvidia-current", OLD]] if known_to_dkms else [])


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("535.261.03-1~deb12u1", "535.261.03"),
        ("1:580.95.05-1", "580.95.05"),
        ("580.95.05-0ubuntu0.22.04.1", "580.95.05"),
        ("580.95.05", "580.95.05"),
    ],
)
def test_nvidias_version_has_neither_epoch_nor_revision(version, upstream):
    assert driver_plan.upstream(version) == upstream


# In what a host differs from a set


@pytest.fixture
def goal(there):
    there.states.update(dict.fromkeys(NAMES, "hi"))
    there.write(PREFERENCES, "pins\n")
    return DriverSet(
        version=OLD,
        packages={**dict.fromkeys(NAMES, f"{OLD}-1"), "nvidia-gone": None},
        holds=NAMES,
        config={PREFERENCES: "pins\n", UNATTENDED: None},
        sources=[["nvidia-current", OLD]],
        modules=["nvidia-current"],
    )


def faults(host, goal):
    return driver_plan.faults(host, goal, apt_packages.installed(host.run))


def test_a_host_in_order_has_no_faults(host, goal):
    assert faults(host, goal) == []


def upgrade(there):
    there.put(Deb("libcuda1", f"{NEW}-1"), "hi")


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (upgrade, "libcuda1 is 535.309.01-1 (hi), 535.261.03-1 is wanted"),
        (lambda there: there._remove("libcuda1"), "libcuda1 is not installed, 535.261.03-1 is wanted"),
        (lambda there: there.states.update(libcuda1="hF"), "libcuda1 is 535.261.03-1 (hF), 535.261.03-1 is wanted"),
        (lambda there: there.states.update(libcuda1="ii"), "libcuda1 is not held"),
        (lambda there: there.put(Deb("nvidia-gone", "1-1")), "nvidia-gone 1-1 is installed, and does not belong to the set"),
        (lambda there: there.write(PREFERENCES, "other\n"), f"{PREFERENCES} differs"),
        (lambda there: (there.root / PREFERENCES.lstrip("/")).unlink(), f"{PREFERENCES} differs"),
        (lambda there: there.write(UNATTENDED, ""), f"{UNATTENDED} differs"),
        (
            lambda there: (there.root / f"lib/modules/{FIRST_KERNEL}/updates/dkms/nvidia-current.ko").unlink(),
            f"kernel {FIRST_KERNEL} has no module, 535.261.03 is wanted",
        ),
        (
            lambda there: there.write(f"lib/modules/{SECOND_KERNEL}/updates/dkms/nvidia-current.ko", "525.1"),
            f"kernel {SECOND_KERNEL} has module version 525.1 proprietary, 535.261.03 is wanted",
        ),
    ],
)
def test_each_way_to_differ_is_told(host, there, goal, spoil, fault):
    """R01: drift of packages, R07: holds that were cleared."""
    spoil(there)
    assert fault in faults(host, goal)


def test_any_of_the_names_of_the_module_will_do(host, goal):
    assert faults(host, replace(goal, modules=["nvidia", "nvidia-current"])) == []


@pytest.mark.parametrize("differences", [{"version": ""}, {"sources": []}], ids=["no driver", "modules by the distribution"])
def test_modules_that_dkms_does_not_build_are_not_looked_for(host, there, goal, differences):
    there.run(["dkms", "remove", "-m", "nvidia-current", "-v", OLD, "--all"])
    assert faults(host, replace(goal, **differences)) == []


@pytest.mark.parametrize(
    ("flavour", "module", "fault"),
    [
        ("open", OLD, f"has module version {OLD} proprietary, {OLD} open is wanted"),
        ("proprietary", f"{OLD} open", f"has module version {OLD} open, {OLD} proprietary is wanted"),
        ("open", f"{OLD} open", None),
        ("proprietary", OLD, None),
        ("", f"{OLD} open", None),
    ],
)
def test_modules_must_be_those_of_the_wished_flavour(host, goal, flavour, module, fault):
    """Open and proprietary modules have one name and one version; the license tells."""
    (host.root / f"lib/modules/{FIRST_KERNEL}/updates/dkms/nvidia-current.ko").write_text(module)
    found = [text for text in faults(host, replace(goal, wish={"flavour": flavour})) if FIRST_KERNEL in text]
    assert found == ([f"kernel {FIRST_KERNEL} {fault}"] if fault else [])


def test_signed_modules_of_packages_are_looked_for_in_the_kernels_that_need_them(host, there, goal):
    there.run(["dkms", "remove", "-m", "nvidia-current", "-v", OLD, "--all"])
    there.put(Deb("linux-modules-nvidia-535-generic", "5.15.0-190.200", source="linux-restricted-modules"))
    packages = {**goal.packages, "linux-modules-nvidia-535-generic": "5.15.0-190.200"}
    signed = replace(goal, sources=[], packages=packages)
    assert faults(host, signed) == []
    host.signed_kernels = [SECOND_KERNEL]
    assert faults(host, signed) == [f"kernel {SECOND_KERNEL} has no module, {OLD} is wanted"]
    assert faults(host, replace(signed, packages=goal.packages)) == []
