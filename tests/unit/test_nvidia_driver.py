"""The module nvidia_driver on a made-up host, whose dpkg, apt and DKMS are a stand-in (tests/standins/apt_host.py)."""

from __future__ import annotations

import fcntl
import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nvidia_driver
import pytest
from ansible.module_utils import driver_record
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.driver_plan import PREFERENCES, UNATTENDED
from ansible.module_utils.driver_record import Record

sys.path.append(str(Path(__file__).parents[1] / "standins"))
standin = importlib.import_module("apt_host")
Deb = standin.Deb

OLD, NEW, NEWEST = "535.261.03", "535.309.01", "580.95.05"
KERNELS = standin.KERNELS
NAMES = ["libcuda1", "nvidia-kernel-dkms", "nvidia-smi"]


def debs(version):
    return [
        Deb("libcuda1", f"{version}-1"),
        Deb("nvidia-kernel-dkms", f"{version}-1", dkms=("nvidia-current", version)),
        Deb("nvidia-smi", f"{version}-1"),
    ]


class _Driver:
    """The host, and the module that is run on it."""

    def __init__(self, root, run_module):
        self.there = standin.DriverHost(root)
        self.there.offered = [deb for version in (OLD, NEW, NEWEST) for deb in debs(version)]
        self._run = run_module
        self.environments = []

    def run(self, version="", check=False, **options):
        pins = [{"package": "src:nvidia-graphics-drivers", "version": f"{version}-*"}]
        usual = {"version": version, "packages": NAMES, "pins": pins, "modules": ["nvidia-current"], "lock_timeout": 0}
        return self._run(nvidia_driver, check=check, **{**usual, **options})

    def back(self, **options):
        return self._run(nvidia_driver, state="previous", **options)

    def remove(self, **options):
        return self._run(nvidia_driver, state="absent", **options)

    def run_command(self, command, environ_update=None, **_):
        self.environments.append(environ_update)
        return self.there.run([Path(command[0]).name, *command[1:]])

    def record(self):
        return driver_record.read(self.there.root)

    def system(self):
        """Return the files of the system, without Groundwork's own, and without directories."""
        own = ("var/lib/groundwork", "var/log", "run/lock")
        return {name: text for name, text in self.there.tree().items() if text != "directory" and not name.startswith(own)}

    def interrupt(self, *beginning):
        """Kill the next run when it comes to a command that begins so."""

        def kill(argv):
            if argv[: len(beginning)] == list(beginning) and "--simulate" not in argv:
                raise KeyboardInterrupt

        self.there.fails = kill


@pytest.fixture
def driver(tmp_path, run_module, monkeypatch):
    found = _Driver(tmp_path / "root", run_module)
    monkeypatch.setattr(nvidia_driver, "ROOT", found.there.root)
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda _, program, **__: f"/usr/bin/{program}")
    monkeypatch.setattr(AnsibleModule, "run_command", lambda _, command, **options: found.run_command(command, **options))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**12))
    # Records wait for a disk that others write to.
    monkeypatch.setattr("os.fsync", lambda _: None)
    return found


@pytest.fixture
def old(driver):
    """The host with a driver that Groundwork installed."""
    assert driver.run(OLD)["changed"]
    return driver


def in_place(driver, version):
    assert driver.there.versions() == dict.fromkeys(NAMES, f"{version}-1 hi")
    assert [driver.there.module(kernel) for kernel in KERNELS] == [version, version]


def killed(driver, *beginning, version=NEW):
    driver.interrupt(*beginning)
    with pytest.raises(KeyboardInterrupt):
        driver.run(version)
    driver.there.fails = lambda _: None
    assert driver.record().transaction is not None


# Arguments


@pytest.mark.parametrize("options", [{}, {"version": NEW}, {"packages": NAMES}, {"version": "", "packages": NAMES}])
def test_a_driver_needs_version_and_packages(driver, run_module, options):
    result = run_module(nvidia_driver, **options)
    assert result["failed"]
    assert "needs version, NVIDIA's version of the driver, and packages" in result["msg"]
    assert driver.there.calls == []


# A first driver, an upgrade, the same again


def test_a_first_driver_is_installed_with_everything_that_keeps_it(driver):
    result = driver.run(OLD)
    assert (result["before"], result["after"], result["previous"], result["undone"]) == ("", OLD, "", False)
    assert result["packages"] == {name: {"before": None, "after": f"{OLD}-1"} for name in NAMES}
    assert result["no_way_back"] == []
    assert set(result["seconds"]) == {"fetch packages", "build modules", "exchange", "packages", "modules"}
    in_place(driver, OLD)


