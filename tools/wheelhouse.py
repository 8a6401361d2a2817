#!/usr/bin/env python3
"""Fetch the Python packages of a host once, on the controller, and pack them into one archive.

The packages come through this machine's own pip configuration and must match the hashes of the lock files. The archive
holds the wheels and a requirements.txt that pins and hashes each of them, so that a host installs with
`pip install --no-index --find-links . --require-hashes -r requirements.txt`: one download for a fleet, and the air-gapped
way at the same time.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

# Newest C library first; 2.35 is that of the oldest supported target (Ubuntu 22.04).
GLIBC_MINORS = range(35, 4, -1)


class WheelhouseError(Exception):
    """What went wrong and what to do, in a sentence."""


def read_lock(text: str, python: str, machine: str) -> tuple[dict[str, str], set[str]]:
    """Return the pins of a lock file that hold for a target, and all hashes of the file.

    Args:
        text: a hashed requirements file as `uv pip compile --universal` writes it.
        python: the target's version, such as 3.11.
        machine: the target's machine as uname names it.

    Returns:
        package name -> exact version; the set of sha256 sums in hexadecimal.
    """
    # pip evaluates markers for the interpreter that runs it, even with --python-version: so they are resolved here.
    target = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": machine,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    lines = re.sub(r"#.*|\\\n", "", text).splitlines()
    requirements = [Requirement(line.split(" --hash")[0]) for line in lines if line.strip()]
    pins = {
        str(canonicalize_name(requirement.name)): str(requirement.specifier).removeprefix("==")
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate(target)
    }
    return pins, set(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))


def download(wanted: list[str], pins: dict[str, str], python: str, machine: str, folder: Path) -> None:
    """Let pip fetch `wanted` and what it needs, at the pinned versions, as wheels for the target."""
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS]
    platforms += [f"--platform=manylinux2014_{machine}", f"--platform=linux_{machine}"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
               f"--dest={folder}", f"--constraint={constraints}", f"--python-version={python}", "--implementation=cp",
               f"--abi=cp{python.replace('.', '')}", "--abi=abi3", "--abi=none", *platforms, *wanted]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    constraints.unlink()
    if result.returncode != 0:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or result.stderr.splitlines()[-1:]
        raise WheelhouseError(
            f"pip could not fetch {', '.join(wanted)} for Python {python} on {machine}: {' '.join(errors)} "
            "(pip's own configuration decides where it looks: `pip config list`; "
            "an archive made on a connected machine by the same command may be copied here instead)"
        )


def verify(folder: Path, accepted: set[str]) -> str:
    """Check every wheel against the accepted hashes and return requirements.txt for them."""
    pinned, refused = [], []
    for wheel in sorted(folder.glob("*.whl")):
        name, version, *_ = parse_wheel_filename(wheel.name)
        with wheel.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        pinned.append(f"{name}=={version} --hash=sha256:{digest}\n")
        if digest not in accepted:
            refused.append(f"{wheel.name} (sha256 {digest})")
    if refused:
        raise WheelhouseError(
            f"not in the lock file: {', '.join(refused)}. If you trust where pip found it, accept it with --accept <sha256>"
        )
    return "".join(pinned)


def pack(folder: Path, output: Path) -> None:
    """Write the archive under its name only when it is complete; until then it lies beside the folder."""
    part = folder.with_name(output.name)
    with tarfile.open(part, "w") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)
    part.rename(output)


def main() -> int:
    """Make one wheelhouse; nothing is done when it exists."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--lock", type=Path, action="append", required=True, help="hashed lock file; its .in file says what is wanted"
    )
    parser.add_argument("--python", required=True, help="the target's Python, such as 3.11")
    parser.add_argument("--machine", default="x86_64", help="the target's machine, as uname names it")
    parser.add_argument("--accept", action="append", default=[], help="sha256 of a wheel that is not in the lock files")
    parser.add_argument("--output", type=Path, required=True, help="the archive to write (.tar)")
    arguments = parser.parse_args()
    if arguments.output.exists():
        return 0
    pins: dict[str, str] = {}
    accepted, wanted = set(arguments.accept), []
    for lock in arguments.lock:
        lock_pins, hashes = read_lock(lock.read_text(), arguments.python, arguments.machine)
        pins |= lock_pins
        accepted |= hashes
        lines = re.sub(r"#.*", "", lock.with_suffix(".in").read_text()).splitlines()
        wanted += [line.strip() for line in lines if line.strip()]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=arguments.output.parent) as name:
            folder = Path(name) / "wheels"
            folder.mkdir()
            download(wanted, pins, arguments.python, arguments.machine, folder)
            (folder / "requirements.txt").write_text(verify(folder, accepted))
            pack(folder, arguments.output)
    except (WheelhouseError, OSError) as error:
        print(f"wheelhouse: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
