#!/usr/bin/python3
"""Ask and steer the inference engine of this host: the host side of docs/serving-contract.md.

Every engine role installs a program of this name with these commands, so that playbooks, gateways and people at three in
the morning need not know which engine runs. This one speaks to TorchServe. Results are JSON on standard output; problems
are told in a sentence each; the exit code is 0 when all is well and 1 when not.
"""

from __future__ import annotations

import argparse
import functools
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

SETTINGS = Path("/etc/groundwork/serving.json")
ESTABLISHED = "01"  # TCP_ESTABLISHED in /proc/net/tcp
# Settings of a model that can't be changed while it is loaded. The timeouts can't even by loading it again: those that the
# service read at its start win over a registration.
LOAD_ANEW = "serving-ctl sync loads the model anew"
RESTART = "TorchServe reads it at its start only: serving-ctl sync restarts the service"
MODEL_SETTINGS = {"batchSize": LOAD_ANEW, "maxBatchDelay": LOAD_ANEW, "responseTimeout": RESTART, "startupTimeout": RESTART}
# TorchServe grants a worker two minutes to start before it counts the startup timeout, and as long to end.
GRACE_SECONDS = 150
IDLE_LOOKS = 3  # in a row, 0.2 s apart, that find an empty queue
KEY_FILE_SECONDS = 20  # within which a service that starts has written its key file
EXPIRY_SECONDS = 30  # a token that is valid for less time than this is renewed before it is used
Request = tuple[str, str, dict[str, Any]]  # to the management interface: method, path, query


class EngineError(Exception):
    """The engine did not do what was asked; the text says what it answered."""