def test_the_same_again_changes_nothing_and_asks_no_apt(old):
    """R06: the packages are held, by this very module."""
    before = old.there.tree()
    old.there.calls.clear()
    result = old.run(OLD)
    assert (result["changed"], result["before"], result["after"], result["packages"]) == (False, OLD, OLD, {})
    assert old.there.tree() == before
    assert {call[0] for call in old.there.calls} == {"dpkg-query", "modinfo"}


def test_an_upgrade_moves_what_is_held(old):
    """R06."""
    result = old.run(NEW)
    assert (result["changed"], result["before"], result["after"], result["previous"]) == (True, OLD, NEW, OLD)
    in_place(old, NEW)


def test_the_diff_has_packages_holds_and_aptes_files(old):
    old.there.states["nvidia-smi"] = "ii"
    diff = old.run(NEW)["diff"]
    assert diff[0] == {
        "before_header": "packages",
        "after_header": "packages",
        "before": f"libcuda1 {OLD}-1 held\nnvidia-kernel-dkms {OLD}-1 held\nnvidia-smi {OLD}-1\n",
        "after": f"libcuda1 {NEW}-1 held\nnvidia-kernel-dkms {NEW}-1 held\nnvidia-smi {NEW}-1 held\n",
    }
    assert [entry["before_header"] for entry in diff[1:]] == [PREFERENCES]
    assert f"Pin: version {OLD}-*" in diff[1]["before"]
    assert f"Pin: version {NEW}-*" in diff[1]["after"]


@pytest.mark.parametrize("version", [OLD, NEW])
def test_check_mode_tells_the_same_and_changes_no_file(old, version):
    """The lost hold makes a difference for either version."""
    old.there.states["libcuda1"] = "ii"
    before = old.there.tree()
    announced = old.run(version, check=True)
    assert old.there.tree() == before
    done = old.run(version)
    told = ("changed", "before", "after", "packages", "diff", "undone", "reboot_reason")
    assert {key: announced[key] for key in told} == {key: done[key] for key in told}


def test_check_mode_works_on_a_host_that_has_nothing_yet(driver):
    before = driver.there.tree()
    announced = driver.run(OLD, check=True)
    assert driver.there.tree() == before
    assert (announced["changed"], announced["after"]) == (True, OLD)
    assert announced["diff"][0]["after"].splitlines()[0] == f"libcuda1 {OLD}-1 held"
    assert [entry["after_header"] for entry in announced["diff"]] == ["packages", PREFERENCES, UNATTENDED]


def test_programs_ask_nothing_and_speak_english(old):
    wanted = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1", "LC_ALL": "C.UTF-8", "LANGUAGE": "C"}
    assert old.environments
    assert all(environment == wanted for environment in old.environments)


def test_the_log_has_each_command_with_its_output_and_steps(old):
    log = old.there.read(nvidia_driver.LOG)
    assert " begin: exchange\n" in log
    assert "$ apt-get --yes" in log
    assert "dpkg-query" not in log


def test_a_wish_in_other_words_changes_the_record_alone(old):
    before = old.system()
    result = old.run(OLD, source="distribution")
    assert (result["changed"], result["exchanged"], result["packages"]) == (False, False, {})
    assert old.system() == before
    assert old.record().current.wish["source"] == "distribution"
    assert old.record().previous.version == ""


def test_only_a_run_that_moves_packages_says_that_it_exchanged_them(old):
    assert [old.run(version)["exchanged"] for version in (NEW, NEW, OLD)] == [True, False, True]


# Drift


def unattended_upgrade(there):
    there.put(Deb("libcuda1", f"{NEW}-1"), "hi")


@pytest.mark.parametrize(
    "spoil",
    [
        unattended_upgrade,
        lambda there: there.states.update(libcuda1="ii"),
        lambda there: there.write(PREFERENCES, "mine\n"),
        lambda there: (there.root / UNATTENDED.lstrip("/")).unlink(),
        lambda there: (there.root / f"lib/modules/{KERNELS[0]}/updates/dkms/nvidia-current.ko").unlink(),
        lambda there: there.write(f"lib/modules/{KERNELS[0]}/updates/dkms/nvidia-current.ko", "525.1"),
        lambda there: there._remove("nvidia-smi"),
    ],
    ids=["package moved", "hold cleared", "pins changed", "blacklist gone", "module gone", "module replaced", "package gone"],
)
def test_whatever_moved_is_brought_back(old, spoil):
    """R01, R07."""
    before = old.system()
    spoil(old.there)
    assert old.run(OLD)["changed"]
    in_place(old, OLD)
    assert old.system() == before
    assert old.run(OLD)["changed"] is False


