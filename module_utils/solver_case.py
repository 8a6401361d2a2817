"""What the judgement of a host is made from: the host as its facts show it, what apt offers, and the findings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible.module_utils import gpu_catalog as catalog
from ansible.module_utils import versions
from ansible.module_utils.host_inventory import kernels_that_need_modules

#: An offer of apt: version (a full package version) and origin, and where it is known, transitional (an empty package).
Offer = Mapping[str, Any]
OPEN_ONLY = ("open",)
#: The kinds of origin that packages from these sources may have.
SOURCE_KINDS = {
    "distribution": {"distribution", ""},
    "cuda_repository": {"cuda_repository", ""},
    "mirror": {"cuda_repository", "mirror", ""},
}


class Judgement:
    """Reasons against a plan, and warnings, in the order in which they were found."""

    def __init__(self) -> None:
        """Begin with none."""
        self.reasons: list[dict[str, str]] = []
        self.warnings: list[dict[str, str]] = []

    def refuse(self, code: str, message: str, remedy: str) -> None:
        """Add a reason for which the plan can't be carried out."""
        self.reasons.append({"code": code, "message": message, "remedy": remedy})

    def warn(self, code: str, message: str, remedy: str) -> None:
        """Add something to know that does not stop the plan."""
        self.warnings.append({"code": code, "message": message, "remedy": remedy})


class Offers:
    """What apt has of each package, newest first, and then what the host has of it by itself.

    A package that is not in the table was not asked about. As long as apt has nothing at all from a source, that source is
    not configured yet, and what it will have is unknown too. What is on the host needs no source: it stays possible when an
    archive drops its version.
    """

    def __init__(self, table: Mapping[str, Iterable[Offer]] | None, present: Iterable[Mapping[str, Any]] = ()) -> None:
        """Take the table, None if apt was asked nothing, and the packages on the host: name, version, origin if known."""
        self._table = {name: list(offers) for name, offers in (table or {}).items()}
        self._kinds = {origin_kind(str(offer.get("origin") or "")) for offers in self._table.values() for offer in offers}
        self.asked: set[str] = set()
        for package in present:
            offers = self._table.get(str(package["name"]))
            if offers is not None and package["version"] not in [offer["version"] for offer in offers]:
                offers.append({"version": package["version"], "origin": package.get("origin") or ""})

    def of(self, name: str, source: str = "distribution") -> list[Offer] | None:
        """Return the offers of a package, from wherever, [] if apt has none, None if that is not known of the source."""
        self.asked.add(name)
        return self._table.get(name) if source == "distribution" or self._kinds & SOURCE_KINDS[source] else None


def origin_kind(origin: str) -> str:
    """Return the kind of source by the Origin of a Release file, or by its own name; "" if there is none."""
    if origin in SOURCE_KINDS:
        return origin
    lower = origin.lower()
    if "container" in lower:
        return "container_toolkit"
    if "nvidia" in lower:
        return "cuda_repository"
    if "debian" in lower or "ubuntu" in lower:
        return "distribution"
    return "mirror" if lower else ""


class Case:
    """A host as its facts (groundwork_facts) show it. What they don't hold is unknown, and no error."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        """Read the facts."""

        def part(name: str) -> dict[str, Any]:
            return dict(facts.get(name) or {})

        self.system = str(part("distribution").get("id") or "")
        self.release = str(part("distribution").get("version_id") or "")
        self.architecture = str(facts.get("architecture") or "")
        self.gpus = [str(gpu.get("id")) for gpu in facts.get("gpus") or ()]
        self.nvswitch = bool(part("nvswitch").get("present"))
        self.nvlink5 = bool(part("nvswitch").get("nvlink5"))
        self.loaded_driver = part("driver").get("version")
        self.secure_boot = bool(facts.get("secure_boot"))
        self.module_key = part("module_key")
        kernel = part("kernel")
        self.running = kernel.get("running")
        self.may_boot = [str(release) for release in kernel.get("may_boot", kernel.get("installed")) or ()]
        self.headers = set(kernel.get("headers") or ())
        self.need_modules = kernels_that_need_modules(
            {"running": self.running, "may_boot": self.may_boot, "headers": self.headers}
        )
        self.kernel_compilers: dict[str, int | None] = kernel.get("compilers") or {}
        self.compilers: dict[str, int | None] | None = facts.get("compilers")
        self.driver_packages: list[dict[str, Any]] = facts.get("driver_packages") or []

    @property
    def name(self) -> str:
        """Return the system in words."""
        return f"{self.system or 'an unknown system'} {self.release} ({self.architecture or 'unknown architecture'})"

    @property
    def repository(self) -> dict[str, Any] | None:
        """Return NVIDIA's repository for this host, None where there is none."""
        found: dict[str, Any] | None = catalog.repository(self.system, self.release, self.architecture)
        return found

    @property
    def generations(self) -> dict[str, list[str]]:
        """Return the known generations with the ids of their GPUs."""
        found: dict[str, list[str]] = {}
        for gpu in dict.fromkeys(self.gpus):
            if generation := catalog.generation(gpu):
                found.setdefault(generation, []).append(gpu)
        return found

    @property
    def unknown_gpus(self) -> list[str]:
        """Return the ids that are in no range of the catalog."""
        return [gpu for gpu in dict.fromkeys(self.gpus) if catalog.generation(gpu) is None]

    def flavours(self, generation: str) -> tuple[str, ...]:
        """Return the flavours of the kernel module that drive a generation in this host."""
        if generation == "hopper" and self.architecture == "arm64":
            return OPEN_ONLY  # Grace-Hopper
        found: tuple[str, ...] = catalog.GENERATIONS[generation]["flavours"]
        return found

    def kernel_flavour(self, release: str) -> str | None:
        """Return what a kernel's metapackages end with (amd64, generic-hwe-24.04); None for a kernel of one's own."""
        if self.system == "debian":
            match = re.search(r"-((?:cloud-|rt-)?(?:amd64|arm64)(?:-16k)?)$", release)
            return match.group(1) if match else None
        match = re.fullmatch(r"(\d+\.\d+)\.\d+-\d+-([a-z].*)", release)
        if not match:
            return None
        version, flavour = match.groups()
        newer = versions.numbers(version) > versions.numbers(catalog.UBUNTU_KERNELS.get(self.release, version))
        return f"generic-hwe-{self.release}" if flavour == "generic" and newer else flavour
