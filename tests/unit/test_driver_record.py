"""The record of a host's driver: what is written is read again, whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible.module_utils import driver_record
from ansible.module_utils.driver_facts import wanted_version
from ansible.module_utils.driver_record import DamagedRecordError, DriverSet, Record

OLD = DriverSet(
    version="535.261.03",
    packages={"libcuda1": "535.261.03-1", "nvidia-smi": None},
    holds=["libcuda1"],
    config={"/etc/apt/preferences.d/groundwork-nvidia-driver": "Package: x\n", "/etc/apt/apt.conf.d/51": None},
    sources=[["nvidia-current", "535.261.03"]],
    modules=["nvidia-current"],
    debs={"libcuda1": {"file": "libcuda1_535.261.03-1_amd64.deb", "sha256": "0" * 64}},
    wish={"version": "535.261.03", "pins": [{"package": "src:nvidia-graphics-drivers", "version": "535.261.03-*"}]},
)
NEW = DriverSet(version="535.309.01", packages={"libcuda1": "535.309.01-1"})
FULL = Record(
    current=OLD, previous=NEW, transaction={"before": OLD, "after": NEW}, rejected={"version": "580.95.05", "since": "2026-11-30"}
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "var/lib/groundwork/driver.json"


def write_json(path, **differences):
    path.parent.mkdir(parents=True)
    path.write_text(
        json.dumps({"format": 1, "current": None, "previous": None, "transaction": None, "rejected": None, **differences})
    )


@pytest.mark.parametrize("record", [Record(), Record(current=OLD), Record(current=DriverSet(), previous=OLD), FULL])
def test_a_record_that_was_written_is_read_as_it_was(tmp_path, record):
    driver_record.write(tmp_path, record)
    assert driver_record.read(tmp_path) == record


def test_a_host_without_record_has_an_empty_one(tmp_path):
    assert driver_record.read(tmp_path) == Record()


@pytest.mark.parametrize(("record", "version"), [(FULL, "535.261.03"), (Record(current=DriverSet()), None), (Record(), None)])
def test_facts_read_the_wanted_version_from_it(tmp_path, record, version):
    driver_record.write(tmp_path, record)
    assert wanted_version(tmp_path) == version


def test_anybody_may_read_it_and_no_draft_is_left(tmp_path, path):
    driver_record.write(tmp_path, FULL)
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_a_record_that_can_not_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    driver_record.write(tmp_path, Record(current=OLD))
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left on device"):
        driver_record.write(tmp_path, FULL)
    assert driver_record.read(tmp_path) == Record(current=OLD)


def test_file_and_name_are_on_the_disk_in_this_order(tmp_path, path, monkeypatch):
    """Packages change right after: a loss of power must not bring the record of before back."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append((Path(f"/proc/self/fd/{handle}").resolve(), path.exists())))
    driver_record.write(tmp_path, FULL)
    assert [(file.parent == path.parent, there) for file, there in synced] == [(True, False), (False, True)]
    assert synced[1][0] == path.parent


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "7",
        '"driver"',
        "{}",
        '{"format": 1}',
        '{"format": 2, "current": null, "previous": null, "transaction": null, "rejected": null}',
    ],
)
def test_a_damaged_record_is_refused_with_a_way_out(tmp_path, path, text):
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(DamagedRecordError) as caught:
        driver_record.read(tmp_path)
    assert str(caught.value).startswith("/var/lib/groundwork/driver.json is damaged (")
    assert "Move it away, and the next run takes the installed driver as the first one" in str(caught.value)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "differences",
    [
        {"current": {"version": "1", "colour": "green"}},
        {"previous": "535.261.03"},
        {"transaction": {"before": {"version": "1"}}},
        {"transaction": {"after": {"version": "1"}}},
        {"transaction": {"before": None, "after": {"version": "1"}}},
        {"transaction": ["before", "after"]},
    ],
)
def test_a_record_with_parts_that_are_not_understood_is_damaged(tmp_path, path, differences):
    write_json(path, **differences)
    with pytest.raises(DamagedRecordError, match="is damaged"):
        driver_record.read(tmp_path)


def test_a_record_of_bytes_that_are_no_text_is_damaged(tmp_path, path):
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DamagedRecordError, match="is damaged"):
        driver_record.read(tmp_path)


def test_fields_that_an_older_version_did_not_write_are_empty(tmp_path, path):
    write_json(path, current={"version": "535.261.03"})
    assert driver_record.read(tmp_path).current == DriverSet(version="535.261.03")


def test_a_set_is_named_as_messages_do():
    assert (str(OLD), str(DriverSet())) == ("driver 535.261.03", "no driver")