def test_a_new_kernel_gets_the_modules(old):
    old.there.write("boot/vmlinuz-6.1.0-58-amd64", "")
    (old.there.root / "lib/modules/6.1.0-58-amd64/build").mkdir(parents=True)
    old.run(OLD)
    assert old.there.module("6.1.0-58-amd64") == OLD


def test_packages_that_dpkg_left_half_way_are_not_built_upon(old):
    old.there.states["nvidia-kernel-dkms"] = "hF"
    result = old.run(NEW)
    assert result["msg"] == (
        "dpkg has left packages half-way: nvidia-kernel-dkms (hF). Nothing was changed. Remedy: `dpkg --configure -a`, and "
        "`apt-get --fix-broken install` if that is not enough"
    )
    assert old.there.changed("apt-get")[-1][-1].endswith(f"nvidia-smi_{OLD}-1_amd64.deb")


# The way back


def test_going_back_needs_no_source_and_is_the_way_forth_reversed(old):
    old.run(NEW)
    old.there.offered = []
    result = old.back()
    assert (result["before"], result["after"], result["previous"]) == (NEW, OLD, NEW)
    assert result["packages"]["libcuda1"] == {"before": f"{NEW}-1", "after": f"{OLD}-1"}
    in_place(old, OLD)
    assert old.there.read(PREFERENCES).count(f"{OLD}-*") == 1


def test_a_first_driver_is_taken_away_again(old):
    result = old.back()
    assert (result["before"], result["after"]) == (OLD, "")
    assert old.there.versions() == {}
    assert (old.there.read(PREFERENCES), old.there.read(UNATTENDED)) == (None, None)


def test_a_host_whose_driver_nobody_changed_has_no_way_back(driver):
    result = driver.back()
    assert result["msg"].startswith("there is no driver to go back to: ")
    assert driver.there.changed("apt-get") == []


def test_going_back_in_check_mode_changes_no_file(old):
    old.run(NEW)
    before = old.there.tree()
    announced = old.back(check=True)
    assert old.there.tree() == before
    done = old.back()
    assert {key: announced[key] for key in ("before", "after", "packages", "diff")} == {
        key: done[key] for key in ("before", "after", "packages", "diff")
    }


def test_packages_of_the_driver_that_came_later_go_with_it(old):
    old.run(NEW)
    old.there.put(Deb("nvidia-settings", f"{NEW}-1"))
    old.there.offered.append(Deb("nvidia-settings", f"{NEW}-1"))
    assert old.back()["packages"]["nvidia-settings"] == {"before": f"{NEW}-1", "after": None}
    assert "nvidia-settings" not in old.there.versions()


def test_a_lost_file_of_the_driver_in_use_stops_a_change(old):
    """R14's kind: what can't be put back is not given up."""
    (old.there.root / driver_record.STORE / f"debs/libcuda1_{OLD}-1_amd64.deb").unlink()
    old.there.offered = debs(NEW)
    before = old.system()
    result = old.run(NEW)
    said = "the files of libcuda1 in the installed version can't be had any more, so there would be no way back. Nothing"
    assert result["msg"].startswith(said)
    assert old.system() == before
    assert old.run(NEW, require_way_back=False)["after"] == NEW


def test_a_file_that_somebody_finds_again_lets_a_change_be_undone_that_was_stuck(old):
    lost = old.there.root / driver_record.STORE / f"debs/libcuda1_{OLD}-1_amd64.deb"
    content = lost.read_bytes()
    lost.unlink()
    old.there.offered = debs(NEW)
    old.there.fails = lambda argv: (1, "", "Error! no\n") if argv[:2] == ["dkms", "install"] else None
    assert "did not succeed either" in old.run(NEW, require_way_back=False)["msg"]
    old.there.fails = lambda _: None
    assert "can't be put back" in old.run(OLD)["msg"]
    lost.write_bytes(content)
    assert old.run(OLD)["undone"]
    in_place(old, OLD)


def test_lost_files_of_a_bad_driver_keep_nobody_from_leaving_it(old):
    old.run(NEW)
    (old.there.root / driver_record.STORE / f"debs/libcuda1_{NEW}-1_amd64.deb").unlink()
    old.there.offered = []
    assert old.back()["after"] == OLD
    in_place(old, OLD)


def test_a_kernel_that_has_no_module_now_and_can_get_none_keeps_nobody_from_going_back(old):
    old.run(NEW)
    (old.there.root / "lib/modules/9.9.9-1-amd64").mkdir()
    (old.there.root / "boot/vmlinuz-9.9.9-1-amd64").touch()
    assert old.back()["after"] == OLD
    assert "may boot and has no headers" in old.run(NEWEST)["msg"]


