"""tests/standins/apt_repository.py, with the real dpkg-deb and gpg, and its tables."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STANDINS = Path(__file__).parents[1] / "standins"
sys.path.append(str(STANDINS))
import apt_repository  # noqa: E402 found through the line above
import packages  # noqa: E402

pytestmark = pytest.mark.skipif(
    not all(shutil.which(program) for program in ("dpkg-deb", "gpg", "gpgv")), reason="needs dpkg-deb, gpg and gpgv"
)
#: What stand-ins take from the distribution.
OUTSIDE = {"dkms", "python3"}


def run(*argv, **options):
    return subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """The smallest repository, made by the command line."""
    directory = tmp_path_factory.mktemp("apt")
    result = run(sys.executable, STANDINS / "apt_repository.py", "make", directory, "--set", "container-toolkit")
    assert result.returncode == 0, result.stderr
    return directory, json.loads(result.stdout)


def signer(directory, name="InRelease"):
    """Return gpgv's verdict on a signature and the fingerprint of who made it."""
    folder, keyring = directory / "container-toolkit", directory / "keyring.gpg"
    keyring.write_bytes(b"".join(apt_repository_key(file) for file in sorted(directory.glob("*.asc"))))
    files = [folder / name] if name == "InRelease" else [folder / name, folder / "Release"]
    result = run("gpgv", "--status-fd=1", f"--keyring={keyring}", *files)
    return result.returncode, re.search(r"VALIDSIG (\w+)", result.stdout)[1]


def apt_repository_key(file):
    return subprocess.run(["gpg", "--dearmor"], input=file.read_bytes(), capture_output=True, check=True).stdout


def newest(name, table):
    return max((package for package in packages.SETS[table]() if package.name == name), key=lambda package: package.version)


def test_the_result_names_key_fingerprint_and_folders(repository):
    directory, result = repository
    assert result["key"] == str(directory / "first.asc")
    assert result["repositories"] == {"container-toolkit": str(directory / "container-toolkit")}
    assert (directory / "first.asc").read_text().startswith("-----BEGIN PGP PUBLIC KEY BLOCK-----")


@pytest.mark.parametrize("name", ["InRelease", "Release.gpg"])
def test_both_signatures_are_those_of_the_key(repository, name):
    directory, result = repository
    assert signer(directory, name) == (0, result["fingerprint"])


def test_release_names_the_indexes_and_they_name_the_packages_by_checksum(repository):
    folder = repository[0] / "container-toolkit"
    for total, size, name in re.findall(r"^ ([0-9a-f]{64}) (\d+) (\S+)$", (folder / "Release").read_text(), re.MULTILINE):
        data = (folder / name).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (total, int(size))
    stanzas = [dict(re.findall(r"^(\S+): (.*)$", text, re.MULTILINE)) for text in (folder / "Packages").read_text().split("\n\n")]
    assert len(stanzas) == 8
    for stanza in stanzas:
        data = (folder / stanza["Filename"]).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (stanza["SHA256"], int(stanza["Size"]))


def test_a_package_is_what_its_index_says_and_calls_itself_a_stand_in(repository):
    (deb,) = (repository[0] / "container-toolkit").glob("nvidia-container-toolkit-base_1.20.0-1_*.deb")
    fields = run("dpkg-deb", "--field", deb, "Package", "Version", "Depends", "Description").stdout
    assert fields.startswith("Package: nvidia-container-toolkit-base\nVersion: 1.20.0-1\nDepends: python3\nDescription: STAND-IN")
    content = run("dpkg-deb", "--contents", deb).stdout
    assert re.search(r"^-rwxr-xr-x root/root .* \./usr/bin/nvidia-ctk$", content, re.MULTILINE)
    assert re.search(r"^-rw-r--r-- root/root .* \./usr/lib/systemd/system/nvidia-cdi-refresh.service$", content, re.MULTILINE)


def test_a_second_key_signs_the_same_packages_anew(repository):
    directory, first = repository
    before = {file.name: file.stat().st_mtime_ns for file in directory.glob("*/*.deb")}
    second = apt_repository.make(directory, ["container-toolkit"], "second")
    assert second["fingerprint"] != first["fingerprint"]
    assert signer(directory) == (0, second["fingerprint"])
    assert {file.name: file.stat().st_mtime_ns for file in directory.glob("*/*.deb")} == before
    assert apt_repository.make(directory, ["container-toolkit"])["fingerprint"] == first["fingerprint"]


def test_the_same_data_make_the_same_package(tmp_path):
    package = newest("nvidia-container-toolkit", "container-toolkit")
    for name in ("a.deb", "b.deb"):
        apt_repository.build(package, tmp_path / name)
    assert (tmp_path / "a.deb").read_bytes() == (tmp_path / "b.deb").read_bytes()


@pytest.mark.parametrize(("key", "digest"), [("first", "10"), ("sha1", "2")])
def test_only_the_key_sha1_vouches_for_itself_by_sha1(tmp_path, key, digest):
    with apt_repository.gpg_home() as home:
        apt_repository.make_key(tmp_path, key, home)
        listing = apt_repository.gpg(home, "--list-packets", str(tmp_path / f"{key}.asc"))
    assert re.findall(r"digest algo (\d+)", listing) == [digest]


def test_a_machine_without_the_programs_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(apt_repository.shutil, "which", lambda program: None if program == "gpg" else program)
    with pytest.raises(apt_repository.StandinError, match=r"gpg \(package gnupg\)"):
        apt_repository.make(tmp_path / "x", ["container-toolkit"])
    assert not (tmp_path / "x").exists()


# The tables


