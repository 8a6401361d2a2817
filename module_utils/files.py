"""Write files so that nobody ever finds half of one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def replace(path: Path, content: str | bytes, mode: int | None = None, *, durable: bool = False) -> None:
    """Replace a file in one step, or make it, with its folder; after an error the file that was there is still there.

    A link stays, and what it leads to is replaced. A text may hold bytes in the way of errors="surrogateescape".

    Args:
        path: the file.
        content: all of it.
        mode: without, the file that is there keeps its mode and owner, and a new one gets 0644.
        durable: whether it is on the disk when this returns.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    # Programs that read whole folders, such as apt, leave hidden files alone. One name, so that interrupted runs leave one file.
    draft = path.with_name(f".{path.name}.groundwork-new")
    draft.unlink(missing_ok=True)
    try:
        draft.touch(0o600)
        with draft.open("wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode(errors="surrogateescape"))
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if mode is None and path.exists():
            shutil.copymode(path, draft)
            os.chown(draft, path.stat().st_uid, path.stat().st_gid)
        else:
            draft.chmod(0o644 if mode is None else mode)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
