"""Change a host's NVIDIA driver as one transaction: all of it, or the set that was there before.

What can fail without harm comes first (driver_plan, driver_store): apt's plan, the files of both sets, the build of the modules.
Then the record says that a change has begun, and packages and modules are exchanged without network. A change that fails is
undone at once, one that was interrupted by the next run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ansible.module_utils import apt_packages, dkms_modules, driver_record, files
from ansible.module_utils.apt_packages import AptError
from ansible.module_utils.dkms_modules import BuildError, Source
from ansible.module_utils.driver_host import DriverError, Host, read_file
from ansible.module_utils.driver_plan import faults
from ansible.module_utils.driver_record import DriverSet, Record
from ansible.module_utils.driver_store import fetch, kept_tree


def exchange(host: Host, record: Record, before: DriverSet, after: DriverSet, *, back: bool) -> None:
    """Replace one set by another, and write it into the record. back: the new one is the set before, and the other is rejected.

    Raises:
        DriverError: it failed, and the set before is in place again; or that failed too, and the message says what is left to do.
    """
    try:
        for source in map(_source, before.sources):
            for kernel in host.kernels:
                dkms_modules.copy(host.root / dkms_modules.TREE, source, kernel, kept_tree(host, before))
    except BuildError as error:
        raise DriverError(f"{error}. Nothing was changed. Remedy: make space there, and run this again") from error
    automatic = apt_packages.automatic(host.run)
    before.auto = sorted(automatic & before.packages.keys())
    if not back:
        new = {name for name, version in after.packages.items() if version} - set(after.wish.get("packages", ()))
        after.auto = sorted(name for name in new if name in automatic or before.packages.get(name) is None)
    record.transaction, record.back = {"before": before, "after": after}, back
    driver_record.write(host.root, record)
    try:
        _put(host, after)
        # Seen once more with fresh eyes: what scripts of packages did is not what apt was asked for.
        if found := faults(host, after, apt_packages.installed(host.run)):
            raise DriverError(f"after the change the host is not as planned: {'; '.join(found)}")
    except (AptError, BuildError, DriverError, OSError) as error:
        left = undo(host, record)
        raise DriverError(_undone(before, after, error, left)) from error
    # What was only mended has the same way back as before.
    current = record.current
    mended = current and after.version and (before.version, current.wish) == (after.version, after.wish)
    if back or (before.packages != after.packages and not mended):
        record.previous, record.rejected = before, None
    if back:
        reject(record, before)
    record.current, record.transaction = after, None
    driver_record.write(host.root, record)


def reject(record: Record, part: DriverSet) -> None:
    """Remember the version that somebody goes back from; to have none is no version."""
    if part.version:
        record.rejected = {"version": part.version, "since": time.strftime("%Y-%m-%d %H:%M:%S %Z")}


def _undone(before: DriverSet, after: DriverSet, error: Exception, left: list[str]) -> str:
    cause = f"the change from {before} to {after} failed: {error}"
    if not left:
        again = f"{before} is in place again, in full" if before.version else "The host is as before, without a driver"
        return f"{cause}\n{again}. Remedy: remove the cause, and run this again"
    return (
        f"{cause}\nPutting {before} back did not succeed either: {'; '.join(left)}. Remedy: remove the cause (`dpkg --audit` and "
        f"`journalctl` tell more), and run this again; it begins with putting the set back"
    )


def undo(host: Host, record: Record) -> list[str]:
    """Put back the set that a failed or interrupted change began with; say what could not be done, nothing if all is well."""
    if record.transaction is None:
        return []
    before, after = record.transaction["before"], record.transaction["after"]
    if any(version and name not in before.debs for name, version in before.packages.items()):
        # Somebody may have put a file that could not be had into the store since.
        fetch(host, before, required=())
    goal = replace(before, auto=[*before.auto, *(name for name in after.auto if name not in before.packages)])
    with host.step("put the former set back"):
        # What was unpacked only may well fail again, and is about to be replaced.
        with _modules_left_alone(host.root):
            host.run(["dpkg", "--configure", "--pending", "--force-confdef", "--force-confold"])
        try:
            _put(host, goal, forced=True)
        except (AptError, BuildError, OSError) as error:
            return [str(error)]
        left = faults(host, goal, apt_packages.installed(host.run))
        # A kernel that had no module before has none now.
        left = [fault for fault in left if not fault.startswith("kernel ") or before.wish]
    if not left:
        record.transaction = None
        driver_record.write(host.root, record)
    return left


def _put(host: Host, goal: DriverSet, *, forced: bool = False) -> None:
    """Bring packages, modules, apt's files and holds to a set, whose files and modules are in the store.

    forced: where apt refuses since packages are broken, dpkg does it; that is for the way back, never for the way on.
    """
    packages = apt_packages.installed(host.run)
    wrong = {
        name: version
        for name, version in goal.packages.items()
        if version and (name not in packages or packages[name].version != version or not packages[name].in_order)
    }
    removals = sorted(name for name, version in goal.packages.items() if version is None and name in packages)
    debs = [host.debs / goal.debs[name]["file"] for name in sorted(wrong) if name in goal.debs]
    for path, text in goal.config.items():
        _write(host.root, path, text)
    with host.step("packages"), _modules_left_alone(host.root):
        try:
            apt_packages.apply(host.run, debs, removals, host.lock_timeout)
        except AptError as error:
            if not forced or not apt_packages.unfinished(apt_packages.installed(host.run)):
                raise
            host.log(f"apt refuses a host with broken packages, so dpkg does it: {error}")
            apt_packages.force(host.run, debs, removals)
    kept = kept_tree(host, goal)
    with host.step("modules"):
        for source in map(_source, goal.sources):
            for kernel in host.kernels:
                if dkms_modules.is_built(kept, source, kernel):
                    dkms_modules.install(host.run, host.root, kept, source, kernel)
    now, automatic = apt_packages.installed(host.run), apt_packages.automatic(host.run)
    # To apt a package from a file is one that somebody asked for.
    apt_packages.mark(host.run, (now.keys() & goal.auto) - automatic, automatic=True)
    apt_packages.mark(host.run, (goal.packages.keys() & now.keys() & automatic) - set(goal.auto), automatic=False)
    held = {name for name in goal.packages if name in now and now[name].held}
    apt_packages.hold(host.run, held - set(goal.holds), wanted=False)
    apt_packages.hold(host.run, set(goal.holds) - held, wanted=True)


@contextmanager
def _modules_left_alone(root: Path) -> Iterator[None]:
    """Keep the scripts of packages from building modules: those that were built before are put in place."""
    mark = root / dkms_modules.NO_AUTOINSTALL
    text = "Groundwork exchanges the NVIDIA driver, and puts its modules in place itself.\n"
    mine = not mark.exists() or mark.read_text() == text
    if mine:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(text)
    try:
        yield
    finally:
        if mine:
            mark.unlink()


def _source(pair: list[str]) -> Source:
    return Source(*pair)


def _write(root: Path, path: str, text: str | None) -> None:
    file = root / path.lstrip("/")
    if text is None:
        file.unlink(missing_ok=True)
    elif read_file(root, path) != text:
        files.replace(file, text, 0o644)
