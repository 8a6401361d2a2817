#!/usr/bin/env python3
"""Make STAND-INs for what NVIDIA serves: a runfile and redistributable archives with their manifests.

`cuda_archives.py DIR` writes them below DIR as NVIDIA's server has them, and prints their addresses and checksums as JSON. Names,
options and behaviour are NVIDIA's: a silent run without --toolkit installs a driver (the stand-in leaves a mark), and
/usr/local/cuda is repointed. Each nvcc is a shell script that writes an ELF header of a GPU program, and says "stand-in".
The libcudnn is a real library with the one function cudnnGetVersion; it needs gcc.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

NVCC = """\
#!/bin/sh
# Stand-in for nvcc {version}
case "$*" in
  *--version*) printf 'nvcc: stand-in\\nCuda compilation tools, release {series}, V{version}\\nBuild stand-in\\n'; exit ;;
esac
while [ $# -gt 0 ]; do
  [ "$1" = -o ] && out=$2
  shift
done
# \\276\\000: machine code for a GPU
printf '\\177ELF\\002\\001\\001\\000\\000\\000\\000\\000\\000\\000\\000\\000\\002\\000\\276\\000' > "$out"
"""

RUNFILE = """\
#!/bin/sh
# Stand-in for cuda_{version}_linux.run
for option; do
  case $option in
    --toolkitpath=*) prefix=${{option#*=}} ;;
    --tmpdir=*) [ -d "${{option#*=}}" ] || exit 3 ;;
    --toolkit) toolkit=yes ;;
  esac
done
case "$*" in *--silent*) ;; *) echo "stand-in: would wait for an answer" >&2; exit 2 ;; esac
[ -n "$toolkit" ] || {{ echo "stand-in driver" > /var/lib/stand-in-driver; exit 0; }}
mkdir -p "$prefix/bin" "$prefix/lib64/pkgconfig" /etc/ld.so.conf.d
sed '1,/^# ---- nvcc ----$/d' "$0" > "$prefix/bin/nvcc"
chmod 755 "$prefix/bin/nvcc"
echo '{{"cuda": {{"name": "CUDA SDK", "version": "{version}"}}}}' > "$prefix/version.json"
echo "cudaroot=$prefix" > "$prefix/lib64/pkgconfig/cudart-{series}.pc"
echo "$prefix/lib64" > "/etc/ld.so.conf.d/cuda-{dashed}.conf"
ln -sfn "$prefix" /usr/local/cuda
exit 0
# ---- nvcc ----
"""

#: NVIDIA's name of a runfile has the version of the driver that is in it.
RUNFILES = {"12.9.1": "cuda_12.9.1_575.57.08_linux.run"}

CUDNN_HEADER = "#define CUDNN_MAJOR {}\n#define CUDNN_MINOR {}\n#define CUDNN_PATCHLEVEL {}\n"


def nvcc(version: str) -> str:
    """Return the stand-in for the compiler of a toolkit."""
    return NVCC.format(version=version, series=".".join(version.split(".")[:2]))


def write(path: Path, content: bytes) -> dict[str, str]:
    """Write a file and return what a manifest says of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    checksums = {name: hashlib.new(name, content).hexdigest() for name in ("sha256", "md5")}
    return {**checksums, "size": str(len(content))}


def archive(top: str, files: dict[str, tuple[bytes, int]]) -> bytes:
    """Return a .tar.xz with one directory at its top; `files`: path -> content and mode."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz") as output:
        for path, (content, mode) in files.items():
            member = tarfile.TarInfo(f"{top}/{path}")
            member.size, member.mode = len(content), mode
            output.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def runfile(folder: Path, version: str) -> dict[str, str]:
    """Write a runfile; return its address and checksums."""
    series = ".".join(version.split(".")[:2])
    text = RUNFILE.format(version=version, series=series, dashed=series.replace(".", "-")) + nvcc(version)
    path = folder / f"cuda/{version}/local_installers/{RUNFILES.get(version, f'cuda_{version}_linux.run')}"
    return {"url": path.as_uri(), **write(path, text.encode())}


def manifest(folder: Path, path: str, product: Mapping[str, object]) -> dict[str, str]:
    """Write a manifest; return its address and checksums."""
    entry = {"release_date": "2026-01-01", "release_product": "stand-in", **product}
    return {"url": (folder / path).as_uri(), **write(folder / path, json.dumps(entry).encode())}


def redist(folder: Path, version: str) -> dict[str, str]:
    """Write the archives and the manifest of a toolkit."""
    parts = {
        "cuda_nvcc": {"bin/nvcc": (nvcc(version).encode(), 0o755), "LICENSE": (b"stand-in\n", 0o644)},
        "cuda_cudart": {"include/cuda_runtime_api.h": (b"// stand-in\n", 0o644), "lib/libcudart.so.12": (b"stand-in\n", 0o644)},
        "nsight_systems": {"bin/nsys": (b"#!/bin/sh\n", 0o755)},
    }
    product: dict[str, object] = {}
    for name, files in parts.items():
        top = f"{name}-linux-x86_64-{version}-archive"
        relative = f"{name}/linux-x86_64/{top}.tar.xz"
        entry = write(folder / "cuda/redist" / relative, archive(top, files))
        product[name] = {"name": name, "version": version, "linux-x86_64": {"relative_path": relative, **entry}}
    return manifest(folder, f"cuda/redist/redistrib_{version}.json", product)


def libcudnn(version: str) -> bytes:
    """Compile a library that answers as a libcudnn of this version does."""
    major, minor, patch = map(int, version.split(".")[:3])
    with tempfile.TemporaryDirectory() as name:
        source, library = Path(name) / "cudnn.c", Path(name) / "cudnn.so"
        source.write_text(
            f"/* stand-in */ unsigned long cudnnGetVersion(void) {{ return {major * 10000 + minor * 100 + patch}; }}\n"
        )
        subprocess.run(["gcc", "-shared", f"-Wl,-soname,libcudnn.so.{major}", "-o", library, source], check=True)
        return library.read_bytes()


def cudnn(folder: Path, version: str, cuda: str) -> dict[str, str]:
    """Write the archive and the manifest of a cuDNN."""
    numbers = version.split(".")
    top = f"cudnn-linux-x86_64-{version}_cuda{cuda}-archive"
    relative = f"cudnn/linux-x86_64/{top}.tar.xz"
    files = {
        "include/cudnn_version.h": (CUDNN_HEADER.format(*numbers).encode(), 0o644),
        f"lib/libcudnn.so.{numbers[0]}": (libcudnn(version), 0o755),
    }
    entry = write(folder / "cudnn/redist" / relative, archive(top, files))
    platform = {f"cuda{cuda}": {"relative_path": relative, **entry}}
    product = {"cudnn": {"name": "cudnn", "version": version, "linux-x86_64": platform}}
    return manifest(folder, f"cudnn/redist/redistrib_{'.'.join(numbers[:3])}.json", product)


def main() -> None:
    """Write everything and print where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    made = {
        "runfile": runfile(folder, "12.9.1"),
        "redist": redist(folder, "12.4.1"),
        "cudnn": cudnn(folder, "9.27.0.42", "12"),
        "cudnn_other": cudnn(folder, "9.13.0.50", "12"),
    }
    print(json.dumps(made))


if __name__ == "__main__":
    main()
