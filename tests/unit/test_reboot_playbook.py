"""What playbooks/reboot.yml does, up to the reboot itself, and never with a real host.

Two stand-ins take the place of modules, on the controller: reboot_readiness gives the answers that a test wrote, and
write_files only says that it wrote, and notes for the test what it was given. The hosts have an address where nobody listens,
so whatever would touch one ends unreachable. What comes after a reboot is tested on a virtual machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from reboots import reboot_setting_faults

ROOT = Path(__file__).parents[2]
STAND_IN = """
import json, os
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        host = task_vars["inventory_hostname"]
        with open(os.environ["STAND_IN_LOG"], "a") as log:
            print(host, "{name}", file=log)
        with open(os.environ["STAND_IN_LOG"] + ".{name}", "w") as given:
            json.dump(self._task.args, given)
        with open(os.environ["STAND_IN_ANSWERS"]) as file:
            answers = json.load(file)["{name}"][host]
        with open(os.environ["STAND_IN_LOG"]) as log:
            times = log.read().splitlines().count(f"{{host}} {name}")
        return answers[min(times, len(answers)) - 1] if isinstance(answers, list) else answers
"""
QUIET = {
    "changed": False,
    "flagged": False,
    "reasons": [],
    "boot_id": "a",
    "running_kernel": "6.1.0-49-amd64",
    "next_kernel": "6.1.0-57-amd64",
    "next_from": "/boot/grub/grub.cfg, entry 'Linux'",
    "problems": [],
    "state": "running",
    "failed_units": [],
    "failed_before": [],
    "interrupted": False,
    "rebooted": False,
    "boot_faults": [],
}
FLAGGED = {**QUIET, "flagged": True, "reasons": ["packages: linux-image-6.1.0-57-amd64"]}
BACK = {**QUIET, "interrupted": True, "rebooted": True}
DRAINED = {**FLAGGED, "interrupted": True}
STILL_DRAINED = "a is still drained by an interrupted run. Remedy: run this playbook again and let it reboot the host"
OWN_BOOT = Path("/proc/sys/kernel/random/boot_id")


@pytest.fixture
def play(tmp_path):
    """Run the playbook for hosts with these answers, and return its exit code, output and log of stand-ins and hooks."""
    for name in ("reboot_readiness", "write_files"):
        (tmp_path / "action").mkdir(exist_ok=True)
        (tmp_path / f"action/{name}.py").write_text(STAND_IN.format(name=name))
    log = tmp_path / "log"
    log.touch()
    for hook in ("drain", "undrain"):
        # Written on this machine, whichever host it is for.
        line = f"echo {{{{ inventory_hostname }}}} {hook} >> {log}"
        task = {"name": f"Note that it would {hook}", "ansible.builtin.shell": line, "delegate_to": "localhost", "become": False}
        here = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
        (tmp_path / f"{hook}.yml").write_text(json.dumps([{**task, "vars": here}]))

    def run(answers, *arguments, variables=None, playbook="playbooks/reboot.yml", **settings):
        nowhere = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_python_interpreter": "/usr/bin/python3"}
        hosts = {host: {**nowhere, **(variables or {}).get(host, {})} for host in answers}
        (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": settings}}))
        written = {"write_files": {host: {"changed": True} for host in answers}}
        (tmp_path / "answers.json").write_text(json.dumps({"reboot_readiness": answers, **written}))
        done = subprocess.run(
            ["ansible-playbook", "-i", tmp_path / "hosts.json", playbook, *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env={
                **os.environ,
                "ANSIBLE_ACTION_PLUGINS": str(tmp_path / "action"),
                "ANSIBLE_NOCOLOR": "1",
                "STAND_IN_LOG": str(log),
                "STAND_IN_ANSWERS": str(tmp_path / "answers.json"),
            },
        )
        return done.returncode, " ".join((done.stdout + done.stderr).split()), log.read_text().splitlines()

    return run


def hooks(tmp_path):
    return {
        "groundwork_reboot_drain": [str(tmp_path / "drain.yml")],
        "groundwork_reboot_undrain": [str(tmp_path / "undrain.yml")],
    }


def recap(output, host):
    return {
        key: int(number) for key, number in re.findall(r"(\w+)=(\d+)", re.search(rf"{host} : (ok=.*?ignored=\d+)", output)[1])
    }


def test_nothing_flagged_costs_one_question_per_host(play):
    code, output, log = play({"a": QUIET, "b": QUIET})
    assert code == 0, output
    assert sorted(log) == ["a reboot_readiness", "b reboot_readiness"]
    assert "skipping: no hosts matched" in output
    assert "WARNING" not in output
    assert recap(output, "a")["changed"] == recap(output, "b")["changed"] == 0


def test_never_tells_who_waits_and_goes_on_whatever_is_wrong_with_it(play):
    waiting = {**FLAGGED, "problems": ["it is broken"]}
    code, output, log = play({"a": waiting, "b": QUIET}, groundwork_reboot="never")
    assert code == 0, output
    assert "a wants a reboot, and groundwork_reboot is never: packages: linux-image-6.1.0-57-amd64." in output
    assert log.count("a reboot_readiness") == 1
    assert "it is broken" not in output


def test_the_problems_of_all_hosts_are_told_before_any_is_drained(play, tmp_path):
    answers = {
        "good": FLAGGED,
        "bad": {**FLAGGED, "problems": ["the kernel is empty; install it", "dpkg is at work"]},
        "worse": {**FLAGGED, "problems": ["no nvidia module"]},
    }
    code, output, log = play(answers, groundwork_reboot="auto", **hooks(tmp_path))
    assert code != 0
    assert "bad wants a reboot (packages: linux-image-6.1.0-57-amd64) and can't have it yet. It was neither drained nor" in output
    assert "- the kernel is empty; install it" in output
    assert "- dpkg is at work" in output
    assert "- no nvidia module" in output
    assert [line for line in log if not line.endswith("reboot_readiness")] == []


@pytest.mark.skipif(not OWN_BOOT.exists(), reason="only Linux has ids of boots")
def test_the_machine_that_runs_the_playbook_is_never_rebooted(play, tmp_path):
    """Whatever the connection: it may be SSH to an address of its own."""
    here = {**FLAGGED, "boot_id": OWN_BOOT.read_text().strip()}
    code, output, log = play({"a": here}, groundwork_reboot="auto", **hooks(tmp_path))
    assert code != 0
    assert "- it is the machine that runs this playbook, or a container of it (same boot id); reboot it by hand" in output
    assert log == ["a reboot_readiness"]


def test_a_controller_without_ids_of_boots_reboots_others(play, tmp_path):
    # Stand-in for such a controller: the task asks for a file that is not there.
    tasks = (ROOT / "playbooks/tasks/reboot_readiness.yml").read_text()
    assert str(OWN_BOOT) in tasks
    playbooks = tmp_path / "playbooks"
    shutil.copytree(ROOT / "playbooks", playbooks)
    (playbooks / "tasks/reboot_readiness.yml").write_text(tasks.replace(str(OWN_BOOT), str(tmp_path / "absent")))
    code, output, _ = play({"a": FLAGGED}, "--check", playbook=playbooks / "reboot.yml", groundwork_reboot="auto")
    assert code == 0, output
    assert "Would reboot a" in output
    assert "WARNING" not in output


def test_without_a_terminal_nobody_agrees(play, tmp_path):
    code, output, log = play({"a": FLAGGED, "b": FLAGGED, "c": QUIET}, groundwork_reboot_serial=2, **hooks(tmp_path))
    assert code == 0, output
    assert output.count("TASK [Ask a person]") == 1
    for host in ("a", "b"):
        assert f"To reboot: {host} (packages: linux-image-6.1.0-57-amd64), from kernel 6.1.0-49-amd64 into 6.1.0-57" in output
        assert f"{host} was not rebooted, since nobody agreed. It still wants a reboot." in output
        assert recap(output, host)["changed"] == 0
    assert "c was not rebooted" not in output
    assert not any(line.endswith(("drain", "write_files")) for line in log)


@pytest.mark.parametrize(("serial", "batches"), [("34%", 3), ([1, 2], 2), ("3", 1)])
def test_batches_have_the_size_that_the_inventory_wants(play, serial, batches):
    _, output, _ = play({"a": FLAGGED, "b": FLAGGED, "c": FLAGGED, "d": QUIET}, groundwork_reboot_serial=serial)
    assert output.count("PLAY [Reboot them, batch by batch]") == batches


def test_check_mode_tells_what_would_happen_and_does_none_of_it(play, tmp_path):
    modes = {host: {"groundwork_reboot": mode} for host, mode in (("a", "auto"), ("b", "prompt"), ("c", "never"))}
    answers = {"a": FLAGGED, "b": FLAGGED, "c": FLAGGED, "d": QUIET}
    code, output, log = play(answers, "--check", variables=modes, **hooks(tmp_path))
    assert code == 0, output
    for host in ("a", "b"):
        assert f"Would reboot {host} (packages: linux-image-6.1.0-57-amd64), from kernel 6.1.0-49-amd64 into 6.1.0-57-a" in output
    assert [recap(output, host)["changed"] for host in answers] == [1, 1, 0, 0]
    assert {line.split()[1] for line in log} == {"reboot_readiness"}
    assert "Not waiting for response" not in output


def test_a_host_is_written_down_and_drained_before_its_reboot_and_the_next_waits(play, tmp_path):
    code, output, log = play({"a": FLAGGED, "b": FLAGGED}, groundwork_reboot="auto", **hooks(tmp_path))
    # Nobody listens where the host should be, so that its reboot can't begin.
    assert code != 0
    assert [line for line in log if line.startswith("a")] == [
        *["a reboot_readiness"] * 2,
        "a write_files",
        "a drain",
        "a reboot_readiness",
    ]
    assert [line for line in log if line.startswith("b")] == ["b reboot_readiness"]
    assert 'a was not rebooted: "Hold the boot against what was expected" failed. it was not booted anew It may be' in output


def test_a_host_that_gets_lost_keeps_the_later_ones_from_being_touched(play, tmp_path):
    (tmp_path / "drain.yml").write_text('[{"name": "Touch the host", "ansible.builtin.ping": {}}]')
    code, output, log = play({"a": FLAGGED, "b": FLAGGED}, groundwork_reboot="auto", **hooks(tmp_path))
    assert code != 0
    assert recap(output, "a")["unreachable"] == 1
    assert log.count("b reboot_readiness") == 1


@pytest.mark.parametrize("failure", ["failed", "unreachable"])
def test_the_other_hosts_of_a_batch_are_finished_when_one_fails(play, tmp_path, failure):
    task = '"ansible.builtin.fail": {"msg": "two pods stay"}' if failure == "failed" else '"ansible.builtin.ping": {}'
    (tmp_path / "a.yml").write_text(f'[{{"name": "Empty the node", {task}}}]')
    only_a = {"a": {"groundwork_reboot_undrain": [str(tmp_path / "a.yml")]}}
    answers = {"a": BACK, "b": BACK, "c": FLAGGED}
    code, _, log = play(answers, variables=only_a, groundwork_reboot="auto", groundwork_reboot_serial=2, **hooks(tmp_path))
    assert code != 0
    assert "b undrain" in log
    assert log.count("c reboot_readiness") == 1


@pytest.mark.parametrize("change", [{"problems": ["its kernel is gone"]}, {"unreachable": True, "msg": "gone"}])
def test_a_host_that_changed_for_the_worse_keeps_its_batch_from_being_drained(play, tmp_path, change):
    answers = {"a": [FLAGGED, {**FLAGGED, **change}], "b": FLAGGED, "c": FLAGGED}
    code, output, log = play(answers, groundwork_reboot="auto", groundwork_reboot_serial=2, **hooks(tmp_path))
    assert code != 0
    assert "Stopped, since a failed or can't be reached (see above). The hosts of later batches were not touched." in output
    assert not any(line.endswith(("drain", "write_files")) for line in log)
    assert log.count("c reboot_readiness") == 1


def test_a_host_that_wants_no_reboot_any_more_is_left_alone(play, tmp_path):
    code, output, log = play({"a": [FLAGGED, QUIET]}, groundwork_reboot="auto", **hooks(tmp_path))
    assert code == 0, output
    assert log == ["a reboot_readiness", "a reboot_readiness"]


def test_a_host_that_was_flagged_only_after_the_question_is_not_rebooted(play, tmp_path):
    code, output, log = play({"a": [BACK, DRAINED]}, groundwork_reboot="never", **hooks(tmp_path))
    assert set(log) == {"a reboot_readiness"}
    told = "a was not rebooted, since nobody agreed. It still wants a reboot. It is still drained by an interrupted run."
    assert told in output
    assert code != 0
    assert STILL_DRAINED in output


def test_a_host_that_can_not_be_asked_stops_all(play, tmp_path):
    code, _, log = play({"a": {"unreachable": True, "msg": "gone"}, "b": FLAGGED}, groundwork_reboot="auto", **hooks(tmp_path))
    assert code != 0
    assert "b drain" not in log


def test_a_drain_that_fails_stops_the_reboot_and_the_hosts_after_it(play, tmp_path):
    (tmp_path / "drain.yml").write_text('[{"name": "Empty the node", "ansible.builtin.fail": {"msg": "two pods stay"}}]')
    code, output, log = play({"a": FLAGGED, "b": FLAGGED}, groundwork_reboot="auto", **hooks(tmp_path))
    assert code != 0
    assert 'a was not rebooted: "Empty the node" failed. two pods stay It may be drained in part.' in output
    assert "remove /var/lib/groundwork/reboot.json on it. The hosts of later batches were not touched." in output
    assert log.count("b reboot_readiness") == 1
    assert "TASK [Reboot it]" not in output


def test_an_interrupted_reboot_is_finished_without_a_question_whatever_the_mode(play, tmp_path):
    modes = {mode: {"groundwork_reboot": mode} for mode in ("auto", "prompt", "never")}
    answers = {"auto": BACK, "prompt": BACK, "never": BACK, "quiet": QUIET}
    _, output, log = play(answers, variables=modes, groundwork_reboot_serial=3, **hooks(tmp_path))
    assert sorted(line for line in log if line.endswith("drain")) == ["auto undrain", "never undrain", "prompt undrain"]
    assert "TASK [Strike the record]" in output
    assert "Not waiting for response" not in output


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("never", "groundwork_reboot is never: packages: linux-image-6.1.0-57-amd64. It is still drained by an interrupted run."),
        (
            "prompt",
            "a was not rebooted, since nobody agreed. It still wants a reboot. It is still drained by an interrupted run.",
        ),
    ],
)
def test_a_host_that_stays_drained_fails_the_run_at_its_end(play, tmp_path, mode, told):
    code, output, log = play({"a": DRAINED, "b": BACK}, groundwork_reboot=mode, groundwork_reboot_serial=2, **hooks(tmp_path))
    assert told in output
    assert "b undrain" in log
    assert code != 0
    alone, output, _ = play({"a": DRAINED}, groundwork_reboot=mode, **hooks(tmp_path))
    assert alone != 0
    assert STILL_DRAINED in output


def test_a_drained_host_that_is_refused_is_not_called_undrained(play, tmp_path):
    _, output, _ = play({"a": {**DRAINED, "problems": ["it is broken"]}}, groundwork_reboot="auto", **hooks(tmp_path))
    assert "It was not rebooted, and is still drained by an interrupted run. Correct first: - it is broken" in output
    assert "neither drained" not in output


def test_a_second_reboot_is_measured_by_what_failed_before_the_first(play, tmp_path):
    broken = {**DRAINED, "rebooted": True, "boot_id": "second", "failed_units": ["x", "y"], "failed_before": ["y"]}
    _, _, log = play({"a": broken}, groundwork_reboot="auto", **hooks(tmp_path))
    assert "a drain" in log
    [written] = json.loads((tmp_path / "log.write_files").read_text())["files"]
    assert json.loads(written["content"]) == {"boot_id": "second", "kernel": "6.1.0-57-amd64", "failed_units": ["y"]}


def test_check_mode_tells_which_reboot_it_would_finish(play, tmp_path):
    faults = {**BACK, "boot_faults": ["it runs kernel 1, and 2 was to boot"]}
    code, output, log = play({"a": BACK, "b": faults, "c": DRAINED}, "--check", groundwork_reboot="never", **hooks(tmp_path))
    assert code == 0, output
    assert "Would finish the reboot of a and put it back into service." in output
    assert "Would leave b drained: it runs kernel 1, and 2 was to boot." in output
    assert [recap(output, host)["changed"] for host in "abc"] == [1, 0, 0]
    assert {line.split()[1] for line in log} == {"reboot_readiness"}


def test_a_host_that_came_back_otherwise_stays_drained(play, tmp_path):
    wrong = {**BACK, "boot_faults": ["it runs kernel 1, and 2 was to boot", "units failed that ran before: x.service"]}
    code, output, log = play({"a": wrong, "b": FLAGGED}, groundwork_reboot="auto", **hooks(tmp_path))
    assert code != 0
    assert (
        'a was rebooted, and "Hold the boot against what was expected" failed. it runs kernel 1, and 2 was to boot; '
        "units failed that ran before: x.service It stays drained." in output
    )
    assert "a undrain" not in log
    assert "b drain" not in log


def test_a_hook_may_be_named_relative_to_the_playbooks(play, tmp_path):
    relative = os.path.relpath(tmp_path / "undrain.yml", ROOT / "playbooks")
    _, _, log = play({"a": BACK}, groundwork_reboot_undrain=[relative])
    assert "a undrain" in log


# Variables


def test_wrong_variables_are_told_before_any_host_is_asked(play):
    code, output, log = play({"a": FLAGGED}, groundwork_reboot="always", groundwork_reboot_timeout=5)
    assert code != 0
    assert "Variables of reboots are wrong; no host was touched." in output
    assert "- a: groundwork_reboot is 'always'; write auto, never or prompt" in output
    assert "- a: groundwork_reboot_timeout is 5; write seconds, 60 at least" in output
    assert log == []


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"groundwork_reboot": "auto", "groundwork_reboot_serial": "25%", "groundwork_reboot_timeout": "600"},
        {"groundwork_reboot_serial": [1, "10%", "100%"], "groundwork_reboot_kernel": "6.12.118+deb13-amd64"},
        {"groundwork_reboot_serial": "3", "groundwork_reboot_drain": ["hook.yml"], "groundwork_reboot_undrain": []},
    ],
)
def test_good_variables_pass(tmp_path, variables):
    (tmp_path / "hook.yml").touch()
    assert reboot_setting_faults({"a": variables}, ["a"], str(tmp_path)) == []


@pytest.mark.parametrize(
    ("variable", "value", "remedy"),
    [
        ("groundwork_reboot", False, "write auto, never or prompt"),
        ("groundwork_reboot", "Auto", "write auto, never or prompt"),
        ("groundwork_reboot_serial", 0, "write a number of hosts"),
        ("groundwork_reboot_serial", "0%", "write a number of hosts"),
        ("groundwork_reboot_serial", "101%", "write a number of hosts"),
        ("groundwork_reboot_serial", [], "write a number of hosts"),
        ("groundwork_reboot_serial", [1, "all"], "write a number of hosts"),
        ("groundwork_reboot_serial", True, "write a number of hosts"),
        ("groundwork_reboot_timeout", 59, "write seconds, 60 at least"),
        ("groundwork_reboot_timeout", "20m", "write seconds, 60 at least"),
        ("groundwork_reboot_timeout", True, "write seconds, 60 at least"),
        ("groundwork_reboot_kernel", "vmlinuz-6.1", "write a version as `uname -r` shows it"),
        ("groundwork_reboot_kernel", "../6.1", "write a version as `uname -r` shows it"),
        ("groundwork_reboot_drain", "drain.yml", "write a list of task files"),
        ("groundwork_reboot_undrain", [{"file": "x"}], "write a list of task files"),
    ],
)
def test_a_wrong_variable_is_told_with_its_host_and_remedy(tmp_path, variable, value, remedy):
    [fault] = reboot_setting_faults({"a": {variable: value}}, ["a"], str(tmp_path))
    assert fault.startswith(f"a: {variable} is {value!r}; {remedy}")


def test_a_hook_that_does_not_exist_is_told_by_name(tmp_path):
    [fault] = reboot_setting_faults({"a": {"groundwork_reboot_drain": ["absent.yml"]}}, ["a"], str(tmp_path))
    assert fault == f"a: groundwork_reboot_drain names absent.yml, and there is no such file (paths are relative to {tmp_path})"


def test_batches_of_different_sizes_are_told(tmp_path):
    [fault] = reboot_setting_faults({"a": {"groundwork_reboot_serial": 2}, "b": {}}, ["a", "b"], str(tmp_path))
    assert fault.endswith("must be the same everywhere: it is 2 on a, 1 on b")
