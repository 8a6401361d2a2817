"""The module reboot_readiness: why a host wants a reboot, what speaks against it, and what became of it."""

from __future__ import annotations

import json

import pytest
import reboot_readiness
from ansible.module_utils import reboot_state
from ansible.module_utils.basic import AnsibleModule

BOOT, OTHER_BOOT = "0d1e4f4c-0001-4000-8000-00000000000a", "0d1e4f4c-0002-4000-8000-00000000000b"
SOUND = {
    "proc/sys/kernel/random/boot_id": f"{BOOT}\n",
    "proc/sys/kernel/osrelease": "6.1.0-49-amd64\n",
    "boot/grub/grub.cfg": "set timeout=0\n"
    "menuentry Linux { linux /boot/vmlinuz-6.1.0-57-amd64 ; initrd /boot/initrd.img-6.1.0-57-amd64 }\n",
    "boot/vmlinuz-6.1.0-57-amd64": "kernel",
    "boot/initrd.img-6.1.0-57-amd64": "initramfs",
    "lib/modules/6.1.0-57-amd64/modules.dep": "",
}
FLAG = "run/reboot-required"
REASONS = "run/groundwork/reboot-required.d"


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setattr(reboot_readiness, "ROOT", tmp_path)

    def write_file(path, text=""):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    for path, text in SOUND.items():
        write_file(path, text)
    return write_file


@pytest.fixture
def programs(monkeypatch):
    """Stand-ins for the programs of the host, by what follows the program's name; the rest does not exist."""
    answers = {"is-system-running": (0, "running\n", ""), "list-units": (0, "", "")}
    called = []

    def run_command(_, command, **__):
        called.append(command)
        return answers[command[1]]

    monkeypatch.setattr(AnsibleModule, "run_command", run_command)
    there = ["systemctl"]
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda _, name: f"/bin/{name}" if name in there else None)
    answers |= {"called": called, "there": there}
    return answers


@pytest.fixture
def ask(write, programs, run_module):  # noqa: ARG001  # they make the host
    return lambda **options: run_module(reboot_readiness, **options)


# Whether and why


def test_a_host_without_a_flag_is_left_alone(ask, programs):
    result = ask()
    assert (result["flagged"], result["reasons"], result["problems"], result["changed"]) == (False, [], [], False)
    assert (result["boot_id"], result["running_kernel"], result["state"]) == (BOOT, "6.1.0-49-amd64", "running")
    assert len(programs["called"]) == 2


def test_a_host_without_a_flag_is_not_examined(ask, write):
    write("boot/vmlinuz-6.1.0-57-amd64", "")
    write("boot/grub/grub.cfg", "nonsense {")
    assert ask()["problems"] == []


@pytest.mark.parametrize(
    ("files", "reasons"),
    [
        ({FLAG: "*** System restart required ***\n"}, ["system: *** System restart required ***"]),
        ({FLAG: ""}, ["system: /run/reboot-required exists"]),
        ({FLAG: "x", f"{FLAG}.pkgs": "linux-base\ndbus\nlinux-base\n"}, ["packages: linux-base, dbus"]),
        ({f"{FLAG}.pkgs": "linux-base\n"}, []),  # somebody took the flag away
        ({f"{REASONS}/nouveau_blacklist": "nouveau is\nin use\n"}, ["nouveau_blacklist: nouveau is in use"]),
        ({f"{REASONS}/driver": ""}, ["driver: gives no reason"]),
        ({f"{REASONS}/.flag": "123"}, []),
        (
            {
                FLAG: "*** System restart required ***\n",
                f"{REASONS}/b": "second",
                f"{REASONS}/a": "first",
                f"{REASONS}/.mark": "1",
            },
            ["a: first", "b: second"],
        ),
        ({FLAG: "x", f"{FLAG}.pkgs": "linux-base", f"{REASONS}/a": "first"}, ["packages: linux-base", "a: first"]),
    ],
)
def test_the_flags_give_the_reasons(ask, write, files, reasons):
    for path, text in files.items():
        write(path, text)
    result = ask()
    assert (result["flagged"], result["reasons"]) == (bool(reasons), reasons)


# What speaks against it


@pytest.mark.parametrize("check", [True, False])
def test_a_flagged_host_that_is_sound_tells_its_next_kernel(ask, write, check):
    write(FLAG)
    result = ask(check=check)
    assert (result["next_kernel"], result["next_from"]) == ("6.1.0-57-amd64", "/boot/grub/grub.cfg, entry 'Linux'")
    assert (result["problems"], result["changed"]) == ([], False)


def test_a_flagged_host_tells_all_that_is_wrong(ask, write, programs):
    write(FLAG)
    write("boot/initrd.img-6.1.0-57-amd64", "")
    programs["is-system-running"] = (1, "starting\n", "")
    state, initramfs = ask()["problems"]
    assert state.startswith("systemd's state is 'starting', where running or degraded was expected")
    assert initramfs.startswith("/boot/initrd.img-6.1.0-57-amd64 is empty")


@pytest.mark.parametrize(
    ("state", "refused"), [("running", False), ("degraded", False), ("stopping", True), ("maintenance", True), ("offline", True)]
)
def test_only_a_host_whose_boot_has_ended_is_rebooted(ask, write, programs, state, refused):
    write(FLAG)
    programs["is-system-running"] = (1, f"{state}\n", "")
    assert bool(ask()["problems"]) is refused


def test_a_host_without_systemd_is_refused(ask, write, monkeypatch):
    write(FLAG)
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda *_: None)
    assert ask()["problems"][0].startswith("systemd's state is 'absent'")


