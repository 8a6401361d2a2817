"""fstab: which lines are entries, and that a change leaves every other byte as it is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
from ansible.module_utils import fstab
from hypothesis import given, settings
from hypothesis import strategies as st

PREFIX = "# off: "


def entry(line):
    [parsed] = fstab.parse(line)
    return parsed


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("UUID=0a34 none swap sw 0 0", ("UUID=0a34", "none", "swap", "sw")),
        ("/dev/vda2\tswap\t\tswap", ("/dev/vda2", "swap", "swap", None)),
        (" \t/dev/vda2 none swap sw,pri=5 0 0", ("/dev/vda2", "none", "swap", "sw,pri=5")),
        ("/dev/vda2 none swap sw 0", ("/dev/vda2", "none", "swap", "sw")),
        ("/dev/vda2 none swap sw -1 +2 # kept", ("/dev/vda2", "none", "swap", "sw")),
        ("/dev/vda2 none swap sw 0 0\r", ("/dev/vda2", "none", "swap", "sw")),
        (r"/swap\040file none sw\141p s\134w 0 0", ("/swap file", "none", "swap", r"s\w")),
        (r"/a\9b\04 /mnt ext4", (r"/a\9b\04", "/mnt", "ext4", None)),
        ("/dev/vda2 none swap\x0bsw 0 0", ("/dev/vda2", "none", "swap\x0bsw", "0")),
        ("\x0b/dev/vda2 none swap\x0b", ("\x0b/dev/vda2", "none", "swap\x0b", None)),
        ("LABEL=swap /data/swapfiles ext4 swap 0 2  ", ("LABEL=swap", "/data/swapfiles", "ext4", "swap")),
    ],
)
def test_fields_are_read_as_libmount_reads_them(line, fields):
    assert entry(line)[1:] == fields


@pytest.mark.parametrize("line", ["", "   ", "\t\r", "# /dev/vda2 none swap sw 0 0", " \t#x none swap", "#swap swap swap"])
def test_blank_lines_and_comments_say_nothing(line):
    assert list(fstab.parse(line)) == []


@pytest.mark.parametrize(
    "line", ["/dev/vda2 none", "swap", "/dev/vda2 none swap sw x", "/dev/vda2 none swap sw 0 1a", "/dev/vda2 none swap sw # why"]
)
def test_a_line_that_can_not_be_read_is_returned_with_its_number(line):
    assert list(fstab.parse(f"# first\n\n{line}\n")) == [fstab.Fault(3, line)]


@pytest.mark.skipif(not shutil.which("findmnt"), reason="util-linux is not installed")
def test_findmnt_reads_the_same_entries(tmp_path):
    file = tmp_path / "fstab"
    file.write_bytes(
        b"# UUID=1 none swap sw 0 0\n\nUUID=2 none swap sw 0 0\n  /dev/vda2\tswap\tswap\n"
        b"/swap\\054file none sw\\141p sw,pri=5\r\n"
        b"LABEL=swap /data/swapfiles ext4 swap 0 2\n#x none swap\n\t#y none swap\ntmpfs /tmp tmpfs defaults 0 0 # swap\n"
        b"/dev/vdb none swap -1 0 0"
    )
    command = ["findmnt", "--tab-file", file, "--noheadings", "--raw", "--output", "SOURCE,TARGET,FSTYPE"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ours = [f"{line.source} {line.target} {line.fstype}" for line in fstab.parse(fstab.read(file))]
    assert shown.splitlines() == ours
    assert len(ours) == 6


# Random files


BLANKS = st.text(" \t", min_size=1, max_size=3).map(str.encode)
NAMES = st.binary(min_size=1, max_size=6).map(lambda raw: bytes(byte for byte in raw if byte > 32).lstrip(b"#") or b"\xe9")
SOURCES = st.sampled_from(
    [b"UUID=0a34-99", b"LABEL=swap", b"PARTUUID=swap-1", b"/dev/mapper/vg-swap", b"/swap\\040file", b"swap"]
)
NUMBER = st.sampled_from([b"0", b"1", b"-1", b"+2", b"00"])
TAILS = st.one_of(
    st.just([]),
    st.sampled_from([b"sw", b"defaults,pri=5", b"swap", b"noauto,nofail,x-systemd.device-timeout=5"]).map(
        lambda options: [options]
    ),
    st.tuples(st.just(b"sw"), NUMBER).map(list),
    st.tuples(st.just(b"sw"), NUMBER, NUMBER).map(list),
    st.tuples(st.just(b"sw"), NUMBER, NUMBER, NAMES).map(list),
)


@st.composite
def lines(draw, types, targets, faulty=False):
    fields = [draw(SOURCES), draw(targets), draw(types), *draw(TAILS)]
    if faulty:
        fields = draw(st.sampled_from([fields[:2], fields[:1], [*fields[:3], b"sw", b"x"], [*fields[:3], b"sw", b"0", b"0o"]]))
    lead, end = draw(st.sampled_from([b"", b" ", b"\t "])), draw(st.sampled_from([b"", b" ", b"\t"]))
    text = fields[0]
    for following in fields[1:]:
        text += draw(BLANKS) + following
    return lead + text + end


SWAPS = lines(st.sampled_from([b"swap", b"sw\\141p", b"\\163wap"]), st.sampled_from([b"none", b"swap", b"/", b"/data/swapfiles"]))
OTHERS = st.one_of(
    lines(
        st.sampled_from([b"ext4", b"swapfs", b"Swap", b"swap,x", b"tmpfs"]),
        st.sampled_from([b"/data/swapfiles", b"swap", b"none"]),
    ),
    st.sampled_from([b"", b"  \t", b"# none swap sw 0 0", b"#/dev/vda2 none swap sw 0 0", b"\t # swap\tswap\tswap"]),
    NAMES.map(lambda name: b"# " + name),
    st.tuples(NAMES, NAMES).map(lambda names: names[0] + b" /" + names[1] + b" ext4 swap"),
)
FAULTS = lines(st.just(b"swap"), st.just(b"none"), faulty=True)
ROWS = st.one_of(st.tuples(st.just(True), SWAPS), st.tuples(st.just(False), OTHERS))
FILES = st.tuples(st.lists(ROWS, max_size=8), st.sampled_from([b"\n", b"\r\n"]), st.booleans())


def text_of(file, prefix=b""):
    """A file of rows; those of swap begin with a prefix."""
    rows, newline, final = file
    return newline.join(prefix + line if swap else line for swap, line in rows) + (newline if final else b"")


def without_swap(text):
    swaps = {line.line for line in fstab.parse(os.fsdecode(text)) if line.fstype == "swap"}
    return os.fsencode(fstab.comment_out(os.fsdecode(text), swaps, PREFIX))


@settings(max_examples=120, deadline=None)
@given(FILES)
def test_only_entries_of_swap_change_and_the_rest_stays_byte_for_byte(file):
    before, expected = text_of(file), text_of(file, PREFIX.encode())
    assert without_swap(before) == expected
    assert without_swap(expected) == expected
    assert re.sub(rb"^# off: ", b"", expected, flags=re.MULTILINE) == before


@settings(max_examples=60, deadline=None)
@given(FILES, FAULTS, st.integers(0, 8))
def test_a_line_that_can_not_be_read_is_found_wherever_it_stands(file, fault, place):
    rows, newline, final = file
    text = text_of(([*rows[:place], (False, fault), *rows[place:]], newline, final))
    found = [line for line in fstab.parse(os.fsdecode(text)) if isinstance(line, fstab.Fault)]
    assert [(line.line, os.fsencode(line.text)) for line in found] == [(min(place, len(rows)) + 1, fault)]


# Files


def test_a_missing_file_has_no_text(tmp_path):
    assert fstab.read(tmp_path / "fstab") is None


def test_a_file_keeps_its_mode_and_bytes_when_it_is_replaced(tmp_path):
    file = tmp_path / "fstab"
    file.write_bytes(b"# caf\xe9\r\n/dev/vda2 none swap")
    file.chmod(0o640)
    fstab.write(file, fstab.comment_out(fstab.read(file), {2}, PREFIX))
    assert file.read_bytes() == b"# caf\xe9\r\n# off: /dev/vda2 none swap"
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_keeps_its_owner_when_it_is_replaced(tmp_path):
    file = tmp_path / "fstab"
    file.write_text("x")
    os.chown(file, 12345, 54321)
    fstab.write(file, "y")
    assert (file.stat().st_uid, file.stat().st_gid) == (12345, 54321)


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/fstab").write_text("old")
    (tmp_path / "fstab").symlink_to("kept/fstab")
    fstab.write(tmp_path / "fstab", "new")
    assert (tmp_path / "fstab").is_symlink()
    assert (tmp_path / "kept/fstab").read_text() == "new"


def test_a_file_that_can_not_be_replaced_stays_and_no_draft_is_left(tmp_path, monkeypatch):
    file = tmp_path / "fstab"
    file.write_text("old")

    def refuse(*_):
        raise PermissionError("made up")

    monkeypatch.setattr(fstab.Path, "replace", refuse)
    with pytest.raises(PermissionError):
        fstab.write(file, "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("fstab", "old")]
