"""DKMS beside the system. What it says was recorded: 3.2.2 and 3.0.10 in containers, 2.8 from its manual."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import pytest
from ansible.module_utils import dkms_modules
from ansible.module_utils.dkms_modules import BuildError, Source

sys.path.append(str(Path(__file__).parents[1] / "standins"))
standin = importlib.import_module("apt_host")

OLD, NEW = standin.KERNELS
SOURCE = Source("nvidia-current", "535.261.03")
FAILED = """\
The kernel is built without module signing facility, modules won't be signed

Building module(s)...(bad exit status: 2)
Failed command:
make -j2 KERNELRELEASE=6.1.0-57-amd64

"""
FAILED_ERRORS = """\
Error! Bad return status for module build on kernel: 6.1.0-57-amd64 (x86_64)
Consult /var/lib/dkms/nvidia/580.95.05/build/make.log for more information.
"""


@pytest.fixture
def host(tmp_path):
    return standin.DriverHost(tmp_path / "root")


def deb(version="535.261.03"):
    return standin.Deb("nvidia-kernel-dkms", f"{version}-1", dkms=("nvidia-current", version))


def write_module(tree, kernel=NEW, text="built", name="nvidia-current.ko.xz"):
    path = tree / SOURCE.name / SOURCE.version / kernel / "x86_64/module" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


# Sources


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (
            'PACKAGE_NAME="nvidia-current"\nPACKAGE_VERSION="535.261.03"\nCLEAN="make clean"\n',
            Source("nvidia-current", "535.261.03"),
        ),
        ("MAKE[0]=x\nPACKAGE_VERSION=580.95.05 \nPACKAGE_NAME=nvidia-srv\n", Source("nvidia-srv", "580.95.05")),
        ('#PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="580.95.05"\n', None),
        ("", None),
    ],
)
def test_a_configuration_names_its_source(tmp_path, text, source):
    (tmp_path / "dkms.conf").write_text(text)
    assert dkms_modules.parse_config(tmp_path / "dkms.conf") == source


def test_the_source_of_an_unpacked_package_is_found(tmp_path):
    assert dkms_modules.find_source(tmp_path) is None
    (tmp_path / "usr/src/a").mkdir(parents=True)
    (tmp_path / "usr/src/a/dkms.conf").write_text("broken")
    (tmp_path / "usr/src/nvidia-current-535.261.03").mkdir()
    (tmp_path / "usr/src/nvidia-current-535.261.03/dkms.conf").write_text(
        'PACKAGE_NAME="nvidia-current"\nPACKAGE_VERSION="535.261.03"\n'
    )
    assert dkms_modules.find_source(tmp_path) == SOURCE


# dkms status


@pytest.mark.parametrize(
    ("lines", "kernels"),
    [
        (["nvidia-current/535.261.03, 6.1.0-57-amd64, x86_64: installed"], {NEW}),
        (["nvidia-current, 535.261.03, 6.1.0-57-amd64, x86_64: installed"], {NEW}),
        (["nvidia-current, 535.261.03, 6.1.0-57-amd64, x86_64: installed (original_module exists)"], {NEW}),
        (["nvidia-current/535.261.03, 6.1.0-57-amd64, x86_64: installed (Original modules exist)"], {NEW}),
        ([f"nvidia-current/535.261.03, {kernel}, x86_64: installed" for kernel in (OLD, NEW)], {OLD, NEW}),
        (["nvidia-current/535.261.03: added"], set()),
        (["nvidia-current, 535.261.03: added"], set()),
        (["nvidia-current/535.261.03, 6.1.0-57-amd64, x86_64: built"], set()),
        (["nvidia-current/535.261.03, 6.1.0-57-amd64, x86_64: installed-weak from 6.1.0-56-amd64"], set()),
        # Somebody has removed or replaced the file.
        (
            ["nvidia-current/535.261.03, 6.1.0-57-amd64, x86_64: installed (WARNING! Diff between built and installed module!)"],
            set(),
        ),
        (
            ["nvidia-current/535.261.03, 6.1.0-57-amd64, x86_64: installed (Differences between built and installed modules)"],
            set(),
        ),
        ([], set()),
    ],
)
def test_kernels_with_the_modules_in_place_are_read_from_the_status(lines, kernels):
    asked = []

    def run(argv):
        asked.append(argv)
        return 0, "".join(f"{line}\n" for line in lines), ""

    assert dkms_modules.installed_kernels(run, SOURCE) == kernels
    assert asked == [["dkms", "status", "-m", "nvidia-current", "-v", "535.261.03"]]


def test_a_status_that_fails_has_nothing_in_place():
    assert dkms_modules.installed_kernels(lambda _: (2, "nvidia/1, k, x86_64: installed\n", "Error!"), SOURCE) == set()


# Building beside the system


def test_a_build_leaves_the_system_alone(host, tmp_path):
    host.save(deb(), tmp_path)
    host.run(["dpkg-deb", "--extract", str(tmp_path / deb().file), str(tmp_path / "work/src")])
    before = host.tree()
    for kernel in (OLD, NEW):
        dkms_modules.build(host.run, tmp_path / "work/src", tmp_path / "work/tree", SOURCE, kernel)
    assert host.tree() == before
    assert dkms_modules.is_built(tmp_path / "work/tree", SOURCE, OLD)
    assert dkms_modules.is_built(tmp_path / "work/tree", SOURCE, NEW)
    assert len(host.ran("dkms", "add")) == 1
    assert all(call[call.index("--dkmstree") + 1] == str(tmp_path / "work/tree") for call in host.ran("dkms"))


def failing_build(tmp_path, log):
    """Build with a stand-in of DKMS whose compiler fails, and return the message."""
    path = tmp_path / "tree/nvidia-current/535.261.03/build/make.log"

    def run(argv):
        if argv[1] == "build" and log is not None:
            path.parent.mkdir(parents=True)
            path.write_text(log)
        return (10, FAILED, FAILED_ERRORS) if argv[1] == "build" else (0, "", "")

    with pytest.raises(BuildError) as caught:
        dkms_modules.build(run, tmp_path / "src", tmp_path / "tree", SOURCE, NEW)
    return str(caught.value)


def test_a_failed_build_says_why(tmp_path):
    """R14: the compiler is older than the kernel's."""
    log = [
        "DKMS (dkms-3.2.2) make.log for nvidia-current/535.261.03 for kernel 6.1.0-57-amd64 (x86_64)",
        *(f"  CC [M]  early-{number}.o" for number in range(30)),
        "cc: error: unrecognized command-line option '-ftrivial-auto-var-init=zero'",
        *(f"  CC [M]  late-{number}.o" for number in range(40)),
        "make: *** [Makefile:2: all] Error 1",
        "# exit code: 2",
    ]
    message = failing_build(tmp_path, "\n".join(log)).splitlines()
    assert message[:4] == [
        f"`dkms build` of nvidia-current 535.261.03 failed: {FAILED_ERRORS.splitlines()[0]}",
        "The log of the build says:",
        "  cc: error: unrecognized command-line option '-ftrivial-auto-var-init=zero'",
        "    CC [M]  late-0.o",
    ]
    assert message[17:19] == ["  ...", "    CC [M]  late-27.o"]
    assert message[-2:] == ["  make: *** [Makefile:2: all] Error 1", "  # exit code: 2"]
    assert len(message) == 2 + 15 + 1 + 15


