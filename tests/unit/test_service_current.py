"""The module service_current, run in-process; a stand-in takes the place of systemctl and journalctl."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import service_current
from ansible.module_utils.unit_state import newer_files, parse_show, started_at

NAME = "exporter.service"
# The unit started 10,000 s ago (so that a slow run of the tests makes no difference) and everything it reads was written before.
STARTED = int((time.monotonic() - 10_000) * 1e6)
RUNNING = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "UnitFileState": "enabled",
    "NeedDaemonReload": "no",
    "FragmentPath": "",
    "DropInPaths": "",
    "Triggers": "",
    "ExecMainStartTimestampMonotonic": str(STARTED),
    "ActiveEnterTimestampMonotonic": str(STARTED),
}
NEVER = {"ActiveState": "inactive", "ExecMainStartTimestampMonotonic": "0", "ActiveEnterTimestampMonotonic": "0"}
# What systemctl of systemd 252 shows of such units.
ABSENT = RUNNING | NEVER | {"LoadState": "not-found", "UnitFileState": ""}
MASKED = RUNNING | NEVER | {"LoadState": "masked", "UnitFileState": "masked", "FragmentPath": f"/etc/systemd/system/{NAME}"}


@pytest.fixture
def written(tmp_path):
    """Write a file with an age in seconds and return its path."""

    def write(name, age):
        path = tmp_path / name
        path.write_text("")
        os.utime(path, (time.time() - age,) * 2)
        return str(path)

    return write


@pytest.fixture
def systemd(monkeypatch, run_module):
    """The stand-in: `unit` is what it shows, `reloaded` what it shows once it has read the unit files; returns the result."""

    class Systemd:
        unit = RUNNING
        reloaded = None
        triggered = RUNNING
        fails: tuple[str, ...] = ()

        def run_command(self, command, **_):
            if command[:2] == ["systemctl", "show"]:
                unit = {NAME: self.unit, "export.service": self.triggered}[command[2]]
                return 0, "".join(f"{name}={value}\n" for name, value in unit.items()), ""
            if command[0] == "journalctl":
                return 0, f"log of {command[2]}: port 9100 is taken\n", ""
            self.commands.append(" ".join(command[1:]))
            if command[1] in self.fails:
                return 1, "", f"Job for {NAME} failed.\n"
            if command[1] == "daemon-reload":
                self.unit = self.reloaded or self.unit
            return 0, "", ""

        def apply(self, **options):
            self.commands = []
            return run_module(service_current, name=NAME, **options)

    stand_in = Systemd()
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.run_command", stand_in.run_command)
    return stand_in


def both(systemd, **options):
    """Return what a dry run announces, what the run does and the commands of it, having checked that they agree."""
    before = systemd.unit
    announced = systemd.apply(check=True, **options)
    assert systemd.commands == []
    systemd.unit = before
    done = systemd.apply(**options)
    assert announced == done
    assert done["changed"] is bool(systemd.commands)
    return systemd.commands, done["actions"]


def test_a_current_unit_is_left_alone(systemd, written):
    systemd.unit = RUNNING | {"FragmentPath": written("unit", 20_000), "DropInPaths": written("drop-in", 20_000)}
    assert both(systemd, reads=[written("config", 20_000)]) == ([], [])


def test_a_unit_that_never_ran_is_enabled_and_started(systemd):
    systemd.unit = RUNNING | NEVER | {"UnitFileState": "disabled"}
    commands, actions = both(systemd)
    assert commands == [f"enable {NAME}", f"start {NAME}"]
    assert actions == ["enable: it would not start at boot", "start: it is inactive"]


def test_nobody_waits_for_a_start_that_a_later_task_watches(systemd):
    systemd.unit = RUNNING | NEVER | {"UnitFileState": "disabled"}
    assert both(systemd, wait=False)[0] == [f"enable {NAME}", f"--no-block start {NAME}"]


def test_a_failed_unit_is_started_though_it_failed_too_often(systemd):
    systemd.unit = RUNNING | {"ActiveState": "failed"}
    assert both(systemd)[0] == [f"reset-failed {NAME}", f"start {NAME}"]


@pytest.mark.parametrize("place", ["FragmentPath", "DropInPaths", "reads"])
def test_a_newer_file_restarts_the_unit(systemd, written, place):
    paths = {"FragmentPath": written("unit", 20_000), "DropInPaths": f"{written('10.conf', 20_000)} {written('20.conf', 20_000)}"}
    reads = [written("config", 20_000)]
    newer = written({"FragmentPath": "unit", "DropInPaths": "20.conf", "reads": "config"}[place], 5_000)
    systemd.unit = RUNNING | paths
    commands, actions = both(systemd, reads=reads)
    assert commands == [f"restart {NAME}"]
    assert actions == [f"restart: {newer} changed after {NAME} started"]


def test_a_file_that_does_not_exist_does_not_count(systemd, tmp_path):
    assert both(systemd, reads=[str(tmp_path / "absent")]) == ([], [])


def test_systemd_is_reloaded_before_the_restart(systemd, written):
    systemd.unit = RUNNING | {"FragmentPath": written("unit", 5_000), "NeedDaemonReload": "yes"}
    systemd.reloaded = systemd.unit | {"NeedDaemonReload": "no"}
    assert both(systemd)[0] == ["daemon-reload", f"restart {NAME}"]


def test_systemd_is_reloaded_for_the_unit_that_a_timer_starts(systemd):
    systemd.unit, systemd.triggered = RUNNING | {"Triggers": "export.service"}, RUNNING | {"NeedDaemonReload": "yes"}
    assert both(systemd) == (["daemon-reload"], ["daemon-reload: unit files changed"])


def test_a_restart_that_came_before_the_reload_is_repeated(systemd, written):
    """It started with the unit file that systemd knew, so that the start is newer than the file and yet without it."""
    systemd.unit = RUNNING | {"FragmentPath": written("unit", 15_000), "NeedDaemonReload": "yes"}
    systemd.reloaded = systemd.unit | {"NeedDaemonReload": "no"}
    assert both(systemd) == (
        ["daemon-reload", f"restart {NAME}"],
        ["daemon-reload: unit files changed", "restart: it runs with unit files that have changed"],
    )


def test_a_dry_run_announces_the_restart_for_a_drop_in_that_systemd_has_not_read(systemd, written):
    systemd.unit = RUNNING | {"NeedDaemonReload": "yes"}
    systemd.reloaded = RUNNING | {"DropInPaths": written("new.conf", 5_000)}
    announced = systemd.apply(check=True)["actions"]
    done = systemd.apply()["actions"]
    assert [action.split(":")[0] for action in announced] == [action.split(":")[0] for action in done]
    assert systemd.commands == ["daemon-reload", f"restart {NAME}"]


def test_a_unit_file_that_systemd_has_not_seen_is_found_by_a_reload(systemd):
    systemd.unit, systemd.reloaded = ABSENT, RUNNING | NEVER
    assert systemd.apply()["changed"] is True
    assert systemd.commands == ["daemon-reload", f"start {NAME}"]


def test_a_unit_that_does_not_exist_is_an_error(systemd):
    systemd.unit = ABSENT
    assert systemd.apply()["msg"] == f"{NAME} does not exist: no package or task brought its unit file"


@pytest.mark.parametrize(
    ("options", "actions"),
    [
        ({}, ["enable: it would not start at boot", "start: it is inactive"]),
        ({"enabled": False, "state": "stopped"}, []),
    ],
    ids=["started", "stopped"],
)
def test_a_dry_run_counts_on_the_task_that_would_have_brought_the_unit(systemd, options, actions):
    systemd.unit = ABSENT
    result = systemd.apply(check=True, **options)
    assert (result["actions"], result["changed"]) == (actions, bool(actions))


@pytest.mark.parametrize("check", [True, False], ids=["check", "run"])
@pytest.mark.parametrize("options", [{}, {"enabled": False}, {"state": "stopped"}], ids=str)
def test_a_masked_unit_is_an_error_that_says_what_to_do(systemd, check, options):
    systemd.unit = MASKED
    result = systemd.apply(check=check, **options)
    assert result["failed"] is True
    assert f"{NAME} is masked" in result["msg"]
    assert f"systemctl unmask {NAME}" in result["msg"]
    assert systemd.commands == []


def test_a_masked_unit_is_as_good_as_stopped_and_disabled(systemd):
    systemd.unit = MASKED
    assert both(systemd, enabled=False, state="stopped") == ([], [])


@pytest.mark.parametrize(
    ("state", "options", "commands"),
    [
        ({"UnitFileState": "static"}, {}, []),
        ({"UnitFileState": "static"}, {"enabled": False}, []),
        ({"UnitFileState": "indirect"}, {}, []),
        ({"UnitFileState": "disabled"}, {}, [f"enable {NAME}"]),
        ({"UnitFileState": "disabled"}, {"enabled": False}, []),
        ({}, {"enabled": False}, [f"disable {NAME}"]),
        ({}, {"enabled": False, "state": "stopped"}, [f"disable {NAME}", f"stop {NAME}"]),
        ({"ActiveState": "activating"}, {"state": "stopped"}, [f"stop {NAME}"]),
        ({"ActiveState": "failed"}, {"state": "stopped"}, []),
        ({"ActiveState": "activating"}, {}, []),
        ({"ActiveState": "deactivating"}, {}, [f"start {NAME}"]),
    ],
    ids=str,
)
def test_only_what_differs_is_done(systemd, state, options, commands):
    systemd.unit = RUNNING | state
    assert both(systemd, **options)[0] == commands


def test_a_stopped_unit_is_not_restarted_for_a_newer_file(systemd, written):
    systemd.unit = RUNNING | NEVER
    assert both(systemd, state="stopped", reads=[written("config", 5_000)]) == ([], [])


def test_a_failed_start_is_explained_by_the_end_of_the_log(systemd):
    systemd.unit, systemd.fails = RUNNING | NEVER, ("start",)
    result = systemd.apply()
    assert result["msg"] == (
        f"`systemctl start {NAME}` failed: Job for {NAME} failed.\nThe end of its log:\nlog of {NAME}: port 9100 is taken\n"
    )


@pytest.mark.parametrize(("age", "newer"), [(15_000, False), (5_000, True)])
def test_a_timer_counts_from_when_it_became_active(written, age, newer):
    timer = {"ActiveEnterTimestampMonotonic": str(STARTED)}
    path = written("timer", age)
    assert newer_files(timer, [path], started_at(timer, time.time(), time.monotonic())) == ([path] if newer else [])


def test_the_start_of_the_program_counts_before_that_of_the_unit():
    """A service is active for weeks while its program is started again after a crash."""
    unit = {"ExecMainStartTimestampMonotonic": "90000000", "ActiveEnterTimestampMonotonic": "50000000"}
    assert started_at(unit, now=1_000_000, monotonic=100) == 999_990


def test_values_with_an_equals_sign_stay_whole():
    text = "FragmentPath=/etc/a=b.service\nDropInPaths=\n\n"
    assert parse_show(text) == {"FragmentPath": "/etc/a=b.service", "DropInPaths": ""}


@pytest.mark.parametrize(
    ("pending", "announced"),
    [(["/etc/exporter.conf"], ["restart"]), (["/etc/systemd/system/exporter.service"], ["restart"]), (["/etc/other"], [])],
)
def test_a_dry_run_announces_the_restart_that_a_pending_file_will_cause(systemd, pending, announced):
    systemd.unit = RUNNING | {"FragmentPath": "/etc/systemd/system/exporter.service"}
    result = systemd.apply(check=True, reads=["/etc/exporter.conf"], pending=pending)
    assert [action.split(":")[0] for action in result["actions"]] == announced
    assert systemd.commands == []


def test_a_run_asks_the_files_themselves_and_not_what_was_pending(systemd):
    systemd.unit = RUNNING
    assert systemd.apply(reads=["/etc/exporter.conf"], pending=["/etc/exporter.conf"])["actions"] == []


def test_a_file_from_the_future_restarts_once_and_not_for_ever(systemd, written):
    """The clock of the host was ahead when the file was written."""
    path = written("config", -7200)
    systemd.unit = RUNNING
    assert systemd.apply(reads=[path])["changed"]
    systemd.unit = RUNNING | {"ExecMainStartTimestampMonotonic": str(int((time.monotonic() + 1) * 1e6))}
    assert not systemd.apply(reads=[path])["changed"]


def test_a_dry_run_leaves_a_file_from_the_future_as_it_is(systemd, written):
    path = written("config", -7200)
    before = Path(path).stat().st_mtime
    systemd.unit = RUNNING
    assert systemd.apply(check=True, reads=[path])["changed"]
    assert Path(path).stat().st_mtime == before
