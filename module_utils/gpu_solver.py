"""Does what is wished for a GPU host fit together: cards, kernel, driver, CUDA, cuDNN and container toolkit?

No access to the host: what it is comes from groundwork_facts, what can be installed from its apt, what fits from
gpu_catalog. The wishes are
    driver             source, version, branch, flavour, desktop; None: the driver is not managed
    cuda               a list of version and method (wheel, apt, redist, runfile)
    cudnn              a list of version and cuda (the major that it is for)
    container_toolkit  a version; "": none
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ansible.module_utils import gpu_catalog as catalog
from ansible.module_utils import solver_cuda, solver_driver, versions
from ansible.module_utils.solver_case import Case, Judgement, Offer, Offers

Facts = Mapping[str, Any]
Wishes = Mapping[str, Any]
Table = Mapping[str, Iterable[Offer]]
#: What a change of a wish costs: the nearest choice is the cheapest one.
COSTS = {"flavour": 1.0, "version": 1.0, "desktop": 2.0, "branch": 2.0, "source": 4.0, "ended_branch": 4.0}
CUDA_COST, CUDNN_COST, TOOLKIT_COST = 3.0, 2.0, 1.0


def solve(
    facts: Facts, wishes: Wishes, offers: Table | None = None, month: str = "", kept: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Judge the wishes for a host, and say which packages they come to.

    Args:
        facts: the tree of groundwork_facts; what is missing in it is unknown.
        wishes: see above.
        offers: package name -> offers of apt (version, origin), newest first; [] for a package that apt does not have. A
            package that is not in the table was not asked about, and is judged by the catalog alone; so are all packages
            of a source from which the table has nothing. None: nothing was asked. See questions for the names.
        month: the date (2026-11) that ends of life are compared with, today's without it.
        kept: packages (name, version, origin) whose files the host keeps. They count as offered, as do installed ones.

    Returns:
        ok, reasons and warnings (code, message, remedy), nearest (the wishes to change, see merge; None where no change
        of wishes helps, or none is needed), driver, repository, cuda, cudnn, container_toolkit.
    """
    month = month or datetime.date.today().isoformat()[:7]
    case = Case(facts)
    # The kept ones first: their origin is known.
    apt = Offers(offers, [*kept, *case.driver_packages])
    answer = _judge(case, wishes, apt, month)
    nearest = None if answer["ok"] else _nearest(case, wishes, apt, month)
    return {**answer, "nearest": nearest}


def questions(facts: Facts, wishes: Wishes) -> list[str]:
    """Return the packages that apt has to be asked about, for solve to judge the wishes and the ways out."""
    case, apt = Case(facts), Offers(None)
    _judge(case, wishes, apt, "")
    for _cost, driver in _drivers(case, wishes.get("driver"), ""):
        for flavour in ("open", "proprietary") if driver else ():
            solver_driver.DriverPlan(case, {**(driver or {}), "flavour": flavour}, apt, Judgement(), "").plan()
    return sorted(apt.asked)


def merge(wishes: Wishes, nearest: Wishes) -> dict[str, Any]:
    """Return the wishes with the changes of `nearest` in them."""
    merged = {**wishes, **nearest}
    if "driver" in nearest:
        merged["driver"] = {**wishes["driver"], **nearest["driver"]}
    return merged


def _judge(case: Case, wishes: Wishes, offers: Offers, month: str) -> dict[str, Any]:
    judgement = Judgement()
    wish = wishes.get("driver")
    driver = solver_driver.DriverPlan(case, wish, offers, judgement, month).plan() if wish is not None else None
    known = _driver_version(case, wish, driver)
    cuda_wishes = wishes.get("cuda") or []
    cuda = [solver_cuda.cuda_plan(case, item, known, offers, judgement) for item in cuda_wishes]
    solver_cuda.judge_releases(cuda_wishes, judgement)
    majors = _majors(cuda_wishes)
    cudnn = [solver_cuda.cudnn_plan(case, item, majors, judgement) for item in wishes.get("cudnn") or []]
    version = str(wishes.get("container_toolkit") or "")
    toolkit = solver_cuda.container_toolkit_plan(version, driver, offers, judgement) if version else []
    from_nvidia = bool(driver and driver["source"] != "distribution") or any(item["method"] == "apt" for item in cuda)
    return {
        "ok": not judgement.reasons,
        "reasons": judgement.reasons,
        "warnings": judgement.warnings,
        "driver": driver,
        "repository": case.repository if from_nvidia else None,
        "cuda": cuda,
        "cudnn": cudnn,
        "container_toolkit": toolkit,
    }


