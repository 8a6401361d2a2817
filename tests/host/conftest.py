"""What the assertions on hosts share: which hosts a role's file is for, figures worth printing, and logs on failure."""

import json
import os
from pathlib import Path

import pytest

FIGURES = []


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc):
    """Give each role's file the hosts that playbooks/verify.yml names; Molecule passes --hosts itself."""
    if "GROUNDWORK_VERIFY" in os.environ:
        role = Path(metafunc.module.__file__).stem.removeprefix("test_")
        metafunc.module.testinfra_hosts = json.loads(os.environ["GROUNDWORK_VERIFY"]).get(role, [])


@pytest.fixture
def figure(request):
    """Print a measured figure at the end of the run, whether the test passes or not."""

    def add(text):
        host = request.node.callspec.params.get("_testinfra_host", "")
        FIGURES.append(f"{host}: {text}")

    return add


def pytest_terminal_summary(terminalreporter):
    """Print the figures."""
    for line in FIGURES:
        terminalreporter.write_line(f"measured: {line}")
