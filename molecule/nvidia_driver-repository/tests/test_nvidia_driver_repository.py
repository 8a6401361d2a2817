"""After failed upgrades, a change of branch, a removal and the way back from it without any source."""

import json


def test_the_driver_is_the_one_before_the_removal(host):
    record = json.loads(host.file("/var/lib/groundwork/driver.json").content_string)
    assert (record["current"]["version"], record["previous"]["version"]) == ("590.48.01", "")


def test_open_modules_of_the_new_branch_are_in_place(host):
    kernel = host.check_output("ls /lib/modules")
    assert host.check_output(f"modinfo -k {kernel} -F version nvidia") == "590.48.01"
    assert host.check_output("dkms status").startswith("nvidia/590.48.01, ")


def test_unattended_upgrades_would_leave_the_set_alone(host):
    blacklist = host.check_output("apt-config dump Unattended-Upgrade::Package-Blacklist")
    assert '"^libcuda1$"' in blacklist
    assert '"^nvidia-smi$"' in blacklist


def test_other_packages_are_not_held(host):
    assert [name for name in host.check_output("apt-mark showhold").split() if "nvidia" not in name and name != "libcuda1"] == []


def test_nothing_is_left_of_interrupted_work(host):
    store = host.file("/var/lib/groundwork/nvidia_driver")
    assert sorted(store.listdir()) == ["debs", "modules"]
