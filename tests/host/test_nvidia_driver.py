"""What holds on each host with the driver of Groundwork: the packages, their holds and pins, and the modules are one set."""

import json

import pytest


@pytest.fixture(scope="module")
def record(host):
    return json.loads(host.file("/var/lib/groundwork/driver.json").content_string)


@pytest.fixture(scope="module")
def version(record):
    if not record["wanted"]["version"]:
        pytest.skip("no driver is wanted on this host")
    return record["wanted"]["version"]


@pytest.fixture(scope="module")
def packages(host):
    """Name, version and state of each package of which the record speaks."""
    lines = host.check_output("dpkg-query --show --showformat='${Package} ${Version} ${db:Status-Abbrev}\\n'").splitlines()
    return {name: (number, state) for name, number, state in (line.split() for line in lines)}


def test_no_change_has_been_interrupted(record):
    assert record["transaction"] is None


def test_each_package_is_the_one_of_the_set_and_in_order(record, packages):
    wanted = record["current"]["packages"]
    assert {name: packages[name][0] for name in wanted if name in packages} == {
        name: number for name, number in wanted.items() if number
    }
    assert [name for name in wanted if name in packages and packages[name][1] not in ("ii", "hi")] == []


@pytest.mark.usefixtures("version")
def test_the_set_is_held(host, record):
    assert set(record["current"]["holds"]) <= set(host.check_output("apt-mark showhold").split())
    assert len(record["current"]["holds"]) >= 3


@pytest.mark.usefixtures("version")
def test_no_upgrade_of_the_system_would_move_it(host, record):
    moved = {line.split()[1] for line in host.check_output("apt-get --simulate dist-upgrade").splitlines() if line[:5] == "Inst "}
    assert moved & set(record["current"]["holds"]) == set()


def test_each_kernel_that_may_boot_has_the_module(host, version, record):
    kernels = host.check_output("cd /lib/modules && for k in *; do if [ -e /boot/vmlinuz-$k ]; then echo $k; fi; done").split()
    module = record["current"]["modules"][0]
    assert {kernel: host.check_output(f"modinfo -k {kernel} -F version {module}") for kernel in kernels} == dict.fromkeys(
        kernels, version
    )


def test_packages_build_modules_again(host):
    """The mark that keeps their scripts from it exists during a change only."""
    assert not host.file("/etc/dkms/no-autoinstall").exists


def test_the_loaded_module_is_of_the_set_or_a_reboot_is_flagged(host, version):
    loaded = host.file("/sys/module/nvidia/version")
    if not loaded.exists:
        pytest.skip("no NVIDIA module is loaded on this host")
    flagged = host.file("/run/groundwork/reboot-required.d/nvidia_driver").exists
    assert loaded.content_string.strip() == version or flagged
