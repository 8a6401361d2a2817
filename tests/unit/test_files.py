"""module_utils/files.py: a file is replaced as a whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from ansible.module_utils import files


def mode(path):
    return path.stat().st_mode & 0o777


def test_a_new_file_comes_with_its_folders_and_is_readable(tmp_path):
    files.replace(tmp_path / "a/b/c", "text\n")
    assert ((tmp_path / "a/b/c").read_text(), mode(tmp_path / "a/b/c")) == ("text\n", 0o644)


@pytest.mark.parametrize(("asked", "got"), [(None, 0o600), (0o640, 0o640)])
def test_a_file_that_is_there_keeps_its_mode_unless_another_one_is_asked_for(tmp_path, asked, got):
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o600)
    files.replace(path, b"new\xff", asked)
    assert (path.read_bytes(), mode(path)) == (b"new\xff", got)


def test_bytes_that_are_no_text_survive(tmp_path):
    files.replace(tmp_path / "file", b"\xff\n".decode(errors="surrogateescape"))
    assert (tmp_path / "file").read_bytes() == b"\xff\n"


def test_a_link_stays_and_leads_to_the_new_content(tmp_path):
    (tmp_path / "link").symlink_to("target")
    files.replace(tmp_path / "link", "new", durable=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.replace(path, "new", durable=True)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"file": "old"}


def test_a_reader_sees_the_old_content_until_the_new_one_is_complete(tmp_path, monkeypatch):
    path, seen = tmp_path / "file", []
    path.write_text("old")
    rename = Path.replace
    monkeypatch.setattr(
        Path, "replace", lambda draft, target: (seen.append((path.read_text(), draft.read_text())), rename(draft, target))
    )
    files.replace(path, "new")
    assert seen == [("old", "new")]
    assert path.read_text() == "new"


def test_the_draft_of_an_interrupted_run_does_not_stay(tmp_path):
    (tmp_path / ".file.groundwork-new").write_text("half of something")
    files.replace(tmp_path / "file", "whole")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "whole"}
