"""Fixtures shared by the unit tests."""

import json
from pathlib import Path

import ansible.module_utils
import pytest
from ansible.module_utils.testing import patch_module_args

ROOT = Path(__file__).parents[2]

# Ansible finds module_utils/ through ansible.cfg; in-process tests find it here.
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))


@pytest.fixture
def run_module(capfd, monkeypatch):
    """Run a module's main() as Ansible would and return its result."""
    # A test of a filter imports Ansible's controller side; a module's warnings would then go to the screen.
    monkeypatch.setattr("ansible.module_utils._internal.is_controller", False)

    def run(module, *, check=False, diff=True, **params):
        args = {**params, "_ansible_check_mode": check, "_ansible_diff": diff}
        with patch_module_args(args), pytest.raises(SystemExit):
            module.main()
        return json.loads(capfd.readouterr().out)

    return run