@pytest.mark.parametrize("table", sorted(packages.SETS))
def test_no_package_is_there_twice(table):
    names = [(package.name, package.version) for package in packages.SETS[table]()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("table", sorted(packages.SETS))
def test_every_dependency_is_in_the_repository_or_from_the_distribution(table):
    entries = list(packages.SETS[table]())
    versions = {(entry.name, entry.version) for entry in entries}
    for entry in entries:
        for alternatives in entry.depends:
            wanted = [re.fullmatch(r"(\S+)(?: \((>?=) (\S+)\))?", choice).groups() for choice in alternatives.split(" | ")]
            for name, relation, version in wanted:
                known = (name, version) in versions if relation == "=" else name in {have for have, _ in versions}
                assert known or name in OUTSIDE, f"{entry.name} {entry.version} needs {alternatives}"


@pytest.mark.parametrize("table", sorted(packages.SETS))
def test_every_script_says_that_it_is_a_stand_in(table):
    for entry in packages.SETS[table]():
        texts = [text for name, text in {**entry.files, **entry.scripts}.items() if not name.endswith("Packages")]
        assert [text for text in texts if "STAND-IN" not in text and "stand-in" not in text] == []
        assert [text for text in texts if re.search(r"@[A-Z]+@", text)] == []


@pytest.mark.parametrize("table", ["cuda-ubuntu2204", "cuda-debian12"])
@pytest.mark.parametrize("name", ["cuda-drivers", "nvidia-open"])
def test_metapackages_of_the_cuda_repository_take_any_newer_driver(table, name):
    entry = newest(name, table)
    assert entry.depends[0].startswith("nvidia-driver")
    assert "(>= 610.57.04)" in entry.depends[0]


def test_names_lose_the_branch_from_590_on():
    names = {entry.name for entry in packages.SETS["cuda-ubuntu2204"]()}
    assert {"nvidia-driver-580-open", "cuda-drivers-580", "nvidia-dkms-535", "nvidia-driver-open", "nvidia-dkms"} < names
    assert not [name for name in names if re.search(r"(driver|drivers|dkms|open)-(590|610)", name)]


def test_535_of_ubuntu_is_empty_and_pulls_580():
    entry = newest("nvidia-driver-535-server", "ubuntu-restricted")
    assert (entry.version, entry.depends) == ("535.309.01-0ubuntu0.22.04.2", ("nvidia-driver-580-server",))


def test_cuda_pulls_the_newest_driver_and_its_toolkit_alone_does_not():
    def pulled(name):
        entry = newest(name, "cuda-debian12")
        needs = {alternatives.split()[0] for alternatives in entry.depends}
        return needs.union(*map(pulled, needs - OUTSIDE))

    assert "cuda-drivers" in pulled("cuda")
    assert "cuda-drivers" not in pulled("cuda-toolkit-13-0")


def test_the_modules_of_the_open_package_have_the_open_licence():
    closed, opened = (newest(name, "cuda-debian12") for name in ("nvidia-kernel-dkms", "nvidia-kernel-open-dkms"))
    source = "usr/src/nvidia-610.57.04/nvidia-uvm.c"
    assert 'MODULE_LICENSE("NVIDIA")' in closed.files[source]
    assert 'MODULE_LICENSE("Dual MIT/GPL")' in opened.files[source]
    assert closed.files["usr/src/nvidia-610.57.04/dkms.conf"].count("BUILT_MODULE_NAME") == 5


# The programs in the packages


@pytest.fixture
def ctk(tmp_path):
    """Run the stand-in of nvidia-ctk."""
    program = tmp_path / "nvidia-ctk"
    program.write_text(newest("nvidia-container-toolkit-base", "container-toolkit").files["usr/bin/nvidia-ctk"])
    return lambda *argv: run(sys.executable, program, *argv)


def test_nvidia_ctk_tells_its_version(ctk):
    assert ctk("--version").stdout.startswith("NVIDIA Container Toolkit CLI version 1.20.0\n")


def test_nvidia_ctk_changes_one_setting_in_place(ctk, tmp_path):
    file = tmp_path / "config.toml"
    options = ("config", f"--config={file}", "--in-place")
    ctk(*options, "--set", "nvidia-container-runtime.mode=cdi", "--set", "disable-require=true")
    text = file.read_text()
    assert 'mode = "cdi"\nruntimes' in text
    assert text.count("mode = ") == 1
    assert "\ndisable-require = true\n" in text
    ctk(*options, "--set", "nvidia-container-runtime.mode=auto")
    assert file.read_text() == text.replace('"cdi"', '"auto"')


@pytest.mark.skipif(bool(list(Path("/dev").glob("nvidia[0-9]*"))), reason="this machine has a GPU")
def test_nvidia_ctk_makes_no_spec_without_a_gpu(ctk, tmp_path):
    result = ctk("cdi", "generate", f"--output={tmp_path}/nvidia.yaml")
    assert (result.returncode, "ERROR_LIBRARY_NOT_FOUND" in result.stderr) == (1, True)
    assert not (tmp_path / "nvidia.yaml").exists()


def test_nvcc_tells_its_version_and_writes_its_output(tmp_path):
    program = tmp_path / "nvcc"
    program.write_text(newest("cuda-nvcc-12-8", "cuda-debian12").files["usr/local/cuda-12.8/bin/nvcc"])
    assert "release 12.8, V12.8.93" in run("sh", program, "--version").stdout
    run("sh", program, "-cubin", "x.cu", "-o", tmp_path / "x.cubin")
    assert (tmp_path / "x.cubin").read_text().startswith("STAND-IN")
