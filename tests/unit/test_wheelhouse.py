"""tools/wheelhouse.py; a stand-in takes the place of pip and drops tiny wheels."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import wheelhouse

LOCKS = Path(__file__).parents[2] / "roles/torchserve/files/python"
LOCK = """\
# a comment
Alpha_One==1.0 \\
    --hash=sha256:{alpha} \\
    --hash=sha256:{zeros}
numpy==2.2.6 ; python_full_version < '3.11' \\
    --hash=sha256:{zeros}
numpy==2.4.6 ; python_full_version == '3.11.*' \\
    --hash=sha256:{zeros}
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:{zeros}
nvidia-cufft==12.0.0 ; platform_machine == 'x86_64' and sys_platform == 'linux' \\
    --hash=sha256:{zeros}
colorama==0.4.6 ; sys_platform == 'win32' or platform_system == 'Windows' \\
    --hash=sha256:{zeros}
"""


def tiny_wheel(name):
    """Return the content of a wheel, different for each name."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as container:
        container.writestr(zipfile.ZipInfo("METADATA"), name)
    return stream.getvalue()


PLAIN = "alpha_one-1.0-py3-none-any.whl"
# What PyTorch's own index offers: another build of the pinned version, with a hash that no lock file knows.
CPU_BUILD = "alpha_one-1.0+cpu-cp311-cp311-linux_x86_64.whl"
CONTENT = {name: tiny_wheel(name) for name in (PLAIN, CPU_BUILD)}
SUMS = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}


@pytest.fixture
def pip(tmp_path, monkeypatch, capsys):
    """The stand-in for pip with a lock file; `wheels` are what it finds, `make` runs the program."""

    class Pip:
        def __init__(self):
            self.wheels, self.returncode, self.stderr = [PLAIN], 0, ""
            self.calls, self.constraints = [], ""
            self.lock, self.output = tmp_path / "x.lock", tmp_path / "cache" / "wheels.tar"

        def run(self, command, **_):
            self.calls.append(command)
            paths = dict(argument.split("=", 1) for argument in command if argument.startswith(("--dest=", "--constraint=")))
            self.constraints = Path(paths["--constraint"]).read_text()
            for name in self.wheels:
                (Path(paths["--dest"]) / name).write_bytes(CONTENT[name])
            return subprocess.CompletedProcess(command, self.returncode, "", self.stderr)

        def make(self, *options, python="3.11"):
            arguments = ["wheelhouse.py", f"--lock={self.lock}", f"--output={self.output}", f"--python={python}", *options]
            monkeypatch.setattr(sys, "argv", arguments)
            code = wheelhouse.main()
            return SimpleNamespace(code=code, message=capsys.readouterr().err)

        def packed(self):
            with tarfile.open(self.output) as archive:
                return {name: archive.extractfile(name).read() for name in archive.getnames()}

        def left(self):
            """Return what lies in the folder of the archive."""
            return sorted(path.name for path in self.output.parent.iterdir())

    stand_in = Pip()
    stand_in.lock.write_text(LOCK.format(alpha=SUMS[PLAIN], zeros="0" * 64))
    stand_in.lock.with_suffix(".in").write_text("# why\nalpha-one==1.0  # this one\n\n")
    monkeypatch.setattr(wheelhouse, "subprocess", SimpleNamespace(run=stand_in.run))
    return stand_in


@pytest.mark.parametrize(
    ("python", "machine", "expected"),
    [
        ("3.10", "x86_64", {"numpy": "2.2.6", "nvidia-cufft": "12.0.0"}),
        ("3.11", "x86_64", {"numpy": "2.4.6", "nvidia-cufft": "12.0.0"}),
        ("3.13", "x86_64", {"numpy": "2.5.5", "nvidia-cufft": "12.0.0"}),
        ("3.11", "aarch64", {"numpy": "2.4.6"}),
    ],
)
def test_markers_are_those_of_the_target(python, machine, expected):
    pins, hashes = wheelhouse.read_lock(LOCK.format(alpha="a" * 64, zeros="0" * 64), python, machine)
    assert pins == {"alpha-one": "1.0"} | expected
    assert hashes == {"a" * 64, "0" * 64}


def test_the_controllers_own_platform_does_not_count(monkeypatch):
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setattr("platform.system", lambda: "Windows")
    pins, _ = wheelhouse.read_lock(LOCK.format(alpha="a" * 64, zeros="0" * 64), "3.12", "x86_64")
    assert "colorama" not in pins
    assert "nvidia-cufft" in pins