def test_a_short_log_is_shown_once(tmp_path):
    log = "# command: make\ncc: error: unrecognized command-line option\nmake: *** [Makefile:2: all] Error 1\n"
    assert failing_build(tmp_path, log).partition("says:\n")[2] == (
        "  # command: make\n  cc: error: unrecognized command-line option\n  make: *** [Makefile:2: all] Error 1"
    )


def test_a_failure_without_log_says_what_dkms_said(tmp_path):
    assert failing_build(tmp_path, None).endswith("Bad return status for module build on kernel: 6.1.0-57-amd64 (x86_64)")


def test_a_program_that_says_nothing_is_named_with_its_exit_code(tmp_path):
    with pytest.raises(BuildError, match=r"`dkms add` of nvidia-current 535\.261\.03 failed: it ended with 3$"):
        dkms_modules.build(lambda _: (3, "", ""), tmp_path, tmp_path, SOURCE, NEW)


def test_a_build_without_module_is_a_failure(tmp_path):
    with pytest.raises(BuildError, match=f"DKMS built no module for kernel {NEW}"):
        dkms_modules.build(lambda _: (0, "", ""), tmp_path, tmp_path, SOURCE, NEW)


# Keeping


def test_modules_are_copied_with_their_log(tmp_path):
    write_module(tmp_path / "a").with_name("link").symlink_to("nvidia-current.ko.xz")
    dkms_modules.copy(tmp_path / "a", SOURCE, NEW, tmp_path / "b")
    place = tmp_path / f"b/nvidia-current/535.261.03/{NEW}/x86_64/module"
    assert (place / "nvidia-current.ko.xz").read_text() == "built"
    assert (place / "link").is_symlink()
    assert [path.name for path in (tmp_path / "b/nvidia-current/535.261.03").iterdir()] == [NEW]


