"""The module reboot_flag on a made-up /run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import reboot_flag


class _Host:
    def __init__(self, root, run_module):
        self.root, self._run_module = root, run_module
        self.flag = root / "run/reboot-required"
        self.folder = root / "run/groundwork/reboot-required.d"
        (root / "run").mkdir()

    def run(self, source, reason="", **options):
        return self._run_module(reboot_flag, source=source, reason=reason, **options)

    def reasons(self):
        return {file.name: file.read_text() for file in self.folder.glob("[!.]*")}

    def package_asks(self):
        """As the hook of a kernel package does."""
        self.flag.write_text("*** System restart required ***\n")
        later = self.flag.stat().st_mtime_ns + 10**9
        os.utime(self.flag, ns=(later, later))


@pytest.fixture
def host(tmp_path, run_module, monkeypatch):
    monkeypatch.setattr(reboot_flag, "ROOT", tmp_path)
    return _Host(tmp_path, run_module)


def test_a_reason_is_kept_and_the_flag_of_the_distribution_set(host):
    result = host.run("nouveau_blacklist", "nouveau is in use")
    assert result["changed"]
    assert result["reasons"] == {"nouveau_blacklist": "nouveau is in use"}
    assert host.reasons() == {"nouveau_blacklist": "nouveau is in use\n"}
    assert host.flag.read_text() == "*** System restart required ***\n"


def test_the_same_reason_again_changes_nothing(host):
    host.run("nouveau_blacklist", "nouveau is in use")
    result = host.run("nouveau_blacklist", "nouveau is in use")
    assert not result["changed"]
    assert result["diff"]["before"] == result["diff"]["after"] == "nouveau_blacklist: nouveau is in use\n"


def test_another_reason_takes_its_place(host):
    host.run("nvidia_driver", "old")
    result = host.run("nvidia_driver", "new")
    assert result["changed"]
    assert (result["diff"]["before"], result["diff"]["after"]) == ("nvidia_driver: old\n", "nvidia_driver: new\n")
    assert host.reasons() == {"nvidia_driver": "new\n"}


def test_a_reason_of_several_lines_becomes_one(host):
    host.run("nvidia_driver", "first\n  second\n")
    assert host.reasons() == {"nvidia_driver": "first second\n"}


def test_the_flag_stays_while_one_reason_is_left(host):
    host.run("nouveau_blacklist", "a")
    host.run("nvidia_driver", "b")
    assert host.run("nouveau_blacklist")["reasons"] == {"nvidia_driver": "b"}
    assert host.flag.exists()


def test_the_flag_goes_with_the_last_reason(host):
    host.run("nouveau_blacklist", "a")
    assert host.run("nouveau_blacklist")["changed"]
    assert not host.flag.exists()
    assert host.reasons() == {}
    assert not host.run("nouveau_blacklist")["changed"]


def test_a_flag_that_a_package_had_set_stays(host):
    host.package_asks()
    host.run("nouveau_blacklist", "a")
    host.run("nouveau_blacklist")
    assert host.flag.exists()


def test_a_flag_that_a_package_wanted_too_later_stays(host):
    host.run("nouveau_blacklist", "a")
    host.package_asks()
    host.run("nouveau_blacklist")
    assert host.flag.exists()


def test_a_flag_to_which_a_package_only_added_its_name_stays(host):
    host.run("nouveau_blacklist", "a")
    (host.root / "run/reboot-required.pkgs").write_text("linux-image-6.1.0-57-amd64\n")
    assert host.run("nouveau_blacklist")["reasons"] == {}
    assert host.flag.exists()


class _Killed(BaseException):
    """The end of the process."""


@pytest.mark.parametrize("moment", range(4))
def test_a_run_that_was_killed_while_it_set_the_flag_leaves_none_that_stays_for_ever(host, monkeypatch, moment):
    """The process ends before each of its writes in turn."""
    left = iter(range(moment))

    def counted(work):
        def write(*arguments, **options):
            if next(left, None) is None:
                raise _Killed
            return work(*arguments, **options)

        return write

    with monkeypatch.context() as patch:
        for name in ("write_text", "replace"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        with pytest.raises(_Killed):
            host.run("nouveau_blacklist", "a")
    host.run("nouveau_blacklist", "a")
    assert host.flag.exists()
    host.run("nouveau_blacklist")
    assert not host.flag.exists()


def test_a_flag_that_somebody_removed_is_set_again_while_there_is_a_reason(host):
    host.run("nouveau_blacklist", "a")
    host.flag.unlink()
    assert host.run("nouveau_blacklist", "a")["changed"]
    assert host.flag.exists()


def test_a_run_that_was_killed_before_the_flag_went_is_completed(host):
    host.run("nouveau_blacklist", "a")
    (host.folder / "nouveau_blacklist").unlink()
    assert host.run("nouveau_blacklist")["changed"]
    assert not host.flag.exists()


def test_a_host_that_needs_no_reboot_is_not_touched(host):
    result = host.run("nouveau_blacklist")
    assert (result["changed"], result["reasons"]) == (False, {})
    assert list((host.root / "run").iterdir()) == []


@pytest.mark.parametrize("before", ["", "old", "new"])
@pytest.mark.parametrize("after", ["", "new"])
def test_check_mode_announces_the_same_and_writes_nothing(host, before, after):
    host.run("nvidia_driver", before)
    state = sorted(str(path) for path in host.root.rglob("*")), host.reasons()
    announced = host.run("nvidia_driver", after, check=True)
    assert (sorted(str(path) for path in host.root.rglob("*")), host.reasons()) == state
    done = host.run("nvidia_driver", after)
    assert [announced[key] for key in ("changed", "diff", "reasons")] == [done[key] for key in ("changed", "diff", "reasons")]


@pytest.mark.parametrize("source", ["", "../../etc/passwd", ".made", "a/b", "-x"])
def test_a_source_that_is_no_name_is_refused(host, source):
    result = host.run(source, "a")
    assert result["failed"]
    assert "is no name of a role" in result["msg"]
    assert not host.flag.exists()