def test_a_host_whose_next_kernel_is_unknown_is_refused(ask, write):
    write(FLAG)
    write("boot/grub/grub.cfg", "blscfg")
    result = ask()
    assert (result["next_kernel"], result["next_from"]) == (None, None)
    assert "/boot/grub/grub.cfg is not understood: it uses 'blscfg'" in result["problems"][0]


def test_the_inventory_tells_the_kernel_of_a_host_whose_loader_is_unknown(ask, write):
    write(FLAG)
    write("boot/grub/grub.cfg", "blscfg")
    result = ask(kernel="6.1.0-57-amd64")
    assert (result["next_kernel"], result["next_from"], result["problems"]) == ("6.1.0-57-amd64", "groundwork_reboot_kernel", [])


def test_a_host_whose_boot_waits_for_a_person_is_refused(ask, write):
    write(FLAG)
    write("boot/grub/grub.cfg", SOUND["boot/grub/grub.cfg"].replace("timeout=0", "timeout=-1"))
    assert ask()["problems"][0].startswith("GRUB shows its menu until somebody chooses, since timeout is '-1'; set GRUB_TIMEOUT")


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        ("installed", "dracut --force --kver 6.1.0-57-amd64"),
        ("not-installed", "update-initramfs -u -k 6.1.0-57-amd64"),
    ],
)
def test_the_remedy_is_a_command_of_what_builds_the_images_here(ask, write, programs, status, remedy):
    write(FLAG)
    write("boot/initrd.img-6.1.0-57-amd64", "")
    # Both are there, as where dracut took over; the package decides.
    programs["--show"] = (0, status, "")
    programs["there"] += ["dracut", "update-initramfs"]
    assert ask()["problems"][0].endswith(f"; run `{remedy}`")


def test_failed_units_are_told_by_name(ask, programs):
    programs["list-units"] = (0, "a.service loaded failed failed A long name\nb@1.mount loaded failed failed B\n", "")
    assert ask()["failed_units"] == ["a.service", "b@1.mount"]


# What became of it


def recorded(boot_id=OTHER_BOOT, kernel="6.1.0-49-amd64", failed_units=()):
    return json.dumps({"boot_id": boot_id, "kernel": kernel, "failed_units": list(failed_units)})


def test_a_host_that_was_never_drained_has_no_record(ask):
    result = ask()
    assert (result["interrupted"], result["rebooted"], result["boot_faults"]) == (False, False, [])


def test_a_host_that_was_drained_and_not_yet_booted_has_no_faults(ask, write):
    write(reboot_state.RECORD, recorded(boot_id=BOOT, kernel="6.1.0-57-amd64"))
    result = ask()
    assert (result["interrupted"], result["rebooted"], result["boot_faults"]) == (True, False, [])


def test_a_host_that_came_back_as_expected_has_no_faults(ask, write, programs):
    programs["list-units"] = (0, "old.service loaded failed failed Old\n", "")
    write(reboot_state.RECORD, recorded(failed_units=["old.service", "cured.service"]))
    result = ask()
    assert (result["interrupted"], result["rebooted"], result["boot_faults"]) == (True, True, [])


@pytest.mark.parametrize(
    ("record", "files", "fault"),
    [
        ({"kernel": "6.1.0-57-amd64"}, {}, "it runs kernel 6.1.0-49-amd64, and 6.1.0-57-amd64 was to boot"),
        (
            {"failed_units": ["other.service"]},
            {},
            "units failed that ran before: old.service; see `systemctl status old.service`",
        ),
        ({}, {f"{REASONS}/driver": "again"}, "it wants a reboot again (driver: again)"),
    ],
)
def test_each_way_in_which_a_boot_differs_is_a_fault(tmp_path, record, files, fault):
    for path, text in {reboot_state.RECORD: recorded(**{"failed_units": ["old.service"], **record}), **files}.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    now = reboot_state.Now(BOOT, "6.1.0-49-amd64", "degraded", ["old.service"])
    [found] = reboot_state.boot_faults(reboot_state.record(tmp_path), now, reboot_state.reasons(tmp_path))
    assert found.startswith(fault)


@pytest.mark.parametrize(
    ("record", "failed_before"),
    [(None, ["new.service", "old.service"]), (recorded(failed_units=["old.service"]), ["old.service"])],
)
def test_what_failed_before_the_drain_is_what_the_record_of_an_unfinished_reboot_says(
    ask, write, programs, record, failed_before
):
    """Else a unit that the first reboot broke would count as broken before the second one."""
    write(FLAG)
    programs["list-units"] = (0, "new.service loaded failed failed N\nold.service loaded failed failed O\n", "")
    if record:
        write(reboot_state.RECORD, record)
    assert ask()["failed_before"] == failed_before


def test_a_boot_that_ended_in_emergency_mode_is_a_fault(ask, write, programs):
    write(reboot_state.RECORD, recorded())
    programs["is-system-running"] = (1, "maintenance\n", "")
    assert ask()["boot_faults"][0].startswith("systemd's state is 'maintenance', where running or degraded was expected")


def test_the_module_tells_the_faults_of_the_boot(ask, write):
    write(reboot_state.RECORD, recorded(kernel="6.1.0-57-amd64"))
    result = ask()
    assert (result["rebooted"], len(result["boot_faults"])) == (True, 1)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"boot_id": "a", "kernel": "b", "failed_units": 1}'])
def test_a_damaged_record_is_refused_with_its_name(ask, write, text):
    write(reboot_state.RECORD, text)
    result = ask()
    assert result["failed"]
    assert result["msg"].startswith("/var/lib/groundwork/reboot.json, the record of an interrupted reboot, is damaged; undrain")