def _driver_version(case: Case, wish: Mapping[str, Any] | None, driver: Mapping[str, Any] | None) -> str:
    """Return what is known of the driver that the host gets: its upstream version, its branch alone, or ""."""
    if wish is None:
        return str(case.loaded_driver or "")
    if driver is None:
        return ""
    version = str(driver["version"] or wish.get("version") or "")
    return versions.upstream(version) if "-" in version else version or str(driver["branch"])


def _majors(wishes: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(wish.get("version")).split(".", maxsplit=1)[0] for wish in wishes))


# ---- The nearest choice that fits


def _drivers(case: Case, wish: Mapping[str, Any] | None, month: str) -> Iterator[tuple[float, dict[str, Any] | None]]:
    """Return the wish for a driver and the changed ones, cheapest change first, with the cost of each."""
    if wish is None:
        yield 0.0, None
        return
    given = solver_driver.complete(wish)
    own = solver_driver.branch_of(case, given)
    found = []
    for source, branch, flavour, desktop in itertools.product(
        dict.fromkeys((given["source"], "distribution", "cuda_repository")),
        (None, *dict.fromkeys((own, *catalog.PREFERRED_BRANCHES))),
        dict.fromkeys((given["flavour"], "auto")),
        dict.fromkeys((given["desktop"], False)),
    ):
        gets = branch or solver_driver.branch_of(case, {**given, "source": source})
        moved = (source, gets) != (given["source"], own)
        if source == "cuda_repository" and moved and gets not in catalog.REPOSITORY_BRANCHES:
            continue
        # None: version and branch stay as they are; else the newest version of a branch.
        choice = {**given, "source": source, "flavour": flavour, "desktop": desktop}
        cost = sum(COSTS[key] for key in ("source", "flavour", "desktop") if choice[key] != given[key])
        if branch is not None:
            choice |= {"branch": branch, "version": ""}
            if branch == own:
                cost += COSTS["version"]
            else:
                cost += COSTS["branch"] + catalog.PREFERRED_BRANCHES.index(branch) / 10
                cost += COSTS["ended_branch"] if solver_driver.has_ended(branch, month) else 0.0
        found.append((cost, choice))
    yield from sorted(found, key=lambda pair: pair[0])


def _nearest(case: Case, wishes: Wishes, offers: Offers, month: str) -> dict[str, Any] | None:
    """Return the cheapest change of the wishes that _judge finds in order."""
    best: tuple[float, dict[str, Any]] | None = None
    wish = wishes.get("driver")
    for cost, driver in _drivers(case, wish, month):
        if best and cost >= best[0]:
            break
        judgement = Judgement()
        plan = solver_driver.DriverPlan(case, driver, offers, judgement, month).plan() if driver else None
        if judgement.reasons:
            continue
        known = _driver_version(case, driver, plan)
        cuda, cuda_cost = _fitting_cuda(case, wishes.get("cuda") or [], known, offers)
        cudnn, cudnn_cost = _fitting_cudnn(case, wishes.get("cudnn") or [], _majors(cuda))
        toolkit, toolkit_cost = _fitting_toolkit(str(wishes.get("container_toolkit") or ""), plan, offers)
        choice = {"driver": driver, "cuda": cuda, "cudnn": cudnn, "container_toolkit": toolkit}
        total = cost + cuda_cost + cudnn_cost + toolkit_cost
        if (best is None or total < best[0]) and _judge(case, choice, offers, month)["ok"]:
            best = (total, choice)
    return _changes(wishes, best[1]) if best else None


