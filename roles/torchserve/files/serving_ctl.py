#!/usr/bin/env python3
"""Ask and steer the inference engine of this host: the host side of docs/serving-contract.md.

Every engine role installs a program of this name with these commands, so that playbooks, gateways and people at three in
the morning need not know which engine runs. This one speaks to TorchServe. Results are JSON on standard output; problems
are told in a sentence each; the exit code is 0 when all is well and 1 when not.
"""

from __future__ import annotations

import argparse
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
from dataclasses import dataclass
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


class EngineError(Exception):
    """The engine did not do what was asked; the text says what it answered."""


@dataclass
class Engine:
    """TorchServe's HTTP interfaces on this host, as the role wrote them to /etc/groundwork/serving.json."""

    inference: str
    management: str
    metrics: str
    unit: str
    models_file: str
    token_file: str | None
    probes: dict[str, Any]

    def token(self, kind: str) -> str | None:
        """Return the current key (inference, management or API); read anew each time, since it is renewed."""
        if not self.token_file:
            return None
        try:
            return str(json.loads(Path(self.token_file).read_text())[kind]["key"])
        except (OSError, ValueError, KeyError) as error:
            raise EngineError(f"no {kind} token in {self.token_file}: {error} (is {self.unit} running? are you root?)") from error

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

    def declared(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return model name -> version -> TorchServe's settings, as the service reads them at start."""
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
    declared, loaded, ready = engine.declared(), engine.loaded(), engine.ready_seconds()
    models = [
        model_state(engine, wanted, loaded.get(name, {}), ready)
        for name, versions in declared.items()
        for wanted in versions.values()
    ]
    problems = [f"model {model['name']} {model['version']}: {problem}" for model in models for problem in model["problems"]]
    extra = [(name, version) for name in loaded for version in loaded[name] if version not in declared.get(name, {})]
    problems += [f"model {name} {version}: loaded but not declared (serving-ctl sync unloads it)" for name, version in extra]
    return {"engine": "torchserve", "ready": not problems, "models": models, "problems": problems}


def recent_errors(engine: Engine) -> list[str]:
    """Return the last errors of the service's log: TorchServe's answers never hold the reason of a failed load."""
    command = ["journalctl", "--unit", engine.unit, "--output", "cat", "--lines", "400", "--no-pager"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return [line for line in lines if re.search(r'"level":"ERROR"|\b\w+(Error|Exception):', line)][-5:]


def health(engine: Engine, wait: float) -> dict[str, Any]:
    """Wait until every declared model answers; after `wait` seconds say what does not, and the service's last errors."""
    deadline = time.monotonic() + wait
    while True:
        try:
            result = status(engine)
        except EngineError as error:
            result = {"engine": "torchserve", "ready": False, "models": [], "problems": [str(error)]}
        if result["ready"] or time.monotonic() >= deadline:
            return result if result["ready"] else {**result, "log": recent_errors(engine)}
        time.sleep(0.5)


def wait_for_management(engine: Engine, wait: float) -> None:
    """Return as soon as the management interface answers."""
    deadline = time.monotonic() + wait
    while True:
        try:
            engine.manage("GET", "/models")
        except EngineError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.5)
        else:
            return


def sync(engine: Engine, wait: float) -> dict[str, Any]:
    """Load, replace and unload models in the running service, so that a change of one never touches the others.

    A new version is loaded and made the default before the old one goes: callers see no gap. A changed archive or batch
    setting under an unchanged version is noticed too; that one version is then unloaded and loaded again.
    """
    wait_for_management(engine, wait)
    declared, loaded = engine.declared(), engine.loaded()
    actions: list[str] = []
    pairs = [
        (loaded[name][version], declared[name][version])
        for name in declared
        for version in declared[name].keys() & loaded.get(name, {}).keys()
    ]
    at_start = {
        setting for current, wanted in pairs for setting, remedy in other_settings(current, wanted).items() if remedy == RESTART
    }
    if at_start:
        subprocess.run(["systemctl", "restart", engine.unit], check=True)
        wait_for_management(engine, wait)
        loaded = engine.loaded()
        actions.append(
            f"restarted {engine.unit}: {', '.join(sorted(at_start))} changed, which TorchServe reads at its start only"
        )
    for name, versions in declared.items():
        present = loaded.get(name, {})
        for version, wanted in versions.items():
            actions += load(engine, wanted, present.get(version), wait)
        default = next((version for version, wanted in versions.items() if wanted.get("defaultVersion")), None)
        if default and engine.default_version(name) != default:
            engine.manage("PUT", f"/models/{name}/{default}/set-default")
            actions.append(f"made {default} the default version of {name}")
        actions += unload(engine, name, [version for version in present if version not in versions])
    for name in loaded.keys() - declared.keys():
        actions += unload(engine, name, list(loaded[name]))
    return {"changed": bool(actions), "actions": actions}


def load(engine: Engine, wanted: dict[str, Any], current: dict[str, Any] | None, wait: float) -> list[str]:
    """Bring one version of a model to its declared state and say what was done."""
    name, version = wanted["name"], wanted["version"]
    actions = []
    # A failed load leaves the model registered with no worker, and a second registration would answer 409.
    if current and not (
        same_archive(current, wanted) and current["workers"] and LOAD_ANEW not in other_settings(current, wanted).values()
    ):
        actions += unload(engine, name, [version])
        current = None
    if current is None:
        engine.manage(
            "POST", "/models", timeout=wait, url=wanted["marName"], model_name=name, initial_workers=wanted["minWorkers"],
            synchronous="true", batch_size=wanted["batchSize"], max_batch_delay=wanted["maxBatchDelay"],
            response_timeout=wanted["responseTimeout"], startup_timeout=wanted["startupTimeout"],
        )  # fmt: skip
        actions.append(f"loaded {name} {version}")
        current = engine.manage("GET", f"/models/{name}/{version}")[0]
    if (current["minWorkers"], current["maxWorkers"]) != (wanted["minWorkers"], wanted["maxWorkers"]):
        limits = {"min_worker": wanted["minWorkers"], "max_worker": wanted["maxWorkers"]}
        engine.manage("PUT", f"/models/{name}/{version}", timeout=wait, synchronous="true", **limits)
        actions.append(f"scaled {name} {version} to {wanted['minWorkers']} workers")
    return actions


def unload(engine: Engine, name: str, versions: list[str]) -> list[str]:
    """Unload versions of a model and say so."""
    for version in versions:
        others = [item for item in engine.manage("GET", f"/models/{name}/all") if item["modelVersion"] != version]
        # TorchServe removes a default version only when it is the last one.
        if others and engine.default_version(name) == version:
            heir = max(others, key=lambda item: len(item["workers"]))["modelVersion"]
            engine.manage("PUT", f"/models/{name}/{heir}/set-default")
        engine.manage("DELETE", f"/models/{name}/{version}")
    return [f"unloaded {name} {version}" for version in versions]


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
    port = urllib.parse.urlsplit(engine.inference).port or 80
    deadline = time.monotonic() + wait
    while True:
        loaded = engine.loaded()
        queued = {name: sum(item["jobQueueStatus"]["pendingRequests"] for item in loaded[name].values()) for name in loaded}
        waiting = {name: count for name, count in queued.items() if count}
        connected = clients(port)
        if not waiting and not connected:
            return {"drained": True, "problems": []}
        if time.monotonic() >= deadline:
            problems = [f"{count} requests wait for model {name}" for name, count in waiting.items()]
            problems += [f"{address} is still connected to port {port}: drain it at the gateway first" for address in connected]
            return {"drained": False, "problems": problems}
        time.sleep(0.5)


def renew_tokens(engine: Engine) -> dict[str, Any]:
    """Renew the inference and management tokens; TorchServe writes them to its key file."""
    if not engine.token_file:
        return {"renewed": []}
    kinds = ["inference", "management"]
    for kind in kinds:
        engine.call("GET", f"{engine.management}/token?type={kind}", token=engine.token("API"))
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
        ("sync", "load and unload models until they are as declared, without a restart", 300),
        ("drain", "wait until no client is connected and no request waits", 60),
        ("renew-tokens", "renew the bearer tokens", None),
    ):
        command = commands.add_parser(name, help=help_text, description=help_text)
        if wait is not None:
            command.add_argument(
                "--wait", type=float, default=wait, metavar="SECONDS", help=f"at most this long (default {wait})"
            )
    arguments = parser.parse_args(argv)
    try:
        engine = load_settings(arguments.settings)
        if arguments.command == "status":
            result = status(engine)
        elif arguments.command == "health":
            result = health(engine, arguments.wait)
        elif arguments.command == "sync":
            result = sync(engine, arguments.wait)
        elif arguments.command == "drain":
            result = drain(engine, arguments.wait)
        else:
            result = renew_tokens(engine)
    except EngineError as error:
        result = {"problems": [str(error)], "log": recent_errors(engine)}
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        result = {"problems": [str(error)]}
    print(json.dumps(result, indent=2))
    for problem in result.get("problems", []):
        print(f"serving-ctl: {problem}", file=sys.stderr)
    return 1 if result.get("problems") else 0


if __name__ == "__main__":
    sys.exit(main())
