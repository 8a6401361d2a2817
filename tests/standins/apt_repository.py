#!/usr/bin/env python3
"""Make STAND-INs for NVIDIA's apt repositories: real .deb files and real signatures, and nothing of NVIDIA's in them.

`apt_repository.py make DIR --set cuda-debian12 --set container-toolkit` makes one flat repository in a folder of DIR for each
set, signed by the key `first`, whose public half is DIR/<key>.asc. What is already there is kept, so that a second call with
`--key second` only signs anew, as NVIDIA did when it changed its key; the self-signature of the key `sha1` is one that the
apt of Debian 13 refuses. The result is printed as JSON. Needs dpkg-deb (package dpkg) and gpg (package gnupg).
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path

from packages import SETS, Package

PROGRAMS = {"dpkg-deb": "dpkg", "gpg": "gnupg"}
ARCHITECTURE = {"aarch64": "arm64"}.get(platform.machine(), "amd64")
KEYS = ("first", "second", "sha1")
#: Origin and label, by which apt preferences choose; all other sets have those of the CUDA repository.
ORIGINS = {"ubuntu-restricted": ("Ubuntu", "Ubuntu"), "container-toolkit": ("NVIDIA", "NVIDIA Container Toolkit")}
#: The same data make the same files, whenever they are built.
EPOCH = "1764547200"


class StandinError(Exception):
    """What is missing or failed, and what to do."""


def run(*argv: str, **variables: str) -> str:
    """Run a program and return its output."""
    result = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    if result.returncode != 0:
        raise StandinError(f"`{' '.join(argv)}` failed: {result.stderr.strip()}")
    return result.stdout


def control(package: Package) -> str:
    """Return the control file of a package."""
    fields = {
        "Package": package.name,
        "Version": package.version,
        "Architecture": ARCHITECTURE,
        "Maintainer": "STAND-IN <stand-in@groundwork.invalid>",
        "Section": "non-free/libs",
        "Priority": "optional",
        "Depends": ", ".join(package.depends),
        **package.relations,
        "Description": f"STAND-IN for {package.name}, for tests; nothing of NVIDIA's is in it",
    }
    return "".join(f"{key}: {value}\n" for key, value in fields.items() if value)


def build(package: Package, deb: Path) -> None:
    """Build the .deb of a package, unless it is there."""
    if deb.exists():
        return
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name, "tree")
        files = {"DEBIAN/control": control(package), f"usr/share/doc/{package.name}/STAND-IN": "STAND-IN, for tests\n"}
        files |= {f"DEBIAN/{script}": text for script, text in package.scripts.items()}
        for path, text in {**files, **package.files}.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(text)
            (tree / path).chmod(0o755 if text.startswith("#!") else 0o644)
        for folder in (tree, *tree.rglob("*/")):
            folder.chmod(0o755)
        draft = Path(name, deb.name)
        run("dpkg-deb", "--build", "-Znone", "--root-owner-group", str(tree), str(draft), SOURCE_DATE_EPOCH=EPOCH)
        shutil.move(draft, deb)


def write_index(folder: Path, packages: list[Package]) -> None:
    """Write the files Packages, Packages.gz and Release of a flat repository."""
    stanzas = []
    for package in packages:
        deb = folder / deb_name(package)
        data = deb.read_bytes()
        place = f"Filename: ./{deb.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
        stanzas.append(control(package) + place)
    text = "\n".join(stanzas).encode()
    (folder / "Packages").write_bytes(text)
    (folder / "Packages.gz").write_bytes(gzip.compress(text, mtime=0))
    sums = [
        f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}"
        for name in ("Packages", "Packages.gz")
        for data in [(folder / name).read_bytes()]
    ]
    origin, label = ORIGINS.get(folder.name, ("NVIDIA", "NVIDIA CUDA"))
    fields = {
        "Origin": origin,
        "Label": label,
        "Description": "STAND-IN, for tests",
        "Architectures": ARCHITECTURE,
        "Date": formatdate(usegmt=True),
        "SHA256": "\n" + "\n".join(sums),
    }
    (folder / "Release").write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))


def deb_name(package: Package) -> str:
    """Return the name of a package's file."""
    return f"{package.name}_{package.version}_{ARCHITECTURE}.deb"


@contextlib.contextmanager
def gpg_home() -> Iterator[str]:
    """Return a home of its own for gpg; a short path, since gpg's agent listens on a socket in it."""
    with tempfile.TemporaryDirectory(prefix="gpg-", dir="/tmp") as home:
        yield home
        run("gpgconf", "--homedir", home, "--kill", "all")


def gpg(home: str, *arguments: str) -> str:
    """Run gpg with nobody at the keyboard."""
    return run("gpg", "--homedir", home, "--batch", "--yes", "--no-tty", "--passphrase", "", *arguments)


def make_key(directory: Path, name: str, home: str) -> str:
    """Make the key of that name, or take the one that is there, into gpg's home; return its fingerprint."""
    public, secret = directory / f"{name}.asc", directory / "secret-keys" / f"{name}.asc"
    if not public.exists():
        user = f"STAND-IN {name} <{name}@groundwork.invalid>"
        digest = "SHA1" if name == "sha1" else "SHA512"
        gpg(home, "--cert-digest-algo", digest, "--quick-generate-key", user, "rsa2048", "sign", "never")
        secret.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        secret.write_text(gpg(home, "--armor", "--export-secret-keys"))
        public.write_text(gpg(home, "--armor", "--export"))
    else:
        gpg(home, "--import", str(secret))
    listing = gpg(home, "--with-colons", "--list-keys")
    return next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))


def sign(folder: Path, home: str) -> None:
    """Sign the Release file of a repository, inline and beside it."""
    release = str(folder / "Release")
    gpg(home, "--digest-algo", "SHA512", "--clearsign", "--output", str(folder / "InRelease"), release)
    gpg(home, "--digest-algo", "SHA512", "--armor", "--detach-sign", "--output", f"{release}.gpg", release)


def make(directory: Path, sets: list[str], key: str = "first") -> dict[str, object]:
    """Make the repositories and sign them; return the key, and the folder of each.

    Args:
        directory: where everything goes; keys and packages that are there are kept.
        sets: names out of `packages.SETS`.
        key: who signs; one of KEYS.

    Returns:
        `key` (file of the public key), `fingerprint`, `repositories` (set -> folder).
    """
    missing = [f"{program} (package {package})" for program, package in PROGRAMS.items() if not shutil.which(program)]
    if missing:
        raise StandinError(f"the stand-in repository is made by {' and '.join(missing)}: install what is missing")
    directory.mkdir(parents=True, exist_ok=True)
    with gpg_home() as home:
        fingerprint = make_key(directory, key, home)
        for name in sets:
            folder, packages = directory / name, list(SETS[name]())
            folder.mkdir(exist_ok=True)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(lambda package, folder=folder: build(package, folder / deb_name(package)), packages))
            write_index(folder, packages)
            sign(folder, home)
    folders = {name: str(directory / name) for name in sets}
    return {"key": str(directory / f"{key}.asc"), "fingerprint": fingerprint, "repositories": folders}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command = parser.add_subparsers(required=True).add_parser("make", help="make the repositories, or sign them anew")
    command.add_argument("directory", type=Path, metavar="DIR")
    command.add_argument("--set", dest="sets", action="append", choices=sorted(SETS), required=True)
    command.add_argument("--key", choices=KEYS, default="first", help="who signs (default: first)")
    arguments = parser.parse_args()
    try:
        print(json.dumps(make(arguments.directory, arguments.sets, arguments.key), indent=2))
    except StandinError as error:
        print(f"apt_repository.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
