"""The module kernel_modules_absent on a made-up /proc/modules; a stand-in takes the place of modprobe."""

from __future__ import annotations

import time

import kernel_modules_absent
import pytest
from ansible.module_utils.kernel_modules import parse_modules, plan_removal

LOADED = """\
nouveau 2457600 {nouveau} - Live 0x0000000000000000
drm_ttm_helper 16384 1 nouveau, Live 0x0000000000000000
ttm 102400 2 nouveau,drm_ttm_helper, Live 0x0000000000000000
nova_drm 24576 {nova_drm} - Live 0x0000000000000000
nova_core 98304 {nova_core} nova_drm, Live 0x0000000000000000
video 65536 1 nouveau, Live 0x0000000000000000
"""
#: Stand-in for modprobe: takes the module out of the made-up list, or does what the file `trouble` says.
STAND_IN = """\
#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >> calls
[ -e trouble ] && . ./trouble
sed -i "/^$3 /d" proc/modules
"""


@pytest.fixture
def host(tmp_path, run_module, monkeypatch):
    """Run the module on a host with these modules loaded, and this trouble with modprobe."""
    program = tmp_path / "modprobe"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    (tmp_path / "proc").mkdir()
    (tmp_path / "calls").touch()
    monkeypatch.setattr(kernel_modules_absent, "ROOT", tmp_path)
    monkeypatch.setattr(kernel_modules_absent.AnsibleModule, "get_bin_path", lambda *_, **__: str(program))

    def run(*names, loaded=LOADED, trouble=None, **options):
        if loaded is not None:
            (tmp_path / "proc/modules").write_text(
                loaded.format(**{"nouveau": 0, "nova_drm": 0, "nova_core": 1, **options.pop("used", {})})
            )
        if trouble:
            (tmp_path / "trouble").write_text(trouble)
        result = run_module(kernel_modules_absent, names=list(names), **options)
        return result, (tmp_path / "calls").read_text().splitlines()

    return run


def test_a_module_that_is_not_loaded_is_fine(host):
    result, calls = host("nvidiafb", "nouveau", loaded="video 65536 0 - Live 0x0000000000000000\n")
    assert (result["changed"], result["reboot_required"], result["reason"], calls) == (False, False, "", [])


@pytest.mark.parametrize("loaded", ["", None], ids=["none is loaded", "a kernel without modules has no list of them"])
def test_a_host_without_modules_is_fine(host, loaded):
    result, calls = host("nouveau", loaded=loaded)
    assert (result["changed"], result["reboot_required"], calls) == (False, False, [])


def test_a_module_that_nothing_uses_is_unloaded(host):
    result, calls = host("nouveau")
    assert (result["changed"], result["unloaded"], result["reboot_required"]) == (True, ["nouveau"], False)
    assert calls == ["-r -i nouveau"]
    assert (result["diff"]["before"], result["diff"]["after"]) == ("nouveau: loaded\n", "nouveau: not loaded\n")


def test_modules_go_after_those_that_use_them(host):
    result, calls = host("nova_core", "nova_drm")
    assert result["unloaded"] == ["nova_drm", "nova_core"]
    assert calls == ["-r -i nova_drm", "-r -i nova_core"]


def test_a_dash_in_a_name_is_an_underscore(host):
    assert host("nova-drm")[0]["unloaded"] == ["nova_drm"]


@pytest.mark.parametrize("check", [True, False])
def test_a_module_in_use_stays_and_asks_for_a_reboot(host, check):
    result, calls = host("nouveau", used={"nouveau": 3}, check=check)
    assert (result["changed"], result["reboot_required"], calls) == (False, True, [])
    assert result["reason"] == "nouveau stays loaded until the next boot: it is in use (3 references)"


def test_the_modules_that_use_one_are_named(host):
    result, calls = host("nova_core")
    assert calls == []
    assert result["reason"] == "nova_core stays loaded until the next boot: it is in use by nova_drm (1 references)"


def test_a_module_below_one_in_use_is_not_tried(host):
    result, calls = host("nova_core", "nova_drm", used={"nova_drm": 1})
    assert (calls, result["unloaded"], result["reboot_required"]) == ([], [], True)


def test_one_that_others_use_too_stays(host):
    result, calls = host("nova_core", "nova_drm", used={"nova_core": 2})
    assert (calls, result["unloaded"]) == (["-r -i nova_drm"], ["nova_drm"])
    assert "nova_core stays loaded until the next boot: it is in use" in result["reason"]


def test_a_removal_that_fails_asks_for_a_reboot(host):
    trouble = "echo 'modprobe: FATAL: Module nouveau is in use.' >&2; exit 1"
    result, _ = host("nouveau", trouble=trouble)
    assert (result["changed"], result["unloaded"], result["reboot_required"]) == (False, [], True)
    assert "`modprobe -r nouveau` failed: modprobe: FATAL: Module nouveau is in use." in result["reason"]


def test_a_removal_that_hangs_is_given_up(host):
    start = time.monotonic()
    result, _ = host("nouveau", trouble="trap '' TERM; exec sleep 20", timeout=1)
    assert time.monotonic() - start < 10
    assert result["reason"] == "nouveau stays loaded until the next boot: `modprobe -r nouveau` did not end within 1 s"


def test_a_module_that_comes_back_is_not_called_unloaded(host):
    result, _ = host("nouveau", trouble="exit 0")
    assert (result["changed"], result["reboot_required"]) == (False, True)
    assert "loaded after it was unloaded" in result["reason"]


def test_check_mode_makes_the_same_plan_and_unloads_nothing(host):
    planned, calls = host("nova_core", "nouveau", "nova_drm", check=True)
    assert calls == []
    done, _ = host("nova_core", "nouveau", "nova_drm")
    assert {**planned, "invocation": None} == {**done, "invocation": None}
    assert done["unloaded"] == ["nouveau", "nova_drm", "nova_core"]


def test_a_kernel_that_cannot_unload_modules_counts_them_as_used():
    assert plan_removal(parse_modules("nouveau 2457600 - - Live 0x0000000000000000\n"), ["nouveau"])[0] == []