def test_a_removal_that_is_taken_back_rejects_no_driver(old):
    old.remove()
    assert old.back()["after"] == OLD
    assert old.record().rejected is None


def test_an_installed_driver_without_files_is_taken_over_and_told_of(driver):
    for deb in debs(OLD):
        driver.there.put(deb)
    driver.there.offered = debs(NEW)
    result = driver.run(OLD)
    assert (result["changed"], result["packages"], result["no_way_back"]) == (True, {}, NAMES)
    in_place(driver, OLD)
    assert driver.run(OLD)["changed"] is False


# A version that somebody went back from


@pytest.fixture
def rejected(old):
    old.run(NEW)
    old.back()
    return old


def test_a_version_that_was_rolled_back_is_not_installed_again_by_itself(rejected):
    before = rejected.system()
    for check in (True, False):
        result = rejected.run(NEW, check=check)
        assert result["failed"]
        assert f"driver {NEW} was rolled back on this host (20" in result["msg"]
        assert f"driver {OLD} is in use. Nothing was changed. Remedy: " in result["msg"]
        assert "nvidia_driver_retry: true" in result["msg"]
    assert rejected.system() == before


def test_a_version_that_was_rolled_back_is_tried_again_if_somebody_says_so(rejected):
    assert rejected.run(NEW, retry=True)["after"] == NEW
    assert rejected.record().rejected is None
    assert rejected.run(NEW)["changed"] is False


def test_the_driver_in_use_and_a_third_one_are_no_rejected_ones(rejected):
    assert rejected.run(OLD)["changed"] is False
    assert rejected.run(NEWEST)["after"] == NEWEST


# Removal


def test_a_removal_leaves_nothing_but_the_way_back(old):
    result = old.remove()
    assert (result["before"], result["after"], result["previous"]) == (OLD, "", OLD)
    assert old.there.versions() == {}
    assert (old.there.read(PREFERENCES), old.there.read(UNATTENDED)) == (None, None)
    assert [old.there.module(kernel) for kernel in KERNELS] == [None, None]
    assert old.remove()["changed"] is False
    old.there.offered = []
    assert old.back()["after"] == OLD
    in_place(old, OLD)


# Failures


def test_a_failure_is_told_with_cause_state_and_time(old):
    before = old.system()
    old.there.fails = lambda argv: (10, "", "Error! Bad return status\n") if argv[:2] == ["dkms", "build"] else None
    result = old.run(NEW)
    assert result["failed"]
    assert result["msg"].startswith(f"the modules of driver {NEW} don't build, so no package was touched")
    assert "build modules" in result["seconds"]
    assert old.system() == before
    old.there.fails = lambda _: None
    assert old.run(NEW)["after"] == NEW


def test_a_file_of_the_new_driver_that_can_not_be_had_stops_a_change(old):
    """Its source does not answer."""
    refused = (100, "", "E: Failed to fetch http://deb.example/libcuda1.deb  404  Not Found\n")
    old.there.fails = lambda argv: refused if argv[0] == "sh" else None
    before = old.system()
    result = old.run(NEW)
    assert result["msg"].startswith(
        f"apt can't download libcuda1={NEW}-1, nvidia-kernel-dkms={NEW}-1, nvidia-smi={NEW}-1: E: Failed"
    )
    assert old.system() == before


def test_a_full_disk_is_seen_beforehand(old, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0 if Path(path).name == "usr" else 10**12))
    before = old.system()
    assert re.search(r"the unpacked packages need \d+ MiB in \S+/usr, 0 MiB are free\. Nothing was", old.run(NEW)["msg"])
    assert old.system() == before


def test_a_program_that_is_missing_is_an_error(driver, monkeypatch):
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda *_, **__: None)
    assert "E: dpkg-query is not installed" in driver.run(NEW)["msg"]


def test_a_damaged_record_stops_a_run(old):
    old.there.write(driver_record.RECORD, "{")
    result = old.run(NEW)
    assert "/var/lib/groundwork/driver.json is damaged" in result["msg"]
    in_place(old, OLD)


