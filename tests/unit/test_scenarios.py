"""tools/scenarios.py; a stand-in on PATH takes the place of molecule."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import scenarios

STAND_IN = """\
#!/bin/sh
# Stand-in for molecule: records its call and fails where the test says so.
echo "$4 $1 $5 $6 $7" | sed 's/ *$//' >> calls
echo "molecule says: $1 of $4"
! grep -qx "$4 $1" failing
"""


@pytest.fixture
def runner(tmp_path, monkeypatch, capsys):
    """The program in a project with three scenarios; `failing` lists "scenario subcommand"."""
    for name in ("alpha", "beta", "gamma"):
        (tmp_path / "molecule" / name).mkdir(parents=True)
        (tmp_path / "molecule" / name / "molecule.yml").write_text("---\n{}\n")
    program = tmp_path / "bin" / "molecule"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    for name in ("PATH", "NO_COLOR", "ANSIBLE_NOCOLOR"):
        monkeypatch.setenv(name, "/usr/bin:/bin")  # main() changes them; so they are put back
    monkeypatch.setattr(sys, "executable", str(program.parent / "python"))
    monkeypatch.setattr(scenarios, "ROOT", tmp_path)
    monkeypatch.setattr(scenarios, "LOGS", tmp_path / ".cache/molecule")

    def run(*arguments, failing=()):
        (tmp_path / "failing").write_text("".join(f"{line}\n" for line in failing))
        monkeypatch.setattr(sys, "argv", ["scenarios.py", *arguments])
        code = scenarios.main()
        return SimpleNamespace(code=code, output=capsys.readouterr().out, calls=(tmp_path / "calls").read_text().splitlines())

    return run


def calls_of(result, scenario):
    return [call.removeprefix(f"{scenario} ") for call in result.calls if call.startswith(f"{scenario} ")]


def summary(result):
    """Return scenario -> result, as the table at the end has them."""
    table = result.output.split("result ")[1].splitlines()[1:4]
    return {line[:24].strip(): line[24:65].strip() for line in table}


def test_all_scenarios_run_and_are_counted(runner):
    result = runner()
    assert result.code == 0
    assert summary(result) == {"alpha": "ok", "beta": "ok", "gamma": "ok"}
    assert result.output.endswith("\nscenarios: 3 passed, 0 failed\n")


def test_a_scenario_is_a_dry_run_a_run_a_second_one_a_dry_run_and_the_assertions(runner):
    assert calls_of(runner("alpha"), "alpha") == [
        "destroy",
        "reset",
        "create",
        "converge -- --check --diff",
        "converge",
        "idempotence",
        "idempotence -- --check --diff",
        "verify",
        "destroy",
    ]


def test_what_a_scenario_does_to_its_hosts_comes_before_the_assertions(runner):
    (scenarios.ROOT / "molecule/alpha/side_effect.yml").write_text("---\n[]\n")
    assert calls_of(runner("alpha"), "alpha")[-3:] == ["side-effect", "verify", "destroy"]


def test_a_failing_scenario_does_not_hide_the_others(runner):
    result = runner(failing=["alpha verify", "beta idempotence"])
    assert result.code == 1
    assert summary(result) == {"alpha": "failed: verify", "beta": "failed: idempotence", "gamma": "ok"}
    assert result.output.endswith("\nscenarios: 1 passed, 2 failed\n")


def test_a_failing_scenario_stops_at_its_step_and_its_hosts_are_removed(runner):
    result = runner("alpha", failing=["alpha create"])
    assert calls_of(result, "alpha") == ["destroy", "reset", "create", "destroy"]


def test_the_end_of_the_log_is_shown_where_a_step_fails(runner):
    output = runner(failing=["beta converge"]).output
    assert "molecule says: converge of beta" in output
    assert "molecule says: converge of alpha" not in output


def test_the_hosts_of_a_failed_scenario_are_kept_on_request(runner):
    result = runner("--keep", failing=["beta verify"])
    assert [calls_of(result, name)[-1] for name in ("alpha", "beta", "gamma")] == ["destroy", "verify", "destroy"]


def test_only_the_named_scenarios_run(runner):
    assert {call.split()[0] for call in runner("gamma", "alpha").calls} == {"alpha", "gamma"}


def test_an_unknown_scenario_is_refused_with_those_there_are(runner, capsys):
    with pytest.raises(SystemExit) as exit_info:
        runner("alpha", "delta")
    assert exit_info.value.code == 2
    assert "no such scenario: delta; there are: alpha, beta, gamma" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "lane"),
    [
        ("alpha", "---\n{}\n", "containers"),
        ("alpha", "---\nplatforms:\n  - name: a\n    groups: [gpu_nodes]\n", "containers"),
        ("alpha", "---\nplatforms:\n  - name: a\n  - name: b\n    groups: [machines, debian13]\n", "machines"),
        ("torchserve", "---\n{}\n", "alone"),
    ],
)
def test_a_scenario_runs_beside_those_of_another_kind_unless_it_measures_time(tmp_path, monkeypatch, name, text, lane):
    monkeypatch.setattr(scenarios, "ROOT", tmp_path)
    (tmp_path / "molecule" / name).mkdir(parents=True)
    (tmp_path / "molecule" / name / "molecule.yml").write_text(text)
    assert scenarios.lane(name) == lane


def test_machines_and_containers_run_at_the_same_time_and_the_measuring_one_when_they_are_done(runner):
    (scenarios.ROOT / "molecule/beta/molecule.yml").write_text("---\nplatforms: [{name: b, groups: [machines]}]\n")
    (scenarios.ROOT / "molecule/torchserve").mkdir()
    (scenarios.ROOT / "molecule/torchserve/molecule.yml").write_text("---\n{}\n")
    waits = 'case "$4 $1" in "alpha create") until grep -q "beta create" calls; do sleep 0.1; done;; esac\n'
    waits += 'case "$4 $1" in "beta verify") until grep -q "gamma verify" calls; do sleep 0.1; done;; esac\n'
    program = scenarios.ROOT / "bin/molecule"
    program.write_text(program.read_text().replace('echo "molecule says', f'{waits}echo "molecule says'))
    calls = runner().calls
    assert calls.index("torchserve destroy") > max(calls.index("beta verify"), calls.index("gamma verify"))
    assert len([call for call in calls if call.endswith(" verify")]) == 4
