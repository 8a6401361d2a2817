"""Which driver packages a host gets, in which version, and what keeps it from getting them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible.module_utils import gpu_catalog as catalog
from ansible.module_utils import versions
from ansible.module_utils.solver_case import SOURCE_KINDS, Case, Judgement, Offer, Offers, origin_kind

SOURCES = ("distribution", "cuda_repository", "mirror")
WISH: dict[str, Any] = {"source": "distribution", "version": "", "branch": "", "flavour": "auto", "desktop": False}
VERSION = re.compile(r"(\d{3})\.\d+(\.\d+)?(-.+)?")


def complete(wish: Mapping[str, Any]) -> dict[str, Any]:
    """Return the wish with every key, the text ones as text."""
    return {**WISH, **{key: str(value or "") if isinstance(WISH[key], str) else value for key, value in wish.items()}}


def branch_of(case: Case, wish: Mapping[str, Any]) -> str:
    """Return the branch that a wish names, or the one that the source has by default."""
    if wish["branch"] or wish["version"]:
        return str(wish["branch"] or wish["version"].split(".")[0])
    if wish["source"] == "distribution" and case.system == "debian":
        return next(iter(catalog.DEBIAN_BRANCHES.get(case.release, {})), "")
    return str(catalog.DEFAULT_BRANCH)


def has_ended(branch: str, month: str) -> bool:
    """Say whether NVIDIA's support for a branch has ended; not for one that the catalog does not know."""
    entry = catalog.BRANCHES.get(branch, {"kind": "", "eol": ""})
    return entry["kind"] == "retired" or bool(entry["eol"] and month > entry["eol"])