def test_pip_is_asked_for_wheels_of_the_target(pip):
    assert pip.make("--machine", "aarch64", python="3.10").code == 0
    [command] = pip.calls
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert command[-1] == "alpha-one==1.0"
    assert {"--only-binary=:all:", "--python-version=3.10", "--abi=cp310", "--platform=manylinux2014_aarch64"} <= set(command)
    assert [option for option in command if "x86_64" in option] == []


def test_pip_is_told_no_index(pip):
    """Where packages come from is the business of pip's own configuration: a mirror there must win."""
    pip.make()
    assert [option for option in pip.calls[0] if "index" in option.split("=")[0] or option.startswith("--find-links")] == []


def test_pip_is_held_to_the_pins_of_the_target(pip):
    pip.make(python="3.13")
    assert pip.constraints.splitlines() == ["alpha-one==1.0", "numpy==2.5.5", "nvidia-cufft==12.0.0"]


def test_the_archive_holds_the_wheels_and_a_hashed_requirements_file(pip):
    assert pip.make().code == 0
    requirements = f"alpha-one==1.0 --hash=sha256:{SUMS[PLAIN]}\n"
    assert pip.packed() == {PLAIN: CONTENT[PLAIN], "requirements.txt": requirements.encode()}
    assert pip.left() == ["wheels.tar"]


def test_an_existing_archive_is_left_alone(pip):
    pip.output.parent.mkdir()
    pip.output.write_text("made before")
    assert pip.make().code == 0
    assert pip.calls == []
    assert pip.output.read_text() == "made before"


def test_a_wheel_that_is_not_in_the_lock_file_is_refused(pip):
    pip.wheels = [CPU_BUILD]
    result = pip.make()
    assert result.code == 1
    assert result.message == (
        f"wheelhouse: not in the lock file: {CPU_BUILD} (sha256 {SUMS[CPU_BUILD]}). "
        "If you trust where pip found it, accept it with --accept <sha256>\n"
    )
    assert pip.left() == []


def test_an_accepted_wheel_is_packed(pip):
    pip.wheels = [CPU_BUILD]
    assert pip.make("--accept", SUMS[CPU_BUILD]).code == 0
    assert pip.packed()["requirements.txt"].decode() == f"alpha-one==1.0+cpu --hash=sha256:{SUMS[CPU_BUILD]}\n"


def test_all_refused_wheels_are_named(pip):
    pip.lock.write_text(LOCK.format(alpha="1" * 64, zeros="0" * 64))
    pip.wheels = list(CONTENT)
    message = pip.make().message
    assert [name for name in CONTENT if f"{name} (sha256 {SUMS[name]})" not in message] == []


@pytest.mark.parametrize(
    ("stderr", "told"),
    [
        (
            "WARNING: slow\nERROR: No matching distribution found for alpha-one==1.0\n",
            "ERROR: No matching distribution found for alpha-one==1.0",
        ),
        ("/usr/bin/python3: No module named pip\n", "No module named pip"),
        ("", "pip config list"),
    ],
    ids=["no such package", "no pip", "silent"],
)
def test_a_failure_of_pip_is_told_with_what_was_wanted(pip, stderr, told):
    pip.returncode, pip.stderr = 1, stderr
    result = pip.make()
    assert result.code == 1
    assert "pip could not fetch alpha-one==1.0 for Python 3.11 on x86_64: " in result.message
    assert told in result.message
    assert pip.left() == []


def test_a_full_disk_leaves_no_archive_and_is_told_in_one_sentence(pip, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "add", full)
    result = pip.make()
    assert (result.code, result.message) == (1, "wheelhouse: [Errno 28] No space left on device\n")
    assert pip.left() == []


TARGETS = [(python, machine) for python in ("3.10", "3.11", "3.12", "3.13") for machine in ("x86_64", "aarch64")]


@pytest.mark.parametrize(("python", "machine"), TARGETS)
def test_the_lock_files_of_torchserve_pin_what_it_needs_on_every_target(python, machine):
    locks = [wheelhouse.read_lock((LOCKS / name).read_text(), python, machine) for name in ("requirements.lock", "torch.lock")]
    base, torch = (pins for pins, _ in locks)
    assert base["torchserve"] == "0.12.0"
    assert {"pyyaml", "pillow", "psutil", "packaging", "wheel"} <= base.keys()
    assert {"torch", "numpy"} <= torch.keys()
    # Both are installed into one environment.
    assert {name for name in base.keys() & torch.keys() if base[name] != torch[name]} == set()
    assert min(len(hashes) for _, hashes in locks) > 0
