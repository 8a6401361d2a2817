"""The facts of the scenario's container, held against what the container itself says."""

from __future__ import annotations

import json
import subprocess

import pytest


@pytest.fixture(scope="module")
def facts(host, tmp_path_factory):
    """Run the module as the role does, since facts leave nothing on the host."""
    name, results = host.backend.name, tmp_path_factory.mktemp("facts")
    connection = ("-e", "ansible_connection=lab_podman")
    options = ("-m", "groundwork_facts", "-a", '{"reachable": ["127.0.0.1:1"]}', "--tree", results)
    subprocess.run(["ansible", "-i", f"{name},", name, *connection, *options], check=True, capture_output=True)
    return json.loads((results / name).read_text())["ansible_facts"]["groundwork_gpu"]


def test_the_distribution_is_the_one_that_the_container_was_built_from(facts):
    assert facts["distribution"] == {"id": "debian", "version_id": "12", "codename": "bookworm"}


def test_the_architecture_has_the_name_that_dpkg_uses(host, facts):
    assert facts["architecture"] == host.check_output("dpkg --print-architecture")


def test_the_running_kernel_is_that_of_uname(host, facts):
    assert facts["kernel"]["running"] == host.check_output("uname -r")


def test_a_container_has_no_kernel_of_its_own(facts):
    assert facts["kernel"]["installed"] == []


def test_memory_is_what_the_kernel_reports(host, facts):
    assert facts["memory_mib"] == int(host.check_output("awk '/^MemTotal:/ {print int($2 / 1024)}' /proc/meminfo"))


def test_use_of_the_root_file_system_is_that_of_df(host, facts):
    """Within one percent, as other containers write to the same disk."""
    used = int(host.check_output("df --output=pcent / | tail -1").strip(" %"))
    assert facts["root_filesystem"]["used_percent"] == pytest.approx(used, abs=1)


def test_the_container_manager_is_known(facts):
    assert facts["virtualization"]["container"] == "podman"


def test_python_is_the_one_that_runs_modules(host, facts):
    assert facts["python"] == host.check_output("python3 --version").removeprefix("Python ")


def test_the_clock_of_a_container_is_not_judged(facts):
    assert facts["clock_synchronized"] is None


def test_a_closed_port_is_reported_with_the_reason(facts):
    assert facts["reachable"] == [{"endpoint": "127.0.0.1:1", "error": "[Errno 111] Connection refused"}]
