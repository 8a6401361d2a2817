"""Prove that a CUDA tree works: compile with it, ask its libraries for their version, and see which library wins."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from ansible.module_utils.cuda_trees import CudaError

Answer = TypeVar("Answer")

SOURCE = 'extern "C" __global__ void groundwork(float *x) { x[threadIdx.x] *= 2.0f; }\n'
EM_CUDA = 190


def compiler(folder: Path) -> str:
    """Return what compiles in a tree: nvcc, nvrtc (with ptxas), or none."""
    if (folder / "bin/nvcc").exists():
        return "nvcc"
    return "nvrtc" if (folder / "bin/ptxas").exists() and library(folder, "nvrtc") else "none"


def told_version(folder: Path) -> str:
    """Return the version in a tree's version.json; empty without one, as in trees made of parts."""
    try:
        return str(json.loads((folder / "version.json").read_text())["cuda"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def library(folder: Path, name: str) -> Path | None:
    """Return the shared library of a name, under its soname."""
    return next(iter(sorted(folder.glob(f"lib*/lib{name}.so.*"))), None)


def is_cubin(path: Path) -> bool:
    """Whether a file is machine code for a GPU."""
    head = path.read_bytes()[:20] if path.exists() else b""
    return head[:4] == b"\x7fELF" and int.from_bytes(head[18:20], "little") == EM_CUDA


def apart(function: Callable[..., Answer], *arguments: object) -> Answer:
    """Call a function in a process of its own, which a foreign library may bring down."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool as error:
            raise CudaError(f"{arguments[0]} brought down the process that loaded it") from error
        except (OSError, AttributeError) as error:
            raise CudaError(f"{arguments[0]} can't be used: {error}") from error


def ptx(nvrtc: Path, source: str, architecture: str) -> bytes:
    """Compile a source text by NVRTC, which needs no host compiler; `architecture` is such as sm_80."""
    # The library asks for its builtins by name alone, and finds them once they are loaded.
    builtins = library(nvrtc.parents[1], "nvrtc-builtins")
    if builtins:
        ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
    api = ctypes.CDLL(str(nvrtc))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()

    def call(name: str, *arguments: object) -> None:
        code = getattr(api, name)(*arguments)
        if code != 0:
            raise OSError(f"{name} returned {code}")

    options = (ctypes.c_char_p * 1)(f"--gpu-architecture={architecture.replace('sm_', 'compute_')}".encode())
    call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"groundwork.cu", 0, None, None)
    call("nvrtcCompileProgram", program, 1, options)
    call("nvrtcGetPTXSize", program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    call("nvrtcGetPTX", program, text)
    return text.value


def cudnn_number(path: Path) -> int:
    """Ask a libcudnn for its version, as it answers a program."""
    function = ctypes.CDLL(str(path)).cudnnGetVersion
    function.restype = ctypes.c_size_t
    return int(function())


def cudnn_version(path: Path) -> str:
    """Return the version that a libcudnn says it has, such as 9.27.0."""
    number = apart(cudnn_number, path)
    major, rest = divmod(number, 10000) if number >= 90000 else divmod(number, 1000)  # noqa: PLR2004 - from cuDNN 9 on
    return f"{major}.{rest // 100}.{rest % 100}"


def header_version(folder: Path) -> str:
    """Return the version in a cuDNN's header, empty without one."""
    header = folder / "include/cudnn_version.h"
    text = header.read_text(errors="replace") if header.exists() else ""
    return ".".join(re.findall(r"^#define CUDNN_(?:MAJOR|MINOR|PATCHLEVEL)\s+(\d+)", text, re.MULTILINE))


def cached(ldconfig: str, soname: str) -> list[str]:
    """Return the files of a soname in the loader's cache, from what `ldconfig -p` prints; the first one wins."""
    return re.findall(rf"^\s*{re.escape(soname)} \(.*\) => (\S+)$", ldconfig, re.MULTILINE)


def winner(root: Path, search: list[str], ldconfig: str, soname: str) -> str | None:
    """Return the file that a program gets for a soname: from LD_LIBRARY_PATH's folders, else from the cache."""
    for folder in search:
        if (root / folder.lstrip("/") / soname).exists():
            return f"{folder}/{soname}"
    return next(iter(cached(ldconfig, soname)), None)
