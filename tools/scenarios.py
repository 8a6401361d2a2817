#!/usr/bin/env python3
"""Run Molecule scenarios and print a table: scenario, result, seconds.

Each scenario is: a dry run on the fresh host, the run, a second run that must change nothing, a dry run that must announce
nothing, what the scenario's side_effect.yml does (if it has one), the assertions. A failing scenario does not hide the
others. Output goes to a log per scenario; the end of it is shown when a step fails.

Scenarios on virtual machines and those in containers run beside each other, one of each kind: both wait half of the time, for
the controller or for their disks. A scenario that asserts how long something takes runs alone, at the end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / ".cache" / "molecule"
#: Those that assert a time.
MEASURING = {"torchserve"}
CHECK = ["--", "--check", "--diff"]
STEPS = {
    "create": ["create"],
    "dry run on the fresh host": ["converge", *CHECK],
    "converge": ["converge"],
    "idempotence": ["idempotence"],
    "dry run announces nothing": ["idempotence", *CHECK],
    "side effects": ["side-effect"],
    "verify": ["verify"],
}


def molecule(scenario: str, command: list[str], log: Path) -> int:
    """Run one molecule command of a scenario, its output appended to the log."""
    subcommand, *arguments = command
    argv = ["molecule", subcommand, "--no-command-borders", "--scenario-name", scenario, *arguments]
    with log.open("a") as output:
        output.write(f"\n$ {' '.join(argv)}\n")
        output.flush()
        return subprocess.run(argv, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False).returncode


def run_scenario(scenario: str, *, keep: bool) -> str | None:
    """Run all steps of a scenario; return the step that failed, or None."""
    log = LOGS / f"{scenario}.log"
    log.unlink(missing_ok=True)
    molecule(scenario, ["destroy"], log)  # what an interrupted run left
    molecule(scenario, ["reset"], log)
    failed = None
    for step, command in STEPS.items():
        if step == "side effects" and not (ROOT / "molecule" / scenario / "side_effect.yml").exists():
            continue
        started = time.monotonic()
        code = molecule(scenario, command, log)
        print(f"{scenario:<26} {step:<28} {'ok' if code == 0 else 'FAILED':<7} {time.monotonic() - started:6.1f} s", flush=True)
        if code != 0:
            failed = step
            print(f"--- end of {log.relative_to(ROOT)}", *log.read_text().splitlines()[-60:], "---", sep="\n", flush=True)
            break
    if not (keep and failed):
        molecule(scenario, ["destroy"], log)
    return failed


def lane(scenario: str) -> str:
    """Return where a scenario runs: on machines, in containers, or alone."""
    if scenario in MEASURING:
        return "alone"
    platforms = (yaml.safe_load((ROOT / "molecule" / scenario / "molecule.yml").read_text()) or {}).get("platforms", [])
    return "machines" if any("machines" in platform.get("groups", []) for platform in platforms) else "containers"


def main() -> int:
    """Run the scenarios that were named, or all."""
    known = sorted(path.parent.name for path in ROOT.glob("molecule/*/molecule.yml"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="*", help=f"one or more of: {', '.join(known)} (default: all)")
    parser.add_argument("--keep", action="store_true", help="leave the hosts of a failed scenario for a look")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.scenario) - set(known))
    if unknown:
        parser.error(f"no such scenario: {', '.join(unknown)}; there are: {', '.join(known)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # molecule starts ansible by name
    os.environ["NO_COLOR"] = os.environ["ANSIBLE_NOCOLOR"] = "1"

    def run(names: list[str]) -> list[tuple[str, str, float]]:
        rows = []
        for scenario in names:
            started = time.monotonic()
            failed = run_scenario(scenario, keep=arguments.keep)
            rows.append((scenario, f"failed: {failed}" if failed else "ok", time.monotonic() - started))
        return rows

    chosen = arguments.scenario or known
    machines, containers, alone = (
        [name for name in chosen if lane(name) == kind] for kind in ("machines", "containers", "alone")
    )
    with ThreadPoolExecutor() as pool:
        beside = [pool.submit(run, names) for names in (machines, containers)]
    rows = sorted([*beside[0].result(), *beside[1].result(), *run(alone)])
    print(f"\n{'scenario':<24} {'result':<40} seconds")
    for scenario, result, seconds in rows:
        print(f"{scenario:<24} {result:<40} {seconds:7.1f}")
    failures = sum(result != "ok" for _, result, _ in rows)
    print(f"\nscenarios: {len(rows) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
