"""The files and the validation of the role nouveau_blacklist, rendered by Ansible's own engine with the role's own defaults."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ROLE = Path(__file__).parents[2] / "roles/nouveau_blacklist"
VALIDATE = yaml.safe_load((ROLE / "tasks/validate.yml").read_text())[0]["ansible.builtin.assert"]


def templar(**settings):
    files = [ROLE / "defaults/main.yml", ROLE / "vars/main.yml"]
    defaults, internal = (DataLoader().load_from_file(str(path), trusted_as_template=True) for path in files)
    return Templar(loader=DataLoader(), variables=defaults | internal | settings)


def lines(template, **settings):
    text = templar(**settings).template(trust_as_template((ROLE / "templates" / template).read_text()))
    return [line for line in text.splitlines() if not line.startswith("#")]


def is_accepted(**settings):
    conditions = [trust_as_template(condition) for condition in VALIDATE["that"]]
    return all(templar(**settings).evaluate_conditional(condition) for condition in conditions)


def test_the_modules_are_blacklisted_and_forbidden():
    assert sorted(lines("modprobe.conf.j2")) == [
        "blacklist nouveau",
        "blacklist nova_core",
        "blacklist nova_drm",
        "install nouveau /bin/false",
        "install nova_core /bin/false",
        "install nova_drm /bin/false",
        "options nouveau modeset=0",
    ]


@pytest.mark.parametrize("forbid", [False, "false"])
def test_without_forbid_the_modules_can_be_loaded_by_name(forbid):
    assert lines("modprobe.conf.j2", nouveau_blacklist_modules=["nouveau"], nouveau_blacklist_forbid=forbid) == [
        "blacklist nouveau",
        "options nouveau modeset=0",
    ]


def test_the_option_of_nouveau_is_set_for_nouveau_only():
    assert lines("modprobe.conf.j2", nouveau_blacklist_modules=["nvidiafb"]) == [
        "blacklist nvidiafb",
        "install nvidiafb /bin/false",
    ]


def test_dracut_copies_the_blacklist_and_leaves_the_modules_out():
    assert lines("dracut.conf.j2") == [
        'install_items+=" /etc/modprobe.d/groundwork-nouveau.conf "',
        'omit_drivers+=" nouveau nova_core nova_drm "',
    ]


def test_dracut_is_given_names_as_the_kernel_spells_them():
    """It would turn the first dash only, and then not find the module (dracut 106)."""
    assert lines("dracut.conf.j2", nouveau_blacklist_modules=["i2c-nvidia-gpu"])[1] == 'omit_drivers+=" i2c_nvidia_gpu "'


@pytest.mark.parametrize("template", ["modprobe.conf.j2", "dracut.conf.j2"])
def test_the_files_say_who_owns_them(template):
    text = (ROLE / "templates" / template).read_text()
    assert text.startswith("# Managed by Groundwork (role nouveau_blacklist). Changes here are overwritten.\n")


def test_the_directories_of_the_files_are_made_where_the_host_has_none():
    tasks = yaml.safe_load((ROLE / "tasks/main.yml").read_text())
    (written,) = [task["write_files"] for task in tasks if "write_files" in task]
    needed = {str(Path(templar().template(trust_as_template(file["path"]))).parent) for file in written["files"]}
    assert needed == {"/etc/modprobe.d", "/etc/dracut.conf.d"}
    assert needed == {directory["path"] for directory in written["directories"]}


@pytest.mark.parametrize("names", [["nouveau"], ["nova-core", "nova_drm"], ["i2c_nvidia_gpu"]])
def test_names_of_modules_are_accepted(names):
    assert is_accepted(nouveau_blacklist_modules=names)


@pytest.mark.parametrize(
    "names", [[], [""], ["nouveau.ko"], ["nouveau nova_core"], ["nouveau\n"], ["nouveau", "x\ninstall ext4 /bin/false"], ["*"]]
)
def test_what_is_no_name_of_a_module_is_refused(names):
    assert not is_accepted(nouveau_blacklist_modules=names)


def test_no_module_needs_to_be_named_to_take_the_blacklist_away():
    assert is_accepted(nouveau_blacklist_modules=[], nouveau_blacklist_state="absent")