def _changes(wishes: Wishes, choice: Wishes) -> dict[str, Any]:
    """Return what differs; of the driver only the keys that do."""
    empty: dict[str, Any] = {"cuda": [], "cudnn": [], "container_toolkit": ""}
    given = {key: wishes.get(key) or nothing for key, nothing in empty.items()}
    changed = {key: choice[key] for key, value in given.items() if choice[key] != value}
    if wishes.get("driver") is not None:
        before = solver_driver.complete(wishes["driver"])
        if driver := {key: value for key, value in choice["driver"].items() if value != before[key]}:
            return {"driver": driver, **changed}
    return changed


def _fitting_cuda(
    case: Case, wishes: Iterable[Mapping[str, Any]], driver: str, offers: Offers
) -> tuple[list[dict[str, Any]], float]:
    """Return the toolkits, each one that does not fit replaced by the nearest version or method that does."""
    found: list[dict[str, Any]] = []
    cost = 0.0
    for wish in map(dict, wishes):
        taken = {solver_cuda.release_of(str(item["version"])) for item in found}
        twice = solver_cuda.release_of(str(wish.get("version"))) in taken
        for rank, option in enumerate(() if twice else _cuda_options(wish)):
            judgement = Judgement()
            solver_cuda.cuda_plan(case, option, driver, offers, judgement)
            if not judgement.reasons and solver_cuda.release_of(str(option["version"])) not in taken:
                found.append(option)
                cost += CUDA_COST if rank else 0.0
                break
        else:
            cost += 2 * CUDA_COST  # it is left out
    return found, cost


def _cuda_options(wish: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the wish; its version by other methods; then other versions, those of its own major first, the newest first."""
    version, method = str(wish.get("version")), wish.get("method") or "wheel"
    methods = [method, *(other for other in ("runfile", "redist", "wheel") if other != method)]
    yield wish
    yield from ({**wish, "method": other} for other in methods[1:])
    major = version.split(".", maxsplit=1)[0]
    newest_first = sorted(catalog.CUDA_DRIVERS, key=versions.numbers, reverse=True)
    ordered = sorted(newest_first, key=lambda other: other.split(".", maxsplit=1)[0] != major)
    yield from ({**wish, "version": other, "method": by} for other in ordered for by in methods)


def _fitting_cudnn(case: Case, wishes: Iterable[Mapping[str, Any]], majors: list[str]) -> tuple[list[dict[str, Any]], float]:
    """Return the cuDNNs, each one that does not fit moved to a CUDA that is there, or left out."""
    found: list[dict[str, Any]] = []
    cost = 0.0
    for wish in map(dict, wishes):
        for option in (wish, *({**wish, "cuda": major} for major in majors)):
            judgement = Judgement()
            solver_cuda.cudnn_plan(case, option, majors, judgement)
            if not judgement.reasons and (option is wish or option not in found):
                found.append(option)
                cost += 0.0 if option is wish else CUDNN_COST
                break
        else:
            cost += 2 * CUDNN_COST
    return found, cost


def _fitting_toolkit(version: str, driver: Mapping[str, Any] | None, offers: Offers) -> tuple[str, float]:
    """Return the wished container toolkit, or the first one that fits of the default and those that apt has."""
    offered = [str(offer["version"]) for offer in offers.of(catalog.CONTAINER_TOOLKIT_PACKAGES[0]) or ()] if version else []
    options = [version, catalog.CONTAINER_TOOLKIT_DEFAULT, *map(versions.upstream, offered)]
    for option in options if version else ():
        judgement = Judgement()
        solver_cuda.container_toolkit_plan(option, driver, offers, judgement)
        if not judgement.reasons:
            return option, 0.0 if option == version else TOOLKIT_COST
    return "", 2 * TOOLKIT_COST if version else 0.0
