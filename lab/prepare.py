#!/usr/bin/env python3
"""Prepare this machine for lab hosts: system packages, podman settings, images.

Lab hosts are systemd containers made from Debian packages alone: no container registry is needed. Everything here may be
repeated at any time and does only what is missing. What an unusual machine lacks is told in one sentence.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import hashlib
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

CACHE = Path(
    os.environ.get("GROUNDWORK_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "groundwork"
).expanduser()
CONTAINERS_CONF = CACHE / "containers.conf"
IMAGE = "localhost/groundwork-lab"
RELEASES = ("bookworm", "trixie")

# program that proves it is there -> package that brings it (the same names on Debian and Ubuntu)
PROGRAMS = {
    "podman": "podman",
    "mmdebstrap": "mmdebstrap",
    "newuidmap": "uidmap",
    "/usr/lib/podman/netavark": "netavark",
    "/usr/lib/podman/aardvark-dns": "aardvark-dns",
    # netavark calls one or the other, by its version
    "/usr/sbin/iptables": "iptables",
    "/usr/sbin/nft": "nftables",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}

# What a minimal server installation of Debian has and a role may count on.
IMAGE_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "python3", "python3-apt", "sudo", "ca-certificates",
    "iproute2", "procps", "kmod", "apt-utils",
)  # fmt: skip
# Variants of an image, by what follows the release in their names: what takes longer to install than to test.
IMAGE_VARIANTS = {
    # A host that builds modules for its kernel.
    "kernel": ("linux-headers-amd64", "dkms"),
}
# Documentation and translations are two thirds of the files and nothing in a test reads them. The folders of the manual
# stay: java's package puts links there and fails without.
IMAGE_EXCLUDES = ("/usr/share/doc/*", "/usr/share/man/*/*", "/usr/share/locale/*", "/usr/share/info/*")
# The containers share this machine's kernel, and at boot each would write Debian's own sysctl settings into it.
IMAGE_MASKED = ("systemd-sysctl.service",)


class LabError(Exception):
    """Something this machine lacks; the text is one sentence with its remedy."""


def say(text: str) -> None:
    """Tell progress on standard error, so that standard output stays free for results."""
    print(f"groundwork: {text}", file=sys.stderr, flush=True)


def run(*argv: str, **kwargs: object) -> str:
    """Run a program and return its output; LabError with its last line if it fails."""
    try:
        result = subprocess.run(argv, capture_output=True, text=True, check=False, **kwargs)  # type: ignore[call-overload]
    except FileNotFoundError as error:
        raise LabError(f"the lab needs {argv[0]}, and this machine has none: install it by the machine's own means") from error
    if result.returncode != 0:
        lines = (result.stderr or result.stdout).strip().splitlines() or ["no output"]
        raise LabError(f"`{' '.join(argv[:3])}` failed: {lines[-1]}")
    return str(result.stdout)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, so that hosts that start together do once what they share."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def unified_cgroups() -> bool:
    """Tell whether the machine runs cgroup v2 alone."""
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()


def may_raise_limits() -> bool:
    """Tell whether this process has CAP_SYS_RESOURCE (bit 24)."""
    capabilities = re.search(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return bool(capabilities and int(capabilities[1], 16) >> 24 & 1)


def container_programs() -> dict[str, str]:
    """Return the programs that containers need on this machine, each with its package."""
    programs = dict(PROGRAMS)
    # crun 1.8 of Debian 12 cannot start systemd on hybrid cgroups; runc can.
    programs["crun" if unified_cgroups() else "runc"] = "crun" if unified_cgroups() else "runc"
    if os.geteuid() != 0:
        programs["slirp4netns"] = "slirp4netns"
    return programs


def missing_packages(programs: Mapping[str, str]) -> list[str]:
    """List the packages whose program is not there yet."""
    return sorted(package for program, package in programs.items() if not shutil.which(program) and not Path(program).is_file())


def install_packages(programs: Mapping[str, str]) -> None:
    """Install what is missing, as root, and say so."""
    packages = missing_packages(programs)
    if not packages:
        return
    if not shutil.which("apt-get"):
        raise LabError(f"the lab needs {', '.join(packages)}, and this machine has no apt-get: install them by its own means")
    as_root: list[str] = []
    if os.geteuid() != 0:
        if not shutil.which("sudo"):
            raise LabError(f"the lab needs the packages {' '.join(packages)}: install them as root, or install sudo")
        as_root = ["sudo"]
    say(f"installing the system packages {' '.join(packages)} (needs root rights)")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(*as_root, "apt-get", "update", "-qq", env=environment)
    run(*as_root, "apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages, env=environment)


def configure_podman() -> None:
    """Write the podman settings that this machine needs, and refuse a machine that can't run systemd containers."""
    if not unified_cgroups() and os.geteuid() != 0:
        raise LabError(
            "this machine runs cgroup v1, where only root can start systemd containers: "
            "run make as root, or boot with systemd.unified_cgroup_hierarchy=1"
        )
    settings = []
    if not may_raise_limits() and os.geteuid() == 0:
        # Without CAP_SYS_RESOURCE podman's wish for 1048576 open files fails: "error setting rlimit type 7".
        nofile = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        settings += ["[containers]", f'default_ulimits = ["nofile={nofile}:{nofile}", "nproc=4096:4096"]']
    if not unified_cgroups():
        settings += ["[engine]", 'runtime = "runc"']
    if settings:  # the file replaces the user's own settings, so it exists only where it must
        CACHE.mkdir(parents=True, exist_ok=True)
        CONTAINERS_CONF.write_text("\n".join(["# Written by lab/prepare.py: what podman needs on this machine.", *settings, ""]))
        os.environ["CONTAINERS_CONF"] = str(CONTAINERS_CONF)
    run("podman", "info")


