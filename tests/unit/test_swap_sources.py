"""Sources of swap on made-up trees; what becomes of them is in test_swap_removal.py."""

from __future__ import annotations

import pytest
from ansible.module_utils import swap_sources
from ansible.module_utils.swap_sources import Active


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/dev/vda2", "dev-vda2.swap"),
        ("/swapfile", "swapfile.swap"),
        ("/swap file", r"swap\x20file.swap"),
        ("/.swap", r"\x2eswap.swap"),
        ("/data/.hidden/sw-1", r"data-.hidden-sw\x2d1.swap"),
        ("/dev/disk/by-uuid/0a34-b", r"dev-disk-by\x2duuid-0a34\x2db.swap"),
        ("/swäp", r"sw\xc3\xa4p.swap"),
        (r"/a\b", r"a\x5cb.swap"),
        ("//dev//vda2/", "dev-vda2.swap"),
        ("/dev/mapper/vg-swap:1", r"dev-mapper-vg\x2dswap:1.swap"),
        ("/sw\udcffp", r"sw\xffp.swap"),
    ],
)
def test_a_unit_is_named_as_systemd_escape_names_it(path, name):
    assert swap_sources.unit_name(path) == name


SWAPS = (
    "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
    "/dev/zram0                              partition\t2097148\t\t3072\t\t100\n"
    "/swap\\040file                           file\t\t524284\t\t0\t\t-2\n"
    "/old\\040(deleted)                       file\t\t1020\t\t4\t\t5\n"
)


def test_active_swap_is_read_with_the_highest_priority_last(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/swaps").write_text(SWAPS)
    assert swap_sources.active_swaps(tmp_path) == [
        Active("/swap file", r"/swap\040file", "file", 524284, 0, -2),
        Active("/old (deleted)", r"/old\040(deleted)", "file", 1020, 4, 5),
        Active("/dev/zram0", "/dev/zram0", "partition", 2097148, 3072, 100),
    ]


@pytest.mark.parametrize("text", [None, "", "Filename\tType\tSize\tUsed\tPriority\n"])
def test_a_kernel_without_swap_has_none(tmp_path, text):
    (tmp_path / "proc").mkdir()
    if text is not None:
        (tmp_path / "proc/swaps").write_text(text)
    assert swap_sources.active_swaps(tmp_path) == []


NULL = object()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"lib": "vendor"}, "/lib/systemd/system/a.swap"),
        ({"etc": "own", "usr/lib": "vendor"}, "/etc/systemd/system/a.swap"),
        ({"run": "own", "usr/lib": "vendor"}, "/run/systemd/system/a.swap"),
        ({"etc": NULL, "usr/lib": "vendor"}, None),
        ({"etc": "", "usr/lib": "vendor"}, None),
        ({"run": NULL, "usr/lib": "vendor"}, "/usr/lib/systemd/system/a.swap"),
        ({"etc": "missing", "usr/lib": "vendor"}, "/usr/lib/systemd/system/a.swap"),
    ],
)
def test_the_file_of_a_unit_is_that_of_the_next_boot(tmp_path, files, expected):
    for folder, content in files.items():
        file = tmp_path / folder / "systemd/system/a.swap"
        file.parent.mkdir(parents=True)
        if content is NULL:
            file.symlink_to("/dev/null")
        elif content == "missing":
            file.symlink_to("nowhere")
        else:
            file.write_text(content)
    assert swap_sources.unit_file(tmp_path, "a.swap") == expected
