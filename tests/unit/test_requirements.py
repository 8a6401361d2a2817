"""What the project asks for is pinned, hashed and there; and it comes through the user's own registries alone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import ansible
import pytest
import yaml
from packaging.specifiers import SpecifierSet
from pip._internal.models.index import PyPI, TestPyPI

ROOT = Path(__file__).parents[2]
BUNDLE = Path(ansible.__file__).parents[1] / "ansible_collections"
COLLECTIONS = {
    entry["name"]: entry["version"] for entry in yaml.safe_load((ROOT / "requirements.yml").read_text())["collections"]
}
LOCKS = sorted(path for path in ROOT.rglob("*.lock") if not path.relative_to(ROOT).parts[0].startswith("."))
REQUIREMENT = re.compile(r"[A-Za-z0-9_.-]+==\S+( ; .+)? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


@pytest.fixture(scope="module")
def tracked():
    """All files of the project: path -> text."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a Git checkout")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    paths = [ROOT / name for name in names if name and (ROOT / name).is_file()]
    return {str(path.relative_to(ROOT)): path.read_text(errors="replace") for path in paths}


def naming(tracked, words):
    """Return "file: word" for each file that holds one of the words, on its own."""
    pattern = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, words))})(?![\w-])")
    return [f"{name}: {match[0]}" for name, text in tracked.items() if words and (match := pattern.search(text))]


@pytest.mark.parametrize("name", COLLECTIONS)
def test_the_installed_ansible_brings_each_collection_new_enough(name):
    manifest = json.loads((BUNDLE.joinpath(*name.split(".")) / "MANIFEST.json").read_text())
    assert manifest["collection_info"]["version"] in SpecifierSet(COLLECTIONS[name])


def test_every_collection_in_use_is_listed_and_no_other(tracked):
    known = {f"{path.parts[-3]}.{path.parts[-2]}" for path in BUNDLE.glob("*/*/MANIFEST.json")}
    code = [text for name, text in tracked.items() if re.search(r"\.(ya?ml|j2|cfg)$", name) and name != "requirements.yml"]
    used = {name for text in code for name in re.findall(r"\b([a-z0-9_]+\.[a-z0-9_]+)(?=\.[a-z0-9_]+\b)", text)}
    assert used & known == COLLECTIONS.keys()


def test_there_are_lock_files():
    assert {path.name for path in LOCKS} >= {"requirements.lock", "torch.lock"}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_line_of_a_lock_file_is_a_pin_with_its_hashes(lock):
    lines = lock.read_text().splitlines()
    assert [line for line in lines if not (REQUIREMENT.fullmatch(line) or HASH.fullmatch(line))] == []
    pins = [number for number, line in enumerate(lines) if REQUIREMENT.fullmatch(line)]
    assert [lines[number] for number in pins if not HASH.fullmatch(lines[number + 1])] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_lock_file_pins_what_its_source_asks_for(lock):
    names = [re.match(r"[\w.-]+", line)[0] for line in lock.with_suffix(".in").read_text().splitlines() if line[:1].isalnum()]
    pinned = {re.match(r"[\w.-]+", line)[0] for line in lock.read_text().splitlines() if line[:1].isalnum()}
    assert [name for name in names if name.lower() not in pinned] == []


def test_no_requirement_and_no_configuration_of_pip_says_where_to_look(tracked):
    """The user's own configuration does, so that a mirror or an air-gapped site works without a change here."""
    files = {name: text for name, text in tracked.items() if re.search(r"\.(lock|in)$|(^|/)(pip|uv)\.(conf|ini|toml)$", name)}
    assert len(files) >= 2 * len(LOCKS)
    options = re.compile(r"://|^\s*(--|-[if]\b|\w*(index|find-links|trusted-host)\b.*=)", re.MULTILINE)
    found = {
        name: match[0]
        for name, text in files.items()
        if (match := options.search(re.sub(r"^    --hash=.*|#.*", "", text, flags=re.M)))
    }
    assert found == {}
    assert not re.search(r"^\[+tool\.(uv|pip)", tracked["pyproject.toml"], re.MULTILINE)


def pip_hosts():
    """The registries of pip: its own default, and those of the configuration of this machine."""
    settings = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True).stdout
    urls = re.findall(r"\w+://[^\s'\"]+", settings)
    return {index.netloc for index in (PyPI, TestPyPI)} | {PyPI.file_storage_domain, *(urlsplit(url).hostname for url in urls)}


def apt_hosts():
    """The distribution's mirrors that apt uses on this machine; vendors' repositories are a role's business."""
    if not shutil.which("apt-get"):
        return set()
    command = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(SITE)", "Created-By: Packages"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {urlsplit(line.split()[1]).hostname for line in lines if line.startswith(("Debian ", "Ubuntu "))}


def test_no_file_names_a_package_registry(tracked):
    hosts = {host for host in pip_hosts() | apt_hosts() if host and "." in host and not host.startswith("127.")}
    assert naming(tracked, sorted(hosts)) == []


def test_no_file_names_a_folder_of_the_developers_machine(tracked):
    folders = [str(path) for path in (ROOT, Path.home()) if len(path.parts) > 2]
    assert naming(tracked, folders) == []