@functools.cache
def debian_sources(release: str) -> tuple[str, ...]:
    """Return apt lines for a Debian release, from this machine's own mirrors.

    On other distributions there are none, and mmdebstrap falls back to Debian's own default.
    """
    wanted = {"Debian": (release, f"{release}-updates"), "Debian-Security": (f"{release}-security",)}
    targets = run("apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages")
    mirrors = dict(line.split(" ", 1) for line in targets.splitlines() if line.split(" ", 1)[0] in wanted)
    return tuple(f"deb {mirrors[label]} {suite} main" for label in mirrors for suite in wanted[label])


def digest(*parts: str) -> str:
    """Return twelve digits that change with any of the parts."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def bootstrap(release: str, target: Path, packages: tuple[str, ...], *options: str) -> None:
    """Install a Debian release, without its documentation, into an archive or a directory."""
    excluded = [f"--dpkgopt=path-exclude={pattern}" for pattern in IMAGE_EXCLUDES]
    # The package lists stay in: roles find them as on a real host, and scenarios save an apt-get update each.
    run("mmdebstrap", "--quiet", "--variant=minbase", "--skip=cleanup/apt/lists", *excluded, *options,
        f"--include={','.join(packages)}", release, str(target), *debian_sources(release))  # fmt: skip


def image_parts(image: str) -> tuple[str, tuple[str, ...]]:
    """Return the release and the packages of an image: `bookworm`, or `bookworm-kernel` for a variant."""
    release, _, variant = image.partition("-")
    if release not in RELEASES or (variant and variant not in IMAGE_VARIANTS):
        known = [*RELEASES, *(f"{release}-{variant}" for release in RELEASES for variant in IMAGE_VARIANTS)]
        raise LabError(f"there is no image {image}; there are: {', '.join(known)}")
    return release, IMAGE_PACKAGES + (IMAGE_VARIANTS[variant] if variant else ())


def image_tag(image: str) -> str:
    """Return a tag that changes with everything the image is made from."""
    release, packages = image_parts(image)
    recipe = (release, *packages, *IMAGE_EXCLUDES, *IMAGE_MASKED, *debian_sources(release))
    return f"{image}-{digest(*recipe)}"


def build_image(image: str) -> None:
    """Make an image, or take it from the cache."""
    release, packages = image_parts(image)
    tag = image_tag(image)
    with locked(CACHE / "images" / f"{tag}.lock"):
        if subprocess.run(["podman", "image", "exists", f"{IMAGE}:{tag}"], check=False).returncode != 0:
            archive = CACHE / "images" / f"{tag}.tar"
            if not archive.exists():
                say(f"building the lab image {image} from Debian packages (about half a minute)")
                part = archive.with_suffix(".part.tar")
                options = [f'--customize-hook=ln -s /dev/null "$1/etc/systemd/system/{unit}"' for unit in IMAGE_MASKED]
                bootstrap(release, part, packages, *options)
                part.rename(archive)
            run("podman", "import", "--quiet", str(archive), f"{IMAGE}:{tag}")
        run("podman", "tag", f"{IMAGE}:{tag}", f"{IMAGE}:{image}")


def prepare(images: list[str]) -> None:
    """Do everything that lab hosts need."""
    install_packages(container_programs())
    configure_podman()
    with ThreadPoolExecutor() as pool:
        list(pool.map(build_image, images))


def remove(_: list[str]) -> None:
    """Remove the images from podman; the cache keeps their archives."""
    if not shutil.which("podman"):
        return
    configure_podman()
    images = run("podman", "images", "--quiet", "--filter", f"reference={IMAGE}").split()
    if images:
        run("podman", "rmi", "--force", *dict.fromkeys(images))


def main() -> int:
    """Run one command; a problem is one sentence, not a trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("prepare", "remove"))
    parser.add_argument(
        "images", nargs="*", default=list(RELEASES),
        help=f"Debian releases, or variants like {RELEASES[0]}-{next(iter(IMAGE_VARIANTS))} (default: {' '.join(RELEASES)})",
    )  # fmt: skip
    arguments = parser.parse_args()
    try:
        {"prepare": prepare, "remove": remove}[arguments.command](arguments.images)
    except LabError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
