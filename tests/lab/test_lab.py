"""The lab from nothing to nothing, as a user drives it. It makes and removes the lab of this machine: `make acceptance`.

The tests run in order; each one starts from what the one before has left.
"""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]
SITE = ["ansible-playbook", "-i", "inventories/lab", "playbooks/site.yml"]
VERIFY = ["ansible-playbook", "-i", "inventories/lab", "playbooks/verify.yml"]
SERVING = ["ansible-playbook", "-i", "inventories/lab", "playbooks/serving.yml"]
HOSTS = ("lab-gpu1", "lab-edge1")


def run(*argv, **options):
    """Run a command in the repository; return exit code, output and seconds."""
    started = time.monotonic()
    result = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    return result.returncode, result.stdout, time.monotonic() - started


def podman(*argv):
    return subprocess.run(["podman", *argv], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def changes(output):
    """Return host -> number of changed tasks, from the recap."""
    return {host: int(count) for host, count in re.findall(r"^(lab-\S+)\s+: ok=\d+\s+changed=(\d+)", output, re.MULTILINE)}


def kill_at(task, *argv):
    """Start a run and kill it, with all that it started here, as soon as a task begins."""
    with subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        for line in process.stdout:
            if line.startswith(f"TASK [{task}"):
                time.sleep(1)  # into the task
                os.killpg(process.pid, signal.SIGKILL)
                return
    pytest.fail(f"the run never came to the task {task!r}")


@pytest.fixture(scope="module", autouse=True)
def report():
    """Print the figures of the whole sequence."""
    figures = []
    yield figures.append
    print("", *figures, sep="\nmeasured: ")


def test_the_lab_starts_from_nothing(report):
    run("make", "lab-down")
    code, output, seconds = run("make", "lab-hosts")
    assert code == 0, output
    report(f"make lab-hosts, virtual environment and images cached: {seconds:.0f} s")


def test_a_dry_run_on_fresh_hosts_succeeds_and_changes_nothing():
    code, output, _ = run(*SITE, "--check", "--diff")
    assert code == 0, output
    assert all(changes(output)[host] > 0 for host in HOSTS), "it announces what it would do"
    assert podman("exec", "lab-gpu1", "sh", "-c", "ls -d /opt/torchserve /etc/torchserve 2>/dev/null || true") == ""


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"torchserve_auth": "maybe"}, ["torchserve_auth", "maybe", "token, disabled"]),
        ({"torchserve_inference_port": "eighty"}, ["torchserve_inference_port", "eighty"]),
        ({"torchserve_inference_prot": 8080}, ["torchserve_inference_prot", "torchserve_inference_port"]),
        ({"host_limits_journal_max_use": "much"}, ["host_limits_journal_max_use", "much", "10G"]),
        ({"sysctl_tuning_parameters": [{"name": "vm.swapiness", "value": 1}]}, ["vm.swapiness", "optional"]),
        ({"sysctl_tuning_parameters": [{"name": "vm.swappiness", "value": "few"}]}, ["vm.swappiness", "few"]),
        ({"torchserve_auth": "disabled"}, ["torchserve_auth", "127.0.0.1"]),
        ({"torchserve_config": {"batch_size": 4}}, ["batch_size", "torchserve_models"]),
        ({"torchserve_config": {"job_queue": 4}}, ["job_queue", "job_queue_size"]),
        ({"torchserve_models": [{"name": "m", "version": "1", "archive": "models/m.mar"}]}, ["weights_sha256"]),
        ({"torchserve_memory_max": "lots"}, ["torchserve_memory_max", "lots", "24G"]),
        ({"torchserve_inference_address": "::1"}, ["torchserve_inference_address", "::1", "IPv4"]),
        ({"torchserve_cuda_visible_devices": "GPU-1"}, ["torchserve_cuda_visible_devices", "GPU-1"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_input_is_refused_before_anything_changes(variables, told):
    code, output, _ = run(*SITE, "--extra-vars", json.dumps(variables))
    assert code != 0
    assert sum(changes(output).values()) == 0
    message = " ".join(output.split())
    assert [text for text in told if text not in message] == []


@pytest.mark.parametrize(
    "task",
    [
        "torchserve : Install | Packages, from the archive alone",
        "torchserve : Configure | Directories",
        "torchserve : Run | Load and unload models",
    ],
)
def test_a_run_may_be_killed(task):
    kill_at(task, *SITE)


def test_the_next_run_converges_and_answers(report):
    code, output, seconds = run("make", "lab")
    assert code == 0, output
    report(f"make lab after three killed runs: {seconds:.0f} s")
    answer = json.loads(re.search(r"Answer:\n\s+(\{.*\})", output)[1])
    assert answer.keys() == {"prediction", "latency_ms", "gpu_util_pct", "memory_used_gb"}
    assert answer["prediction"] == "positive"
    assert "sent from lab-edge1 to lab-gpu1" in output
    assert re.search(r"Metrics:\s+http://[\d.]+:8082/metrics", output)
    assert "Logs:        podman exec lab-gpu1 journalctl -u torchserve.service" in output
    report("\n".join(re.findall(r"measured: (.*loads in.*)", output)))


def test_a_second_run_changes_nothing_within_a_minute(report):
    code, output, seconds = run("make", "lab")
    assert code == 0, output
    assert changes(output) == dict.fromkeys(HOSTS, 0)
    report(f"make lab on the converged lab: {seconds:.0f} s (limit 60 s)")
    assert seconds <= 60


def test_a_dry_run_on_converged_hosts_announces_nothing():
    code, output, _ = run(*SITE, "--check", "--diff")
    assert code == 0, output
    assert changes(output) == dict.fromkeys(HOSTS, 0)


def test_publishing_under_load_loses_no_request(report):
    """100 callers on the other host while a new version takes the place of the old one."""
    contract = json.loads(podman("exec", "lab-gpu1", "cat", "/etc/groundwork/serving.json"))
    token = json.loads(podman("exec", "lab-gpu1", "cat", contract["token_file"]))["inference"]["key"]
    address = urlsplit(contract["inference"])
    podman("cp", "tests/lab/load.py", "lab-edge1:/root/load.py")
    load = ["podman", "exec", "lab-edge1", "python3", "/root/load.py", address.hostname, str(address.port), token, "/root/stop"]
    models = [{"name": "text_classifier", "version": "2.0.0", "archive": "sample", "probe": {"text": "It works."}}]
    with subprocess.Popen(load, stdout=subprocess.PIPE, text=True) as callers:
        code, output, _ = run(*SERVING, "--extra-vars", json.dumps({"torchserve_models": models}))
        assert callers.poll() is None, "the callers stopped before the run did"
        podman("exec", "lab-edge1", "touch", "/root/stop")
        outcomes = json.loads(callers.communicate()[0])
    assert code == 0, output
    assert outcomes.keys() == {"200"}, outcomes
    report(f"requests answered while a version was exchanged: {outcomes['200']}, lost: 0")
    code, output, _ = run(*SERVING)
    assert code == 0, output


def test_verify_obeys_the_limit():
    code, output, _ = run(*VERIFY, "--limit", "lab-edge1")
    assert code == 0, output
    results = (ROOT / ".cache/verify.xml").read_text()
    assert "podman://lab-edge1" in results
    assert "podman://lab-gpu1" not in results


def test_verify_fails_where_an_assertion_does_not_hold():
    podman("exec", "lab-gpu1", "systemctl", "stop", "torchserve.service")
    code, output, _ = run(*VERIFY, "--limit", "serving")
    assert code != 0
    assert "test_the_service_runs_and_starts_at_boot[podman://lab-gpu1]" in output


def test_a_stopped_service_is_brought_back_by_the_next_run():
    code, output, _ = run(*SITE, "--tags", "serving")
    assert code == 0, output
    assert changes(output)["lab-gpu1"] == 1


def test_lab_down_leaves_nothing_behind():
    code, output, _ = run("make", "lab-down")
    assert code == 0, output
    assert podman("ps", "--all", "--quiet", "--filter", "label=groundwork") == ""
    assert "groundwork-lab" not in podman("network", "ls", "--format", "{{.Name}}")
    assert podman("images", "--quiet", "--filter", "reference=localhost/groundwork-lab") == ""
    assert podman("volume", "ls", "--quiet") == ""
