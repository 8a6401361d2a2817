"""write_files: a role's directories and files in one call."""

import os
from pathlib import Path

import pytest
import write_files

OWNER = {"owner": str(os.geteuid()), "group": str(os.getegid())}


@pytest.fixture
def write(run_module, tmp_path):
    """Write one directory and one file below a fresh folder."""

    def run(content="a\n", mode="0640", check=False):
        directory = {"path": str(tmp_path / "etc"), "mode": "0750", **OWNER}
        file = {"path": str(tmp_path / "etc/settings"), "mode": mode, "content": content, **OWNER}
        return run_module(write_files, check=check, directories=[directory], files=[file])

    return run


def mode(path):
    return Path(path).stat().st_mode & 0o777


def test_directory_and_file_are_made_with_their_modes(write, tmp_path):
    result = write()
    assert result["changed_paths"] == [str(tmp_path / "etc"), str(tmp_path / "etc/settings")]
    assert (tmp_path / "etc/settings").read_text() == "a\n"
    assert (mode(tmp_path / "etc"), mode(tmp_path / "etc/settings")) == (0o750, 0o640)


def test_what_is_as_wanted_is_not_touched(write, tmp_path):
    write()
    before = (tmp_path / "etc/settings").stat()
    result = write()
    assert (result["changed"], result["changed_paths"], result["diff"]) == (False, [], [])
    after = (tmp_path / "etc/settings").stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)


def test_check_mode_announces_the_same_and_makes_nothing(write, tmp_path):
    announced = write(check=True)
    assert list(tmp_path.iterdir()) == []
    done = write()
    assert (announced["changed_paths"], announced["diff"]) == (done["changed_paths"], done["diff"])


@pytest.mark.parametrize("check", [True, False])
def test_the_diff_is_the_whole_change_of_the_file(write, check):
    write("a\nb\n")
    (difference,) = write("a\nc\n", check=check)["diff"]
    assert (difference["before"], difference["after"]) == ("a\nb\n", "a\nc\n")


def test_a_mode_alone_is_changed_without_writing(write, tmp_path):
    write()
    inode = (tmp_path / "etc/settings").stat().st_ino
    assert write(mode="0600", check=True)["changed"]
    assert mode(tmp_path / "etc/settings") == 0o640
    assert write(mode="0600")["changed_paths"] == [str(tmp_path / "etc/settings")]
    assert mode(tmp_path / "etc/settings") == 0o600
    assert (tmp_path / "etc/settings").stat().st_ino == inode


@pytest.mark.parametrize(("content", "written"), [("a", "a\n"), ("a\n\n", "a\n"), ("", "\n"), ("é", "é\n")])
def test_a_file_ends_with_one_newline(write, tmp_path, content, written):
    write(content)
    assert (tmp_path / "etc/settings").read_text() == written
    assert not write(content)["changed"]


def test_no_part_of_a_file_is_left_elsewhere(write, tmp_path):
    write()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["etc", "settings"]


@pytest.mark.parametrize("check", [True, False])
def test_a_file_in_the_way_of_a_directory_is_named(write, tmp_path, check):
    (tmp_path / "etc").write_text("mine")
    assert f"{tmp_path}/etc is to be a directory" in write(check=check)["msg"]
    assert (tmp_path / "etc").read_text() == "mine"


@pytest.mark.parametrize("check", [True, False])
def test_a_directory_in_the_way_of_a_file_is_named(write, tmp_path, check):
    (tmp_path / "etc/settings").mkdir(parents=True)
    assert f"{tmp_path}/etc/settings is to be a file" in write(check=check)["msg"]