def test_modules_that_are_there_are_not_replaced(tmp_path):
    write_module(tmp_path / "a")
    kept = write_module(tmp_path / "b", text="kept")
    dkms_modules.copy(tmp_path / "a", SOURCE, NEW, tmp_path / "b")
    assert kept.read_text() == "kept"


def test_nothing_to_copy_leaves_no_trace(tmp_path):
    dkms_modules.copy(tmp_path / "a", SOURCE, NEW, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_remains_of_an_interrupted_copy_do_not_count(tmp_path):
    write_module(tmp_path / "a")
    folder = tmp_path / "b/nvidia-current/535.261.03"
    for name in (f".{NEW}.part", NEW):
        (folder / name / "x86_64").mkdir(parents=True)
        (folder / name / "x86_64/remains").touch()
    dkms_modules.copy(tmp_path / "a", SOURCE, NEW, tmp_path / "b")
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        f"{NEW}/x86_64/module/nvidia-current.ko.xz"
    ]


def test_a_disk_that_is_full_leaves_no_half_copy(tmp_path, monkeypatch):
    write_module(tmp_path / "a")

    def full(_, goal, **__):
        Path(goal).mkdir(parents=True)
        raise shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'"), ("c", "d", "[Errno 28] No space left: 'd'")])

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(BuildError) as caught:
        dkms_modules.copy(tmp_path / "a", SOURCE, NEW, tmp_path / "b")
    assert str(caught.value) == f"the modules for kernel {NEW} can't be copied to {tmp_path}/b: [Errno 28] No space left: 'd'"
    assert list((tmp_path / "b/nvidia-current/535.261.03").iterdir()) == []


# Putting in place


def test_kept_modules_are_put_in_place_without_a_build(host, tmp_path):
    host.put(deb())
    shutil.copytree(host.root / "var/lib/dkms", tmp_path / "kept", symlinks=True)
    host.run(["dkms", "remove", "-m", "nvidia-current", "-v", "535.261.03", "--all"])
    host.calls.clear()
    dkms_modules.install(host.run, host.root, tmp_path / "kept", SOURCE, NEW)
    assert host.module(NEW) == "535.261.03"
    assert [call[1] for call in host.calls] == ["add", "status", "install"]


def test_modules_in_place_are_left_there(host, tmp_path):
    host.put(deb())
    host.calls.clear()
    dkms_modules.install(host.run, host.root, tmp_path / "kept", SOURCE, NEW)
    assert [call[1] for call in host.calls] == ["status"]


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("another")], ids=["removed", "replaced"])
def test_a_module_file_that_somebody_touched_is_put_back(host, tmp_path, spoil):
    """DKMS says "installed", and does nothing without --force."""
    host.put(deb())
    spoil(host.root / f"lib/modules/{NEW}/updates/dkms/nvidia-current.ko")
    dkms_modules.install(host.run, host.root, tmp_path / "kept", SOURCE, NEW)
    assert host.module(NEW) == "535.261.03"


def test_dkms_that_refuses_an_installation_is_an_error(host, tmp_path):
    host.put(deb())
    (host.root / f"lib/modules/{NEW}/updates/dkms/nvidia-current.ko").unlink()
    host.fails = lambda argv: (6, "", "\nError! Installation aborted.\n") if argv[:2] == ["dkms", "install"] else None
    with pytest.raises(BuildError, match=r"`dkms install` of nvidia-current 535.261.03 failed: Error! Installation aborted\.$"):
        dkms_modules.install(host.run, host.root, tmp_path / "kept", SOURCE, NEW)
