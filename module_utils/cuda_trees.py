"""Fetch, check and unpack what CUDA trees are made of: wheels, NVIDIA's redistributable archives, and its runfile."""

from __future__ import annotations

import hashlib
import json
import posixpath
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin

from ansible.module_utils.cuda_plan import Tree
from ansible.module_utils.urls import open_url

CHUNK = 1024**2
GIB = 1024**3
#: How much larger a redistributable archive is when it is unpacked, at most.
XZ_RATIO = 6
#: No text in which a path is written down is larger.
LARGEST_TEXT = 4 * 1024**2
#: What is taken of a manifest when no components are named: all that a .cu file needs to become a program.
COMPILER = ("cuda_nvcc", "cuda_crt", "libnvvm", "cuda_cudart", "cuda_cccl", "cuda_nvrtc")


class CudaError(Exception):
    """What went wrong and what to do, in a sentence."""


def digest(stream: IO[bytes], algorithm: str = "sha256") -> str:
    """Return a checksum in hexadecimal."""
    total = hashlib.new(algorithm)
    while chunk := stream.read(CHUNK):
        total.update(chunk)
    return total.hexdigest()


def fetch(url: str, path: Path, algorithm: str, expected: str) -> None:
    """Fetch a file unless it is there and right; it gets its name only when its checksum is the expected one."""
    if path.exists():
        with path.open("rb") as stream:
            if digest(stream, algorithm) == expected:
                return
    part = path.with_name(f"{path.name}.part")
    try:
        with open_url(url, timeout=60) as answer, part.open("wb") as stream:
            shutil.copyfileobj(answer, stream, CHUNK)
    except OSError as error:
        raise CudaError(f"{url} can't be fetched: {error}; check the address, or give one of a mirror as `url`") from error
    with part.open("rb") as stream:
        found = digest(stream, algorithm)
    if found != expected:
        part.unlink()
        raise CudaError(f"{url} has the {algorithm} {found}, expected {expected}; nothing of it was used")
    part.replace(path)


def need(folder: Path, size: int, what: str) -> None:
    """Refuse what the disk has no room for."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise CudaError(f"{what} takes {size / GIB:.1f} GiB in {folder}, which has {free / GIB:.1f}; free space first")


def inside(name: str) -> bool:
    """Whether a name in an archive stays in the folder that it is unpacked to."""
    return not posixpath.isabs(name) and not posixpath.normpath(name).startswith("..")


def wheel_path(name: str) -> str | None:
    """Return where a file of a wheel goes in a tree, None for what belongs to Python alone.

    Wheels of CUDA 13 hold nvidia/cu13/<tree>, older ones nvidia/<component>/<tree>.
    """
    parts = name.split("/")
    if name.endswith("/") or parts[-1] == "__init__.py" or ".metadata" in parts:
        return None
    if parts[0] == "nvidia" and len(parts) > 2:  # noqa: PLR2004 - nvidia, the component, and a name
        return "/".join(parts[2:])
    if parts[-1] == "License.txt":
        return f"licenses/{parts[0].split('-')[0]}.txt"
    return None


def unpack_wheels(archive: Path, accepted: set[str], folder: Path) -> None:
    """Unpack the wheels of an archive of tools/wheelhouse.py, each of which must have an accepted checksum."""
    with tarfile.open(archive) as wheels:
        members = [member for member in wheels if member.name.endswith(".whl")]
        for member in members:
            stream = wheels.extractfile(member)
            if stream is None or digest(stream) not in accepted:
                raise CudaError(f"{archive} holds {member.name}, which is not in the role's lock file; fetch the archive anew")
        zips = [zipfile.ZipFile(stream) for member in members if (stream := wheels.extractfile(member))]
        need(folder.parent, sum(info.file_size for file in zips for info in file.infolist()), folder.stem)
        for file in zips:
            for info in file.infolist():
                target = wheel_path(info.filename)
                if target and inside(target):
                    path = folder / target
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with file.open(info) as source, path.open("wb") as sink:
                        shutil.copyfileobj(source, sink, CHUNK)
                    path.chmod(0o755 if info.external_attr >> 16 & 0o111 else 0o644)


def unpack_archive(archive: Path, folder: Path) -> None:
    """Unpack a redistributable archive without the one directory at its top."""
    with tarfile.open(archive) as source:
        for member in source:
            name = "/".join(member.name.rstrip("/").split("/")[1:])
            linked = posixpath.join(posixpath.dirname(name), member.linkname) if member.issym() else "."
            if not inside(name) or not inside(linked) or not (member.isdir() or member.isreg() or member.issym()):
                raise CudaError(f"{archive.name} holds {member.name}, which would leave the tree; nothing of it was used")
            path = folder / name
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if member.issym():
                path.unlink(missing_ok=True)
                path.symlink_to(member.linkname)
            elif stream := source.extractfile(member):
                with path.open("wb") as sink:
                    shutil.copyfileobj(stream, sink, CHUNK)
                path.chmod(0o755 if member.mode & 0o111 else 0o644)


def manifest_files(manifest: dict[str, Any], tree: Tree, platform: str) -> list[dict[str, Any]]:
    """Choose a manifest's files for a tree: each with `relative_path`, `sha256` and `size`."""
    available = {
        name: part[platform] for name, part in manifest.items() if isinstance(part, dict) and isinstance(part.get(platform), dict)
    }
    # In the manifests of cuDNN the platform has a level for each CUDA major.
    available = {name: part.get(f"cuda{tree.major}", part) for name, part in available.items()}
    available = {name: part for name, part in available.items() if "relative_path" in part}
    wanted = tree.components or [name for name in (("cudnn",) if tree.cuda else COMPILER) if name in available]
    missing = [name for name in wanted if name not in available]
    if missing or not wanted:
        raise CudaError(
            f"the manifest of {tree.label} has no {', '.join(missing) or 'compiler'} for {platform}; "
            f"it has: {', '.join(sorted(available)) or 'nothing'}"
        )
    return [available[name] for name in wanted]