@dataclass
class Engine:
    """TorchServe's HTTP interfaces on this host, as the role wrote them to /etc/groundwork/serving.json."""

    inference: str
    grpc_inference: str
    management: str
    metrics: str
    unit: str
    models_file: str
    token_file: str | None
    probes: dict[str, Any]

    def token(self, kind: str) -> str | None:
        """Return the current key (inference, management or API); read anew each time, since it is renewed.

        One that has expired, or is about to, is renewed: the timer may have been off.
        """
        if not self.token_file:
            return None
        key, expires = self._read_token(self.token_file, kind)
        if expires < time.time() + EXPIRY_SECONDS:
            self.renew(kind)
            key, _ = self._read_token(self.token_file, kind)
        return key

    def _read_token(self, token_file: str, kind: str) -> tuple[str, float]:
        """Return a key and when it expires, in seconds since the epoch; the API's never does."""
        try:
            entry = json.loads(Path(token_file).read_text())[kind]
            # Java writes as many digits of the second as it has; Python 3.10 reads three or six.
            expires = f"{entry['expiration time'][:19]}+00:00" if "expiration time" in entry else None
            return str(entry["key"]), datetime.fromisoformat(expires).timestamp() if expires else float("inf")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineError(f"no {kind} token in {token_file}: {error} (is {self.unit} running? are you root?)") from error

    def renew(self, kind: str) -> None:
        """Renew the inference or management token; TorchServe writes it to its key file."""
        self.call("GET", f"{self.management}/token?type={kind}", token=self.token("API"))

    def call(self, method: str, url: str, *, token: str | None = None, body: Any = None, timeout: float = 30) -> Any:  # noqa: ANN401
        """Send one request and return the JSON answer, or its text where it is none."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        request = urllib.request.Request(url, data=data, headers=headers, method=method)  # noqa: S310 -- address from root's own file
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:  # noqa: S310
                text = response.read().decode()
        except urllib.error.HTTPError as error:
            answer = " ".join(error.read().decode(errors="replace").split())
            raise EngineError(f"{method} {urllib.parse.urlsplit(url).path} answered {error.code}: {answer}") from error
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"{method} {url}: {error}") from error
        try:
            return json.loads(text)
        except ValueError:
            return text

    def manage(self, method: str, path: str, *, timeout: float = 30, **query: Any) -> Any:  # noqa: ANN401
        """Call the management interface."""
        suffix = f"?{urllib.parse.urlencode(query)}" if query else ""
        return self.call(method, f"{self.management}{path}{suffix}", token=self.token("management"), timeout=timeout)

    @functools.cached_property
    def declared(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Model name -> version -> TorchServe's settings, as the service reads them at start; read once, it may be a pipe."""
        match = re.search(r"^GROUNDWORK_MODELS='(.*)'$", Path(self.models_file).read_text(), re.MULTILINE)
        models = json.loads(match[1]) if match else {}
        return {
            name: {version: {**settings, "name": name, "version": version} for version, settings in versions.items()}
            for name, versions in models.items()
        }

    def loaded(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return model name -> version -> description."""
        names: list[str] = []
        page: str | None = "0"
        while page:
            answer = self.manage("GET", "/models", next_page_token=page)
            names += [model["modelName"] for model in answer["models"]]
            page = answer.get("nextPageToken")
        return {name: {item["modelVersion"]: item for item in self.manage("GET", f"/models/{name}/all")} for name in names}

    def default_version(self, name: str) -> str:
        """Return the version that answers /predictions/<name>."""
        return str(self.manage("GET", f"/models/{name}")[0]["modelVersion"])

    def ready_seconds(self) -> dict[str, float]:
        """Return worker id -> seconds from the start of its Java thread until its model was last loaded."""
        text = str(self.call("GET", f"{self.metrics}?name[]=WorkerLoadTime"))
        samples = re.findall(r'^WorkerLoadTime\{.*?WorkerName="(?:W-)?(\d+)[^"]*".*?\}\s+([\d.eE+]+)', text, re.MULTILINE)
        return {worker: float(milliseconds) / 1000 for worker, milliseconds in samples}


def process_started(pid: int) -> float | None:
    """Return when a process started, in seconds since the epoch; None if it is gone or not ours to see."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return None
    return time.time() - (uptime - ticks / os.sysconf("SC_CLK_TCK"))


def load_seconds(worker: dict[str, Any], ready: dict[str, float]) -> float | None:
    """Return the seconds from the start of a worker's process until its model was loaded.

    TorchServe counts from the start of the worker's Java thread, which outlives the process: of a worker that was lost and
    replaced it would tell the time since the first start.
    """
    process = process_started(worker["pid"])
    if worker["id"] not in ready or process is None:
        return None
    thread = datetime.fromisoformat(worker["startTime"].replace("Z", "+00:00")).timestamp()
    return round(min(thread + ready[worker["id"]] - process, ready[worker["id"]]), 2)


def model_state(engine: Engine, wanted: dict[str, Any], loaded: dict[str, Any], ready: dict[str, float]) -> dict[str, Any]:
    """Describe one declared model: what is loaded, whether it answers, and what is wrong.

    Args:
        engine: the engine.
        wanted: the declared version of the model.
        loaded: version -> description, of all loaded versions of this model.
        ready: worker id -> seconds, see Engine.ready_seconds.
    """
    name, version = wanted["name"], wanted["version"]
    state: dict[str, Any] = {"name": name, "version": version, "archive": wanted["marName"], "problems": []}
    current = loaded.get(version)
    if current is None:
        state["problems"].append(f"not loaded (loaded versions: {', '.join(loaded) or 'none'})")
        return state
    workers = [worker for worker in current["workers"] if worker["status"] == "READY"]
    state["workers_ready"], state["workers_wanted"] = len(workers), wanted["minWorkers"]
    state["queued"] = current.get("jobQueueStatus", {}).get("pendingRequests", 0)
    known = [seconds for worker in workers if (seconds := load_seconds(worker, ready)) is not None]
    state["load_seconds"] = max(known, default=None)
    if len(workers) < wanted["minWorkers"]:
        state["problems"].append(f"{len(workers)} of {wanted['minWorkers']} workers are ready")
    if not same_archive(current, wanted):
        state["problems"].append(f"another archive is loaded: {current['modelUrl']} (serving-ctl sync replaces it)")
    for setting, remedy in other_settings(current, wanted).items():
        state["problems"].append(f"{setting} is {current[setting]}, declared is {wanted[setting]} ({remedy})")
    if not state["problems"] and name in engine.probes:
        started = time.monotonic()
        try:
            url = f"{engine.inference}/predictions/{name}/{version}"
            state["answer"] = engine.call("POST", url, token=engine.token("inference"), body=engine.probes[name])
            state["answer_ms"] = round((time.monotonic() - started) * 1000, 1)
        except EngineError as error:
            state["problems"].append(f"a real request failed: {error}")
    return state


def same_archive(current: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Tell whether the loaded model came from the declared archive: its name holds a hash of its content."""
    return str(current["modelUrl"]).rpartition("/")[2] == str(wanted["marName"])


def other_settings(current: dict[str, Any], wanted: dict[str, Any]) -> dict[str, str]:
    """Return the settings in which a loaded model differs from its declaration, each with its remedy."""
    if "configFile" in wanted:  # a configuration file inside the archive wins over what is declared
        return {}
    return {setting: remedy for setting, remedy in MODEL_SETTINGS.items() if current[setting] != wanted[setting]}


def status(engine: Engine) -> dict[str, Any]:
    """Compare what is declared with what is loaded, and send each model that has a probe a real request."""
    declared, loaded, ready = engine.declared, engine.loaded(), engine.ready_seconds()
    models = [
        model_state(engine, wanted, loaded.get(name, {}), ready)
        for name, versions in declared.items()
        for wanted in versions.values()
    ]
    problems = [f"model {model['name']} {model['version']}: {problem}" for model in models for problem in model["problems"]]
    extra = [(name, version) for name in loaded for version in loaded[name] if version not in declared.get(name, {})]
    problems += [f"model {name} {version}: loaded but not declared (serving-ctl sync unloads it)" for name, version in extra]
    for name, versions in declared.items():
        wanted = declared_default(versions)
        if wanted in loaded.get(name, {}) and (current := engine.default_version(name)) != wanted:
            remedy = "serving-ctl sync makes it the default"
            problems.append(f"model {name}: {current} answers requests that name no version, declared is {wanted} ({remedy})")
    return {"engine": "torchserve", "ready": not problems, "models": models, "problems": problems}


def recent_errors(engine: Engine, since: float) -> list[str]:
    """Return the errors of the service's log since a moment, or else its last ones, each once.

    TorchServe's answers never hold the reason of a failed load, which is the last line of a Python traceback. Those come first,
    however much Java said after them.
    """
    command = ["journalctl", "--unit", engine.unit, "--output", "cat", "--lines", "2000", "--no-pager"]
    recent = subprocess.run([*command, f"--since=@{since:.0f}"], capture_output=True, text=True, check=False).stdout
    errors = errors_of(recent)
    return errors or errors_of(subprocess.run(command, capture_output=True, text=True, check=False).stdout)


def errors_of(log: str) -> list[str]:
    """Return the last reasons of Python tracebacks in a log, then the last other errors; five of each."""
    reasons: dict[str, str] = {}
    others: dict[str, str] = {}
    tracing: set[str] = set()  # threads that are in the middle of a traceback, a line of the log for each of its lines
    for line in log.splitlines():
        try:
            entry = json.loads(line)
            thread, message = entry["thread"], entry["message"]
        except (ValueError, TypeError, KeyError):
            thread, message = "", line
        found = None
        if message.startswith("Traceback (most recent call last)"):
            tracing.add(thread)
        elif thread in tracing:
            if message and not message[0].isspace():
                tracing.remove(thread)
                found = reasons
        elif re.search(r'"level":"ERROR"|\b\w*(Error|Exception):', line):
            found = others
        if found is not None:
            found.pop(message, None)  # the latest of those that say the same
            found[message] = line
    return [*reasons.values()][-5:] + [*others.values()][-5:]


def health(engine: Engine, wait: float) -> dict[str, Any]:
    """Wait until every declared model answers; after `wait` seconds say what does not, and the service's last errors."""
    deadline, since = time.monotonic() + wait, time.time()
    while True:
        try:
            result = status(engine)
        except EngineError as error:
            result = {"engine": "torchserve", "ready": False, "models": [], "problems": [str(error)]}
        if result["ready"] or time.monotonic() >= deadline:
            return result if result["ready"] else {**result, "log": recent_errors(engine, since)}
        time.sleep(0.5)


def wait_for_management(engine: Engine, wait: float) -> None:
    """Return as soon as the management interface answers."""
    started = time.monotonic()
    while True:
        try:
            engine.manage("GET", "/models")
        except EngineError as error:
            waited = time.monotonic() - started
            if engine.token_file and waited >= KEY_FILE_SECONDS and not Path(engine.token_file).exists():
                remedy = f"`systemctl restart {engine.unit}` writes a new one"
                raise EngineError(f"{engine.token_file} is missing, so nobody can use the service: {remedy}") from error
            if waited >= wait:
                raise
            time.sleep(0.5)
        else:
            return


def wait_until_idle(engine: Engine, path: str, wait: float) -> None:
    """Return when nothing waits for a version, or after `wait` seconds.

    TorchServe never answers what is in the queue of a version that it unloads. The request that a worker is at is not in the
    queue, so it must stay empty for a moment.
    """
    deadline, idle = time.monotonic() + wait, 0
    while idle < IDLE_LOOKS and time.monotonic() < deadline:
        descriptions = engine.manage("GET", path)
        waiting = any(item.get("jobQueueStatus", {}).get("pendingRequests") for item in descriptions)
        idle = 0 if waiting else idle + 1
        time.sleep(0.2)


@dataclass(frozen=True)
class Step:
    """One change of the loaded models: in words, and as requests."""

    action: str
    requests: list[Request]
    seconds: int = GRACE_SECONDS  # that TorchServe may take for each


@dataclass
class ModelPlan:
    """The steps that bring one model to its declared state; planning sends no request.

    Attributes:
        name: the model.
        workers: version -> number of workers, as they will be after the steps so far.
        default: the default version after the steps so far.
        steps: the steps so far.
    """

    name: str
    workers: dict[str, int]
    default: str | None
    steps: list[Step] = field(default_factory=list)

    def unload(self, version: str) -> None:
        """Plan to unload a version. TorchServe removes a default version only when it is the last one."""
        del self.workers[version]
        requests: list[Request] = [("DELETE", f"/models/{self.name}/{version}", {})]
        if self.default == version:
            self.default = max(self.workers, key=lambda other: self.workers[other], default=None)
            if self.default:
                requests.insert(0, ("PUT", f"/models/{self.name}/{self.default}/set-default", {}))
        self.steps.append(Step(f"unloaded {self.name} {version}", requests))

    def load(self, wanted: dict[str, Any]) -> None:
        """Plan to load a version."""
        version, workers = wanted["version"], wanted["minWorkers"]
        query = {
            "url": wanted["marName"],
            "model_name": self.name,
            "initial_workers": workers,
            "synchronous": "true",
            "batch_size": wanted["batchSize"],
            "max_batch_delay": wanted["maxBatchDelay"],
            "response_timeout": wanted["responseTimeout"],
            "startup_timeout": wanted["startupTimeout"],
        }
        requests: list[Request] = [("POST", "/models", query)]
        if "configFile" in wanted:  # it may start another number of workers
            requests.append(scaling(wanted))
        self.steps.append(Step(f"loaded {self.name} {version}", requests, wanted["startupTimeout"] + GRACE_SECONDS))
        self.workers[version] = workers
        self.default = self.default or version

    def scale(self, wanted: dict[str, Any]) -> None:
        """Plan to give a version its number of workers."""
        action = f"scaled {self.name} {wanted['version']} to {wanted['minWorkers']} workers"
        self.steps.append(Step(action, [scaling(wanted)], wanted["startupTimeout"] + GRACE_SECONDS))

    def make_default(self, version: str) -> None:
        """Plan to let a version answer the requests that name none."""
        request: Request = ("PUT", f"/models/{self.name}/{version}/set-default", {})
        self.steps.append(Step(f"made {version} the default version of {self.name}", [request]))
        self.default = version


def scaling(wanted: dict[str, Any]) -> Request:
    """Return the request that gives a version its number of workers, and waits for them."""
    limits = {"min_worker": wanted["minWorkers"], "max_worker": wanted["maxWorkers"], "synchronous": "true"}
    return "PUT", f"/models/{wanted['name']}/{wanted['version']}", limits


def declared_default(versions: dict[str, dict[str, Any]]) -> str | None:
    """Return the declared version that shall answer requests that name none."""
    return next((version for version, wanted in versions.items() if wanted.get("defaultVersion")), None)


def must_load_anew(current: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Tell whether a loaded version can't become the declared one while it is loaded."""
    # A failed load leaves the model registered with no worker, and a second registration would answer 409.
    return not same_archive(current, wanted) or not current["workers"] or LOAD_ANEW in other_settings(current, wanted).values()


def plan_model(
    name: str, declared: dict[str, dict[str, Any]], loaded: dict[str, dict[str, Any]], default: str | None
) -> list[Step]:
    """Return the steps that bring one model to its declared state.

    Args:
        name: the model.
        declared: version -> TorchServe's settings.
        loaded: version -> description.
        default: the present default version.
    """
    plan = ModelPlan(name, {version: len(description["workers"]) for version, description in loaded.items()}, default)
    for version, wanted in declared.items():
        current = loaded.get(version)
        if current and must_load_anew(current, wanted):
            plan.unload(version)
            current = None
        if current is None:
            plan.load(wanted)
        elif (current["minWorkers"], current["maxWorkers"]) != (wanted["minWorkers"], wanted["maxWorkers"]):
            plan.scale(wanted)
    wanted_default = declared_default(declared)
    if wanted_default and plan.default != wanted_default:
        plan.make_default(wanted_default)
    for version in loaded:
        if version not in declared:
            plan.unload(version)
    return plan.steps


def plan_sync(engine: Engine) -> list[Step]:
    """Return the steps that make the loaded models the declared ones."""
    declared, loaded = engine.declared, engine.loaded()
    return [
        step
        for name in {**declared, **loaded}
        for step in plan_model(
            name, declared.get(name, {}), loaded.get(name, {}), engine.default_version(name) if name in loaded else None
        )
    ]


def changed_at_start_only(engine: Engine) -> list[str]:
    """Return the settings that differ from what is declared and that TorchServe reads at its start only."""
    declared, loaded = engine.declared, engine.loaded()
    return sorted(
        {
            setting
            for name in declared
            for version in declared[name].keys() & loaded.get(name, {}).keys()
            for setting, remedy in other_settings(loaded[name][version], declared[name][version]).items()
            if remedy == RESTART
        }
    )


def sync(engine: Engine, wait: float, *, dry_run: bool = False) -> dict[str, Any]:
    """Load, replace and unload models in the running service, so that a change of one does not touch the others.

    A new version is loaded and made the default before the old one goes, and that one first answers what waits for it: callers
    see no gap. A changed archive or batch setting under an unchanged version is noticed too; that one version is then unloaded
    and loaded again. Only a changed response or startup timeout restarts the service, and with it all models.

    A dry run tells the same and only asks. There, a service that does not answer is no failure: one that starts loads what is
    declared by itself.
    """
    wait_for_management(engine, 0 if dry_run else wait)
    actions = []
    settings = changed_at_start_only(engine)
    if settings:
        actions.append(f"restarted {engine.unit}: {', '.join(settings)} changed, which TorchServe reads at its start only")
    if settings and not dry_run:
        subprocess.run(["systemctl", "restart", engine.unit], check=True)
        wait_for_management(engine, wait)
    # The restart that a dry run tells of would load all that is declared.
    for step in [] if settings and dry_run else plan_sync(engine):
        actions.append(step.action)
        for method, path, query in [] if dry_run else step.requests:
            if method == "DELETE":
                wait_until_idle(engine, path, wait)
            engine.manage(method, path, timeout=max(wait, step.seconds), **query)
    return {"changed": bool(actions), "actions": actions}


def clients(port: int) -> list[str]:
    """Return the addresses of those who hold a connection to a local port, from /proc/net/tcp and tcp6."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            local, remote, state = line.split()[1:4]
            if state == ESTABLISHED and int(local.rpartition(":")[2], 16) == port:
                raw = bytes.fromhex(remote.partition(":")[0])[-4:]  # IPv4 addresses end a mapped IPv6 one
                found.add(socket.inet_ntoa(raw[::-1]))
    return sorted(found)


def drain(engine: Engine, wait: float) -> dict[str, Any]:
    """Wait until nobody is connected and nothing waits, so that a stop loses no request.

    TorchServe resets the requests in flight when it stops, so whoever sends them must stop first (the gateway's drain).
    """
    ports = [urllib.parse.urlsplit(engine.inference).port or 80, int(engine.grpc_inference.rpartition(":")[2])]
    deadline = time.monotonic() + wait
    while True:
        loaded = engine.loaded()
        queued = {name: sum(item["jobQueueStatus"]["pendingRequests"] for item in loaded[name].values()) for name in loaded}
        waiting = {name: count for name, count in queued.items() if count}
        connected = [(address, port) for port in ports for address in clients(port)]
        if not waiting and not connected:
            return {"drained": True, "problems": []}
        if time.monotonic() >= deadline:
            problems = [f"{count} requests wait for model {name}" for name, count in waiting.items()]
            problems += [f"{who} is still connected to port {port}: drain it at the gateway first" for who, port in connected]
            return {"drained": False, "problems": problems}
        time.sleep(0.5)


def renew_tokens(engine: Engine) -> dict[str, Any]:
    """Renew the inference and management tokens."""
    if not engine.token_file:
        return {"renewed": []}
    kinds = ["inference", "management"]
    for kind in kinds:
        engine.renew(kind)
    return {"renewed": kinds}


def load_settings(path: Path) -> Engine:
    """Read the settings that the role wrote."""
    settings = json.loads(path.read_text())
    return Engine(**{field: settings[field] for field in Engine.__dataclass_fields__})


def main(argv: list[str] | None = None) -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=Path, default=SETTINGS, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, help_text, wait in (
        ("status", "what is declared, loaded and answering now", None),
        ("health", "wait until every declared model answers a real request", 0),
        ("sync", "load and unload models until they are as declared; a changed timeout restarts the service", 300),
        ("drain", "wait until no client is connected and no request waits", 60),
        ("renew-tokens", "renew the bearer tokens", None),
    ):
        command = commands.add_parser(name, help=help_text, description=help_text)
        if wait is not None:
            command.add_argument(
                "--wait", type=float, default=wait, metavar="SECONDS", help=f"at most this long (default {wait})"
            )
        if name == "sync":
            command.add_argument("--dry-run", action="store_true", help="tell what would be done, and only ask")
            command.add_argument("--models-file", help="environment file that declares the models (default: the service's own)")
    arguments = parser.parse_args(argv)
    since = time.time()
    try:
        engine = load_settings(arguments.settings)
        if arguments.command == "status":
            result = status(engine)
        elif arguments.command == "health":
            result = health(engine, arguments.wait)
        elif arguments.command == "sync":
            engine.models_file = arguments.models_file or engine.models_file
            result = sync(engine, arguments.wait, dry_run=arguments.dry_run)
        elif arguments.command == "drain":
            result = drain(engine, arguments.wait)
        else:
            result = renew_tokens(engine)
    except EngineError as error:
        result = {"problems": [str(error)], "log": recent_errors(engine, since)}
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        result = {"problems": [str(error)]}
    if getattr(arguments, "dry_run", False) and result.get("problems"):
        # What is broken now may be what the run will mend.
        result = {"changed": False, "actions": [], "unknown": result["problems"][0]}
    print(json.dumps(result, indent=2))
    for problem in result.get("problems", []):
        print(f"serving-ctl: {problem}", file=sys.stderr)
    return 1 if result.get("problems") else 0


if __name__ == "__main__":
    sys.exit(main())