class DriverPlan:
    """The plan for one wish; plan() returns it, and what is wrong with it is in the judgement."""

    def __init__(self, case: Case, wish: Mapping[str, Any], offers: Offers, judgement: Judgement, month: str) -> None:
        """Take the case; `month` (2026-11) tells which branches are at their end."""
        self.case = case
        self.wish = complete(wish)
        self.offers = offers
        self.judgement = judgement
        self.month = month
        self.source: str = self.wish["source"]
        self.branch = branch_of(case, self.wish)
        self.flavour = ""

    def plan(self) -> dict[str, Any] | None:
        """Return the plan, None where there is nothing to plan with."""
        if not (self._system() and self._version()):
            return None
        in_source = self._branch()
        self._gpus()
        prebuilt = self._secure_boot()
        names = self._names(prebuilt)
        chosen = self._choose(names) if in_source else {}
        packages, fabric_manager = self._packages(names, prebuilt, chosen)
        headers, compilers = ([], []) if prebuilt else self._kernels()
        self._origins()
        table = self._table
        module = self._fill(table["module"])
        return {
            "source": self.source,
            "branch": self.branch,
            "version": chosen.get(names[0], self.wish["version"] if "-" in self.wish["version"] else ""),
            "flavour": self.flavour,
            "packages": packages,
            "pins": self._pins(names, chosen),
            "owned": list(catalog.OWNED),
            "modules": [module + part for part in catalog.MODULES],
            "dkms": "" if prebuilt else self._fill(table["dkms"]),
            "headers": headers,
            "compilers": compilers,
            "fabric_manager": fabric_manager,
        }

    # ---- What is wished for, and where from

    def _system(self) -> bool:
        case = self.case
        if self.source not in SOURCES:
            self.judgement.refuse("source", f"the driver's source is {self.source!r}", f"choose one of {', '.join(SOURCES)}")
        if case.repository is None:
            systems = ", ".join(" ".join(system) for system in catalog.REPOSITORIES)
            self.judgement.refuse(
                "unsupported_system",
                f"the host is {case.name}; the driver's packages are known for {systems} on {', '.join(catalog.ARCHITECTURES)}",
                "install a supported release, or take the host out of the group",
            )
        return self.source in SOURCES and case.repository is not None

    def _version(self) -> bool:
        version, branch = self.wish["version"], self.wish["branch"]
        if (version and not VERSION.fullmatch(version)) or (branch and not re.fullmatch(r"\d{3}", branch)):
            self.judgement.refuse(
                "version_format",
                f"the driver's version is {version!r} and its branch {branch!r}",
                "write a version such as 580.178.04 or 580.178.04-1, and a branch such as 580; not both are needed",
            )
            return False
        if version and branch and not version.startswith(f"{branch}."):
            self.judgement.refuse(
                "branch_conflict",
                f"driver {version} does not belong to branch {branch}",
                "name either the version or the branch",
            )
        return True

    def _branch(self) -> bool:
        """Judge the branch; return whether the source has it as far as the catalog knows."""
        case, branch = self.case, self.branch
        known = catalog.DEBIAN_BRANCHES.get(case.release, {})
        in_source = self.source != "distribution" or case.system != "debian" or branch in known
        if not in_source:
            self.judgement.refuse(
                "branch_not_in_source",
                f"Debian {case.release} has no driver {branch}, its archive has: {', '.join(known)}",
                "choose one of these branches, or the source cuda_repository",
            )
        entry = catalog.BRANCHES.get(branch)
        if entry is None:
            self.judgement.warn(
                "branch_unknown",
                f"driver branch {branch} is not in the catalog, and was not judged by it",
                "compare with NVIDIA's lifecycle table",
            )
        elif has_ended(branch, self.month):
            since = f" since {entry['eol']}" if entry["eol"] else ""
            self.judgement.warn(
                "branch_eol",
                f"driver branch {branch} is at its end of life{since}: it gets no security updates from NVIDIA any more",
                f"move to branch {catalog.DEFAULT_BRANCH} where the GPUs allow it",
            )
        elif entry["kind"] == "new_feature":
            self.judgement.warn(
                "branch_short_lived",
                f"driver branch {branch} is a new feature branch: its support ends with the next one",
                "choose a long-term or production branch for hosts that stay",
            )
        return in_source

    # ---- The GPUs

    def _gpus(self) -> None:
        case, judgement = self.case, self.judgement
        if not case.gpus:
            judgement.warn(
                "no_gpu", "the PCI bus shows no NVIDIA GPU: no card was compared with the driver", "check that it is meant so"
            )
        if case.unknown_gpus:
            judgement.warn(
                "gpu_unknown",
                f"GPU {', '.join(case.unknown_gpus)} is not in the catalog, and was not compared with the driver",
                "compare with NVIDIA's list of supported products for this driver",
            )
        for generation, ids in case.generations.items():
            row = catalog.GENERATIONS[generation]
            last, first = row["last"], row["first"]
            if (last and int(self.branch) > last) or int(self.branch) < first:
                bound = f"driver {last} is the last one" if last and int(self.branch) > last else f"{first} is the first one"
                judgement.refuse(
                    "gpu_branch",
                    f"driver {self.branch} does not drive the {generation} GPU {', '.join(ids)}: {bound} for it",
                    f"choose a branch {f'up to {last}' if last else f'from {first} on'}",
                )
        self.flavour = self._flavour()

    def _flavour(self) -> str:
        case, wished = self.case, self.wish["flavour"]
        allowed = [
            flavour
            for flavour in ("open", "proprietary")
            if all(flavour in case.flavours(generation) for generation in case.generations)
        ]
        listed = ", ".join(f"{generation} ({', '.join(ids)})" for generation, ids in case.generations.items())
        if not allowed:
            self.judgement.refuse(
                "gpu_conflict",
                f"no one driver drives all GPUs of this host: {listed}; one part needs the open modules, one the proprietary",
                "keep GPUs from Turing on and older ones in different hosts",
            )
            return str(wished if wished != "auto" else "open")
        recommended = "open" if int(self.branch) >= catalog.OPEN_RECOMMENDED_FROM else "proprietary"
        flavour = str((recommended if recommended in allowed else allowed[0]) if wished == "auto" else wished)
        if flavour not in allowed:
            self.judgement.refuse(
                "gpu_flavour",
                f"the {flavour} kernel modules do not drive all of {listed}",
                f"choose the flavour {allowed[0]}, or auto",
            )
        elif flavour == "proprietary" and int(self.branch) > catalog.PROPRIETARY_LAST:
            self.judgement.refuse(
                "flavour_ended",
                f"driver {self.branch} has no proprietary kernel modules that are documented: {catalog.PROPRIETARY_LAST} is the "
                "last branch with both",
                f"choose the flavour open, or a branch up to {catalog.PROPRIETARY_LAST}",
            )
        if flavour == "open" and self._kind == "debian_tesla":
            self.judgement.refuse(
                "flavour_not_in_source",
                f"Debian {case.release} has driver {self.branch} with the proprietary kernel modules only",
                "choose the flavour proprietary, another branch, or the source cuda_repository",
            )
        return flavour

    # ---- Package names

    @property
    def _kind(self) -> str:
        if self.source == "distribution":
            infix = catalog.DEBIAN_BRANCHES.get(self.case.release, {}).get(self.branch)
            return "debian_tesla" if self.case.system == "debian" and infix else self.case.system
        old = self.case.system == "debian" and int(self.branch) < catalog.DRIVER_CUDA_FROM
        return f"cuda_{self.case.system}{'_old' if old else ''}"

    @property
    def _table(self) -> dict[str, Any]:
        return dict(catalog.PACKAGES[self._kind])

    def _fill(self, template: str, **more: str) -> str:
        server = "" if self.wish["desktop"] else "-server"
        is_open = self.flavour == "open"
        numbered = int(self.branch) < catalog.UNNUMBERED_FROM
        inside = {
            "debian_tesla": catalog.DEBIAN_BRANCHES.get(self.case.release, {}).get(self.branch, ""),
            "ubuntu": f"{self.branch}{server}",
        }
        return template.format(
            n=inside.get(self._kind, f"-{self.branch}" if numbered else ""),
            o="-open" if is_open else "",
            open_="open-" if is_open else "",
            srv="-srv" if server else "",
            meta="nvidia-open" if is_open else "cuda-drivers",
            globs=catalog.DRIVER_GLOBS,
            branch=self.branch,
            **more,
        )

    def _names(self, prebuilt: list[str]) -> list[str]:
        """Return the version-locked set, the package with the kernel module first."""
        names = [self._fill(name) for name in self._table["desktop" if self.wish["desktop"] else "compute"]]
        return [self._fill(catalog.UBUNTU_PREBUILT["headless"]), *names[1:]] if prebuilt else names

    # ---- Versions

    def _of(self, name: str) -> list[Offer] | None:
        offers: list[Offer] | None = self.offers.of(name, self.source)
        return offers

    def _comes_from_source(self, offer: Offer) -> bool:
        """Say whether an offer is from the wished source, and no empty package."""
        right = origin_kind(str(offer.get("origin") or "")) in SOURCE_KINDS[self.source]
        return right and not offer.get("transitional") and not self._is_transitional(str(offer["version"]))

    def _fits(self, offer: Offer) -> bool:
        """Say whether an offer is of the wished version or branch, and from the wished source."""
        version, wished = str(offer["version"]), self.wish["version"]
        upstream = versions.upstream(version)
        right = wished in (version, upstream) if wished else upstream.startswith(f"{self.branch}.")
        return right and self._comes_from_source(offer)

    def _alike(self, name: str, upstream: str) -> list[str]:
        """Return the versions of a package, from the wished source, that have an upstream version."""
        found = [str(offer["version"]) for offer in filter(self._comes_from_source, self._of(name) or ())]
        return [version for version in found if versions.upstream(version) == upstream]

    def _is_transitional(self, version: str) -> bool:
        if self._kind != "ubuntu":
            return False
        entry = catalog.UBUNTU_TRANSITIONAL.get(self.case.release, {}).get(self.branch)
        return bool(entry) and versions.numbers(version) >= versions.numbers(entry[1] if entry else "")

    def _choose(self, names: list[str]) -> dict[str, str]:
        """Return the version of each package of the set that apt was asked about, all of one upstream version."""
        offered = {name: self._of(name) for name in names}
        leads = offered[names[0]]
        if leads is None:
            self._by_tables(names[0])
            return {}
        missing: list[str] = []
        # A backport is taken only if there is nothing else.
        for lead in sorted(filter(self._fits, leads), key=lambda offer: "~bpo" in offer["version"]):
            chosen: dict[str, str] = {names[0]: lead["version"]}
            upstream = versions.upstream(lead["version"])
            missing = []
            for name in names[1:]:
                if alike := self._alike(name, upstream):
                    chosen[name] = lead["version"] if lead["version"] in alike else alike[0]
                elif offered[name] is not None:
                    missing.append(name)
            if not missing:
                self._open_skew(offered, upstream)
                return chosen
        self._not_offered(names[0], leads, missing)
        return {}

    def _open_skew(self, offered: Mapping[str, list[Offer] | None], upstream: str) -> None:
        newest = offered.get("libcuda1") or []
        if self._kind == "debian" and self.flavour == "open" and not self.wish["version"] and newest:
            latest = versions.upstream(newest[0]["version"])
            if latest.startswith(f"{self.branch}.") and versions.numbers(latest) > versions.numbers(upstream):
                self.judgement.warn(
                    "open_skew",
                    f"the newest driver with open kernel modules here is {upstream}, while {latest} has security fixes: the "
                    "whole set stays at the older one",
                    "choose the flavour proprietary where the GPUs allow it, or the source cuda_repository",
                )

    def _by_tables(self, lead: str) -> None:
        entry = catalog.UBUNTU_TRANSITIONAL.get(self.case.release, {}).get(self.branch) if self._kind == "ubuntu" else None
        version = self.wish["version"]
        if entry and (not entry[1] or "-" not in version or self._is_transitional(version)):
            self._transitional(lead, entry)
            return
        skew = catalog.DEBIAN_OPEN_SKEW.get(self.case.release) if self._kind == "debian" else None
        if self.flavour == "open" and skew and version not in ("", skew, versions.upstream(skew)):
            self.judgement.refuse(
                "open_skew",
                f"Debian {self.case.release} has open kernel modules of driver {skew} only, {version} is wished",
                f"choose the version {skew}, the flavour proprietary, or the source cuda_repository",
            )
        self.judgement.warn(
            "by_tables",
            f"apt was not asked about {lead}: packages come from the catalog, and no version was compared",
            "the run asks apt once the package source is configured",
        )

    def _transitional(self, lead: str, entry: tuple[str, str]) -> None:
        self.judgement.refuse(
            "branch_transitional",
            f"{lead} of Ubuntu {self.case.release} is an empty package that installs driver {entry[0]}"
            + (f" (from version {entry[1]} on)" if entry[1] else ""),
            f"choose branch {entry[0]}, or the source cuda_repository for driver {self.branch}",
        )

    def _not_offered(self, lead: str, leads: list[Offer], missing: list[str]) -> None:
        entry = catalog.UBUNTU_TRANSITIONAL.get(self.case.release, {}).get(self.branch) if self._kind == "ubuntu" else None
        wished = self.wish["version"] or f"branch {self.branch}"
        listed = ", ".join(f"{offer['version']} ({offer.get('origin') or 'unknown origin'})" for offer in leads) or "nothing"
        if missing:
            self.judgement.refuse(
                "set_incomplete",
                f"apt has {lead} for {wished}, but not {', '.join(missing)} in the same version: the set would not fit together",
                "choose a version that apt has of all of them, another flavour, or another source",
            )
        elif entry and any(self._is_transitional(str(offer["version"])) for offer in leads):
            self._transitional(lead, entry)
        elif not leads:
            self.judgement.refuse(
                "package_not_offered",
                f"apt has no package {lead} from the source {self.source}",
                "enable the component or repository that holds it (Debian: contrib non-free non-free-firmware; Ubuntu: "
                "restricted multiverse), or choose another branch, flavour or source",
            )
        else:
            self.judgement.refuse(
                "version_not_offered",
                f"apt has no {lead} for {wished} from the source {self.source}; it has: {listed}",
                "choose a version that apt has, or the source that has this one",
            )

    def _packages(self, names: list[str], prebuilt: list[str], chosen: Mapping[str, str]) -> tuple[list[str], bool]:
        """Return what is installed in one transaction, and whether Fabric Manager is among it."""
        upstream = versions.upstream(chosen[names[0]]) if chosen else ""
        optional = [name for name in map(self._fill, self._table["optional"]) if self._alike(name, upstream)]
        fabric = self._fabric_manager(upstream) if self.case.nvswitch else []
        return [*names, *prebuilt, *self._table["loose"], *optional, *fabric], bool(fabric)

    def _fabric_manager(self, upstream: str) -> list[str]:
        """Return the packages that NVSwitch needs, in the driver's version to the last digit."""
        if self._kind.startswith("debian"):
            self.judgement.refuse(
                "fabric_manager",
                "the host has NVSwitches, and Debian's archive has no Fabric Manager",
                "choose the source cuda_repository",
            )
            return []
        if self._kind == "ubuntu" and self.wish["desktop"]:
            self.judgement.refuse(
                "fabric_manager",
                "the host has NVSwitches, and Ubuntu's Fabric Manager goes with the server flavour of the driver only",
                "set desktop to false, or choose the source cuda_repository",
            )
            return []
        archive = "ubuntu" if self._kind == "ubuntu" else "cuda"
        manager, nscq = (self._first_known(self._fill(template)) for template in catalog.FABRIC_MANAGER[archive])
        beside = [self._first_known(self._fill(template)) for template in catalog.FABRIC_MANAGER_OPTIONAL[archive]]
        offers = self._of(manager)
        if upstream and offers is not None and not self._alike(manager, upstream):
            listed = ", ".join(str(offer["version"]) for offer in offers) or "nothing"
            self.judgement.refuse(
                "fabric_manager",
                f"the host has NVSwitches, and apt has no {manager} of version {upstream}: it has {listed}",
                "choose a driver version for which there is one: it has to be equal to the last digit",
            )
        wanted = [manager] if upstream and self._of(nscq) == [] else [manager, nscq]
        optional = [name for name in beside if self._alike(name, upstream)]
        return [*wanted, *optional, *(catalog.NVLINK5_PACKAGES if self.case.nvlink5 else ())]

    def _first_known(self, alternatives: str) -> str:
        """Return the first one of a|b that apt has, the first one at all if it has none."""
        names = alternatives.split("|")
        return next((name for name in names if self._of(name)), names[0])

    def _pins(self, names: list[str], chosen: Mapping[str, str]) -> list[dict[str, str]]:
        """Return apt preferences that keep each package of the driver at the chosen version."""
        wished = self.wish["version"]
        version = chosen.get(names[0]) or (wished if "-" in wished else f"{wished}-*" if wished else "")
        if not version:
            return []
        sources = self._fill(self._table["pins"])
        if self._kind != "debian":
            pins = [{"package": sources, "version": version}]
        else:
            # Two sources that need not have the same revision.
            beside = next((chosen[name] for name in names[1:] if name in chosen), f"{versions.upstream(version)}-*")
            first, second = sources.split()
            closed, opened = (beside, version) if self.flavour == "open" else (version, f"{versions.upstream(version)}-*")
            pins = [{"package": first, "version": closed}, {"package": second, "version": opened}]
        upstream = f"{versions.upstream(version)}-*"
        if self.case.nvswitch and self._kind == "ubuntu":
            # From other sources than the driver.
            names = [self._fill(name) for name in catalog.FABRIC_MANAGER["ubuntu"]]
            pins.append({"package": " ".join(names), "version": upstream})
        elif self.case.nvswitch:
            pins.append({"package": catalog.FABRIC_MANAGER_GLOBS, "version": upstream})
        return pins

    # ---- What the kernel module needs

    def _secure_boot(self) -> list[str]:
        """Return the signed modules that are taken in place of DKMS; refuse a host that would not load its module."""
        case = self.case
        enrolled = case.module_key.get("enrolled")
        if not case.secure_boot or enrolled:
            return []
        flavours = [case.kernel_flavour(release) for release in case.may_boot]
        if self._kind == "ubuntu" and not self.wish["desktop"] and flavours and all(flavours):
            names = [self._fill(catalog.UBUNTU_PREBUILT["modules"], kernel=str(name)) for name in dict.fromkeys(flavours)]
            if [] not in [self.offers.of(name) for name in names]:
                return names
        default = "/var/lib/shim-signed/mok/MOK.der" if case.system == "ubuntu" else "/var/lib/dkms/mok.pub"
        key = case.module_key.get("path") or default
        state = "is not enrolled" if enrolled is False else "is not known to be enrolled"
        self.judgement.refuse(
            "secure_boot_key",
            f"Secure Boot is on, and the key that DKMS signs modules with {state}: the kernel would refuse the module",
            f"enrol it (mokutil --import {key}, then confirm at the console during the next boot), or switch Secure Boot off"
            + ("; the distribution's signed modules need neither" if case.system == "ubuntu" else ""),
        )
        return []

    def _kernels(self) -> tuple[list[str], list[str]]:
        """Return the headers and compilers that DKMS needs for every kernel that may boot and that the host lacks."""
        case = self.case
        headers: list[str] = []
        compilers: list[str] = []
        for release in case.may_boot:
            flavour = case.kernel_flavour(release)
            if flavour and self.offers.of(f"linux-headers-{flavour}") != []:
                headers.append(f"linux-headers-{flavour}")
            missing = [] if release in case.headers else self._headers(release, flavour)
            headers += missing
            # Debian's headers depend on the compiler of their kernel.
            if (missing or release in case.need_modules) and not (flavour and case.system == "debian"):
                compilers += self._compiler(release)
        return list(dict.fromkeys(headers)), list(dict.fromkeys(compilers))

    def _headers(self, release: str, flavour: str | None) -> list[str]:
        exact = f"linux-headers-{release}"
        offers = self.offers.of(exact)
        if offers:
            return [exact]
        meta = f"linux-headers-{flavour}" if flavour else exact
        message = f"kernel {release} may boot and has no headers, so no module can be built for it"
        if offers is None:
            self.judgement.warn("headers_missing", f"{message}; apt was not asked for {exact}", f"install {meta}")
        elif release in self.case.need_modules:
            self.judgement.refuse(
                "headers_missing",
                f"{message}, and apt has no {exact}",
                f"install {meta} and the current kernel, reboot into it, and remove the kernel {release}",
            )
        else:
            self.judgement.warn(
                "headers_missing",
                f"{message}, and apt has no {exact}: in it the host would be without its GPUs",
                f"remove the kernel: apt-get purge linux-image-{release}",
            )
        return []

    def _compiler(self, release: str) -> list[str]:
        needed = self.case.kernel_compilers.get(release)
        if self.case.compilers is None or needed is None or needed in self.case.compilers.values():
            return []
        name = f"gcc-{needed}"
        offers = self.offers.of(name)
        has = ", ".join(sorted({str(major) for major in self.case.compilers.values() if major})) or "none"
        message = f"kernel {release} was built with gcc {needed}, the host has {has}: the module would not build"
        if offers == []:
            self.judgement.refuse(
                "compiler_mismatch", f"{message}, and apt has no {name}", f"install gcc {needed}, or boot a kernel of the release"
            )
            return []
        if offers is None:
            self.judgement.warn("compiler_mismatch", f"{message}; apt was not asked for {name}", f"install {name}")
        return [name]

    # ---- What is installed

    def _origins(self) -> None:
        """Refuse a host whose installed driver comes from two places (one would replace parts of the other)."""
        found: dict[str, list[str]] = {}
        for package in self.case.driver_packages:
            name, version = str(package["name"]), str(package["version"])
            known = package.get("origin")
            if known is None:
                origins = {str(offer.get("origin")) for offer in self.offers.of(name) or () if offer["version"] == version}
                known = origins.pop() if len(origins) == 1 else ""
            if kind := origin_kind(str(known)):
                found.setdefault(kind, []).append(f"{name} {version}")
        if len(found) > 1:
            listed = "; ".join(f"{kind}: {', '.join(sorted(packages))}" for kind, packages in sorted(found.items()))
            self.judgement.refuse(
                "mixed_origins",
                f"the installed driver is mixed from several sources: {listed}",
                f"remove the packages that are not from {self.source}, then run again",
            )
        elif found and self.source not in found:
            self.judgement.warn(
                "origin_change",
                f"the installed driver comes from the source {next(iter(found))}, {self.source} is wished",
                "one transaction replaces the whole set; nothing is to be done",
            )