def unpack_redist(tree: Tree, staging: Path, folder: Path, platform: str) -> None:
    """Fetch a manifest and the archives that it names, and unpack them."""
    manifest = staging / f"{tree.name}.json"
    fetch(tree.url, manifest, "sha256", tree.sha256)
    try:
        files = manifest_files(json.loads(manifest.read_text()), tree, platform)
    except ValueError as error:
        raise CudaError(f"{tree.url} is no manifest: {error}; name a redistrib_<version>.json") from error
    total = sum(int(file["size"]) for file in files)
    need(staging, total, f"The archives of {tree.label}")
    need(folder.parent, total * XZ_RATIO, tree.label)
    for file in files:
        archive = staging / posixpath.basename(file["relative_path"])
        fetch(urljoin(tree.url, file["relative_path"]), archive, "sha256", file["sha256"])
        unpack_archive(archive, folder)
        archive.unlink()
    manifest.unlink()


def finish(folder: Path) -> None:
    """Give a tree made of parts what the whole toolkit has: lib64, and the names that a linker asks for."""
    libraries = folder / "lib"
    if libraries.is_dir() and not (folder / "lib64").exists():
        (folder / "lib64").symlink_to("lib")
    for library in sorted(libraries.glob("lib*.so.*")):
        plain = libraries / f"{library.name.split('.so.')[0]}.so"
        if not plain.exists():
            plain.symlink_to(library.name)


def relocate(folder: Path, prefix: str) -> None:
    """Put a tree's own path into the links and texts in which the runfile's installer wrote down that of the unfinished one."""
    old = str(folder)
    for path in list(folder.rglob("*")):
        if path.is_symlink():
            target = str(path.readlink())
            if target.startswith(f"{old}/"):
                path.unlink()
                path.symlink_to(prefix + target[len(old) :])
        elif path.is_file() and path.stat().st_size < LARGEST_TEXT:
            data = path.read_bytes()
            # Where there are null bytes it is a program or a library, in which each text has its place.
            if old.encode() in data and b"\0" not in data:
                path.write_bytes(data.replace(old.encode(), prefix.encode()))


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """Give a folder to fill that takes the place of `path` at the end; until then, and after an error, `path` is as it was."""
    part, old = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.old")
    restore(path)
    part.mkdir(parents=True)
    try:
        yield part
        if path.exists():
            path.rename(old)
        part.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def restore(path: Path) -> None:
    """Clear away what an interrupted run left; a tree that it had already moved aside comes back."""
    part, old = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.old")
    if part.exists():
        shutil.rmtree(part)
    if old.exists() and not path.exists():
        old.rename(path)
    if old.exists():
        shutil.rmtree(old)


def remove(path: Path) -> None:
    """Remove a tree; an interruption leaves no half of one under its name."""
    old = path.with_name(f"{path.name}.old")
    if old.exists():
        shutil.rmtree(old)
    path.rename(old)
    shutil.rmtree(old)