def test_another_run_at_the_same_time_is_kept_out(old):
    before = old.there.tree()
    with (old.there.root / nvidia_driver.LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        result = old.run(NEW)
    assert result["msg"].startswith("another run changes the driver of this host. Nothing was changed. Remedy: ")
    assert old.there.tree() == before
    assert old.run(NEW)["changed"]


def test_another_package_manager_keeps_a_change_from_beginning(old):
    lock = old.there.write("var/lib/dpkg/lock-frontend", "")
    program = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        before = old.system()
        result = old.run(NEW)
        process.kill()
    assert f"(process {process.pid}) held the lock of dpkg for 0 s. Nothing was changed." in result["msg"]
    assert old.system() == before


# A run that was interrupted


@pytest.mark.parametrize("beginning", [("apt-get", "--yes"), ("dkms", "install"), ("apt-mark", "hold")])
def test_the_next_run_undoes_and_does_its_work(driver, beginning):
    for deb in debs(OLD):
        driver.there.put(deb)
    killed(driver, *beginning)
    result = driver.run(NEW)
    assert (result["changed"], result["undone"], result["before"], result["after"]) == (True, True, OLD, NEW)
    in_place(driver, NEW)


def test_a_run_for_the_driver_before_ends_with_the_undoing(old):
    killed(old, "dkms", "install")
    result = old.run(OLD)
    assert (result["changed"], result["undone"], result["after"]) == (True, True, OLD)
    in_place(old, OLD)
    assert old.run(OLD)["changed"] is False


def test_going_back_from_an_interrupted_upgrade_is_to_undo_it_and_no_more(old):
    """The set before the one in use, none here, is not what somebody wants back who sees an upgrade fail."""
    killed(old, "dkms", "install")
    announced = old.back(check=True)
    done = old.back()
    assert (done["changed"], done["undone"], done["before"], done["after"]) == (True, True, NEW, OLD)
    assert {key: announced[key] for key in ("before", "after", "packages", "diff")} == {
        key: done[key] for key in ("before", "after", "packages", "diff")
    }
    in_place(old, OLD)
    assert "was rolled back on this host" in old.run(NEW)["msg"]


def test_going_back_that_was_interrupted_is_done_again(old):
    old.run(NEW)
    old.interrupt("dkms", "install")
    with pytest.raises(KeyboardInterrupt):
        old.back()
    old.there.fails = lambda _: None
    result = old.back()
    assert (result["undone"], result["before"], result["after"]) == (True, NEW, OLD)
    in_place(old, OLD)


def test_check_mode_announces_the_undoing_and_does_not_begin_it(old):
    killed(old, "dkms", "install")
    before = old.there.tree()
    result = old.run(NEW, check=True)
    assert (result["changed"], result["undone"], result["before"], result["after"]) == (True, True, NEW, OLD)
    assert old.there.tree() == before


def test_what_can_not_be_undone_stops_the_run_and_stays_on_record(old):
    killed(old, "dkms", "install")
    old.there.fails = lambda argv: (6, "", "Error! No space left on device\n") if argv[:2] == ["dkms", "install"] else None
    result = old.run(NEW)
    assert result["msg"].startswith(f"an earlier change of the driver was interrupted, and driver {OLD} can't be put back: ")
    assert "Error! No space left on device" in result["msg"]
    assert f"Remedy: remove the cause (`dpkg --audit` and /{nvidia_driver.LOG} tell more), and run this again" in result["msg"]
    assert old.record().transaction is not None
    old.there.fails = lambda _: None
    assert old.run(NEW)["after"] == NEW


# What is loaded


@pytest.mark.parametrize(
    ("loaded", "reason"),
    [
        (None, ""),
        (NEW, ""),
        (OLD, f"driver {OLD} stays loaded until the next boot, {NEW} is installed"),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_a_reboot_is_asked_for_while_another_version_is_loaded(old, loaded, reason, check):
    """R01: reboot pending instead of ok; and a dry run says so too."""
    if loaded:
        old.there.write("sys/module/nvidia/version", f"{loaded}\n")
    assert old.run(NEW, check=check)["reboot_reason"] == reason


def test_a_removed_driver_that_is_loaded_wants_a_reboot(old):
    old.there.write("sys/module/nvidia/version", f"{OLD}\n")
    assert old.remove()["reboot_reason"] == f"driver {OLD} stays loaded until the next boot, none is installed"


# The store


def test_the_store_has_the_two_last_drivers_and_no_more(old):
    old.run(NEW)
    old.run(NEWEST)
    files = sorted(path.name for path in (old.there.root / driver_record.STORE / "debs").iterdir())
    assert files == sorted(f"{name}_{version}-1_amd64.deb" for name in NAMES for version in (NEW, NEWEST))


def test_the_record_is_what_facts_and_people_read(old):
    data = json.loads(old.there.read(driver_record.RECORD))
    assert (data["format"], data["wanted"], data["transaction"], data["rejected"]) == (1, {"version": OLD}, None, None)
    assert data["current"]["holds"] == NAMES
    assert Record() != old.record()
