"""serving-ctl against a stand-in for TorchServe 0.12.0, whose answers are those of its source and of real runs."""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "roles/torchserve/files"))
serving_ctl = importlib.import_module("serving_ctl")

SETTINGS = {"batchSize": 1, "maxBatchDelay": 100, "responseTimeout": 120, "startupTimeout": 120}
STARTED = datetime(2026, 11, 30, 10, tzinfo=UTC).timestamp()
PROBE = {"text": "hello"}
ECHO = "echo-1.0-aaaaaaaaaaaa.mar"
ECHO_REBUILT = "echo-1.0-bbbbbbbbbbbb.mar"
ECHO_2 = "echo-2.0-cccccccccccc.mar"
OTHER = "other-1.0-dddddddddddd.mar"


class _RefusalError(Exception):
    """An answer with a status of 400 or more, as TorchServe words it."""

    def __init__(self, code, kind, message):
        self.code = code
        self.body = {"code": code, "type": kind, "message": message}


@dataclass
class _StandIn:
    """The stand-in for TorchServe: its models and how it treats requests; `requests` records them as "METHOD path"."""

    folder: Path
    models: dict = field(default_factory=dict)
    defaults: dict = field(default_factory=dict)
    read_at_start: dict = field(default_factory=dict)
    broken: set = field(default_factory=set)
    config_workers: dict = field(default_factory=dict)
    requests: list = field(default_factory=list)
    keys: dict = field(default_factory=dict)
    expires: dict = field(default_factory=dict)
    prediction: object = None
    renew_after_each_call: bool = False
    cut_answers: bool = False
    next_worker: int = 9000

    def write_keys(self, *kinds, expires="2026-11-30T12:00:00Z"):
        """Make new tokens; those before are no longer accepted. That of the API never expires."""
        self.keys |= {kind: f"{kind}-{len(self.requests)}-{os.urandom(3).hex()}" for kind in kinds}
        self.expires |= dict.fromkeys(kinds, expires)
        content = {kind: {"key": key, "expiration time": self.expires.get(kind)} for kind, key in self.keys.items()}
        del content["API"]["expiration time"]
        (self.folder / "key_file.json").write_text(json.dumps(content))

    def check(self, kind, headers):
        if headers["Authorization"] != f"Bearer {self.keys[kind]}" or self.expires.get(kind, "never") < "2026-11-30T10:00:00Z":
            reason = "Token either incorrect, expired, or not provided correctly"
            raise _RefusalError(400, "InvalidKeyException", f"Token Authorization failed. {reason}")

    def add(self, mar, workers=2, **settings):
        """Register an archive as if it had loaded well, or with no worker if it is a broken one."""
        name, version, _ = mar.split("-")
        found = self.models.setdefault(name, {})
        if version in found:
            message = f"Model version {version} is already registered for model {name}"
            raise _RefusalError(409, "ConflictStatusException", message)
        model = {"modelName": name, "modelVersion": version, "modelUrl": mar, "workers": [], "runtime": "python"} | SETTINGS
        model |= {"loadedAtStartup": False, "jobQueueStatus": {"remainingCapacity": 1000, "pendingRequests": 0}}
        found[version] = model | settings | self.read_at_start.get((name, version), {})
        self.defaults.setdefault(name, version)
        self.scale(found[version], 0 if mar in self.broken else workers)
        return found[version]

    def scale(self, model, workers):
        model["minWorkers"] = model["maxWorkers"] = workers
        while len(model["workers"]) > workers:
            model["workers"].pop()
        while len(model["workers"]) < workers:
            worker = {"id": str(self.next_worker), "status": "READY", "gpu": False, "gpuUsage": "N/A", "pid": 4711}
            model["workers"].append(worker | {"startTime": "2026-11-30T10:00:00.000Z", "memoryUsage": 0})
            self.next_worker += 1

    def model(self, name, version=None):
        try:
            return self.models[name][version or self.defaults[name]]
        except KeyError:
            raise _RefusalError(404, "ModelNotFoundException", f"Model not found: {name}") from None

    def answer(self, method, path, query, headers, body):
        parts = path.strip("/").split("/")
        if parts == ["metrics"]:
            return self.metrics(query["name[]"][0])
        if parts[0] == "predictions":
            self.check("inference", headers)
            self.model(*parts[1:])
            if self.prediction is not None:
                raise self.prediction
            return {"prediction": body["text"].upper()}
        if "/token" in path:  # anywhere in the request, so also in /models/tokenizer
            self.check("API", headers)
            self.write_keys(query["type"][0])
            return ""
        self.check("management", headers)
        return getattr(self, method.lower())(query, *parts[1:])

    def get(self, query, name=None, version=None):
        if name is None:
            first, limit = (int(query.get(key, [0])[0]) for key in ("next_page_token", "limit"))
            names, last = sorted(self.models), first + min(limit or 100, 100)
            more = {"nextPageToken": str(last)} if last <= len(names) else {}
            return more | {"models": [{"modelName": each, "modelUrl": "x.mar"} for each in names[first:last]]}
        self.model(name)
        return list(self.models[name].values()) if version == "all" else [self.model(name, version)]

    def post(self, query):
        mar, workers = query["url"][0], int(query["initial_workers"][0])
        options = {
            "batchSize": "batch_size",
            "maxBatchDelay": "max_batch_delay",
            "responseTimeout": "response_timeout",
            "startupTimeout": "startup_timeout",
        }
        settings = {key: int(query[option][0]) for key, option in options.items()}
        model = self.add(mar, self.config_workers.get(mar, workers), **settings)
        if mar in self.broken:
            message = f"Failed to start workers for model {model['modelName']} version: {model['modelVersion']}"
            raise _RefusalError(500, "InternalServerException", message)
        return {"status": "registered"}

    def put(self, query, name, version, action=None):
        if action == "set-default":
            self.defaults[name] = self.model(name, version)["modelVersion"]
        else:
            self.scale(self.model(name, version), int(query["min_worker"][0]))
        return {"status": "done"}

    def delete(self, _, name, version):
        self.model(name, version)
        if self.defaults[name] == version and len(self.models[name]) > 1:
            message = f"Cannot remove default version for model {name}"
            raise _RefusalError(403, "InvalidModelVersionException", message)
        del self.models[name][version]
        if not self.models[name]:
            del self.models[name], self.defaults[name]
        return {"status": f'Model "{name}" unregistered'}

    def metrics(self, name):
        lines = [f"# HELP {name} Torchserve prometheus gauge metric with unit: Milliseconds", f"# TYPE {name} gauge"]
        for versions in self.models.values():
            for model in versions.values():
                versioned = f"{model['modelName']}_{model['modelVersion']}"
                for number, worker in enumerate(model["workers"]):
                    labels = f'WorkerName="W-{worker["id"]}-{versioned}",Level="Host",Hostname="lab",'
                    lines.append(f"{name}{{{labels}}} {1500.0 + 1000 * number}")
        return "\n".join([*lines, ""])

    def changes(self):
        """Return the requests that were not mere questions, and forget all."""
        recorded, self.requests = self.requests, []
        return [request for request in recorded if not request.startswith("GET ")]


def handler(torchserve):
    class Handler(BaseHTTPRequestHandler):
        def respond(self):
            url, length = urlsplit(self.path), int(self.headers["Content-Length"] or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            torchserve.requests.append(f"{self.command} {url.path}")
            try:
                code = 200
                answer = torchserve.answer(self.command, url.path, parse_qs(url.query), self.headers, body)
            except _RefusalError as refused:
                code, answer = refused.code, refused.body
            text = (answer if isinstance(answer, str) else json.dumps(answer, indent=2)).encode()
            if torchserve.renew_after_each_call:
                torchserve.write_keys("inference", "management")
            self.send_response(code)
            self.send_header("Content-Length", str(len(text) + torchserve.cut_answers))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_DELETE = respond  # noqa: N815 -- the names that http.server looks for

        def log_message(self, *_):
            """Say nothing."""

    return Handler


@contextmanager
def listening(torchserve):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(torchserve))
    thread = threading.Thread(target=server.serve_forever, args=(0.005,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def torchserve(tmp_path):
    """The stand-in, with its tokens and the declared model in service."""
    standing = _StandIn(tmp_path)
    standing.keys["API"] = "api-key"
    standing.write_keys("management", "inference")
    standing.add(ECHO)
    return standing


@pytest.fixture
def clock(monkeypatch):
    """A clock that only sleeping moves; `clock.on_sleep` may change the world meanwhile."""

    class Clock:
        now = 0.0
        on_sleep = staticmethod(lambda: None)

        def sleep(self, seconds):
            self.now += seconds
            self.on_sleep()

    moving = Clock()
    # The workers' processes are as old as TorchServe's threads for them, unless a test says otherwise.
    monkeypatch.setattr(serving_ctl, "process_started", lambda _: STARTED)
    monkeypatch.setattr(
        serving_ctl, "time", SimpleNamespace(monotonic=lambda: moving.now, sleep=moving.sleep, time=lambda: STARTED)
    )
    return moving


@pytest.fixture
def ctl(torchserve, tmp_path, capsys, clock):  # noqa: ARG001 -- no test may really sleep
    """Run a command as on a host; returns its exit code, its answer and its problems."""
    with listening(torchserve) as management, listening(torchserve) as inference, listening(torchserve) as grpc:

        def settings(**changes):
            addresses = {"inference": inference, "management": management, "metrics": f"{management}/metrics"}
            addresses["grpc_inference"] = urlsplit(grpc).netloc
            files = {"models_file": str(tmp_path / "models.env"), "token_file": str(tmp_path / "key_file.json")}
            unit = {"engine": "torchserve", "unit": "torchserve.service", "probes": {"echo": PROBE}}
            (tmp_path / "serving.json").write_text(json.dumps(addresses | files | unit | changes))

        def run(*arguments):
            code = serving_ctl.main(["--settings", str(tmp_path / "serving.json"), *arguments])
            output = capsys.readouterr()
            return SimpleNamespace(code=code, answer=json.loads(output.out), problems=output.err.splitlines())

        settings()
        run.settings, run.inference, run.grpc, run.models_file = settings, inference, grpc, tmp_path / "models.env"
        declare(run, ECHO)
        yield run


def declare(ctl, *mars, workers=2, **settings):
    """Write the environment file as the module model_store does; workers and settings are those of the first archive.

    The first version of a name is the default.
    """
    models = {}
    for mar in mars:
        name, version, _ = mar.split("-")
        versions = models.setdefault(name, {})
        versions[version] = {"defaultVersion": not versions, "marName": mar, "minWorkers": 2, "maxWorkers": 2} | SETTINGS
        if mar == mars[0]:
            versions[version] |= {"minWorkers": workers, "maxWorkers": workers} | settings
    ctl.models_file.write_text(f"# Written by model_store\nTS_LOAD_MODELS=x\nGROUNDWORK_MODELS='{json.dumps(models)}'\n")


def problems(result):
    return [problem.removeprefix("serving-ctl: ") for problem in result.problems]


# --- status


def test_status_of_a_healthy_host_has_the_fields_of_the_contract(ctl):
    result = ctl("status")
    model = {"name": "echo", "version": "1.0", "archive": ECHO, "workers_ready": 2, "workers_wanted": 2, "queued": 0}
    model |= {"load_seconds": 2.5, "answer": {"prediction": "HELLO"}, "answer_ms": 0.0, "problems": []}
    assert result.answer == {"engine": "torchserve", "ready": True, "models": [model], "problems": []}
    assert (result.code, result.problems) == (0, [])


def test_status_asks_the_declared_version_and_changes_nothing(ctl, torchserve):
    ctl("status")
    assert torchserve.changes() == ["POST /predictions/echo/1.0"]


def test_a_model_without_a_probe_is_not_asked(ctl, torchserve):
    ctl.settings(probes={})
    assert ctl("status").code == 0
    assert torchserve.changes() == []


def worker_is_loading(torchserve, _):
    torchserve.models["echo"]["1.0"]["workers"][1]["status"] = "UNLOADING"


def another_archive(_, ctl):
    declare(ctl, ECHO_REBUILT)


def not_loaded(_, ctl):
    declare(ctl, ECHO, OTHER)


def other_version(_, ctl):
    declare(ctl, ECHO_2)


def not_declared(torchserve, _):
    torchserve.add(OTHER)


def prediction_fails(torchserve, _):
    torchserve.prediction = _RefusalError(503, "InternalServerException", "Prediction failed")


def batching_changed(_, ctl):
    declare(ctl, ECHO, batchSize=8)


def timeout_changed(_, ctl):
    declare(ctl, ECHO, responseTimeout=60)


def another_default(torchserve, ctl):
    torchserve.add(ECHO_2)
    declare(ctl, ECHO_2, ECHO)


ENGINE_SAID = '{ "code": 503, "type": "InternalServerException", "message": "Prediction failed" }'


@pytest.mark.parametrize(
    ("arrange", "expected"),
    [
        (worker_is_loading, ["model echo 1.0: 1 of 2 workers are ready"]),
        (another_archive, [f"model echo 1.0: another archive is loaded: {ECHO} (serving-ctl sync replaces it)"]),
        (not_loaded, ["model other 1.0: not loaded (loaded versions: none)"]),
        (
            other_version,
            [
                "model echo 2.0: not loaded (loaded versions: 1.0)",
                "model echo 1.0: loaded but not declared (serving-ctl sync unloads it)",
            ],
        ),
        (not_declared, ["model other 1.0: loaded but not declared (serving-ctl sync unloads it)"]),
        (
            prediction_fails,
            [f"model echo 1.0: a real request failed: POST /predictions/echo/1.0 answered 503: {ENGINE_SAID}"],
        ),
        (batching_changed, ["model echo 1.0: batchSize is 1, declared is 8 (serving-ctl sync loads the model anew)"]),
        (
            timeout_changed,
            [
                "model echo 1.0: responseTimeout is 120, declared is 60 (TorchServe reads it at its start only: "
                "serving-ctl sync restarts the service)"
            ],
        ),
        (
            another_default,
            ["model echo: 1.0 answers requests that name no version, declared is 2.0 (serving-ctl sync makes it the default)"],
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_status_names_what_is_wrong(ctl, torchserve, arrange, expected):
    arrange(torchserve, ctl)
    result = ctl("status")
    assert (result.code, result.answer["ready"]) == (1, False)
    assert problems(result) == result.answer["problems"] == expected


def test_settings_of_an_archive_with_its_own_configuration_are_not_compared(ctl):
    declare(ctl, ECHO, batchSize=8, responseTimeout=60, configFile=True)
    assert ctl("status").code == 0


def test_a_model_beyond_the_first_page_of_the_list_is_seen(ctl, torchserve):
    """TorchServe lists at most a hundred models at a time."""
    names = [f"m{number:03}-1.0-{'0' * 12}.mar" for number in range(150)]
    for name in names:
        torchserve.add(name)
    torchserve.models["m149"]["1.0"]["workers"][0]["status"] = "UNLOADING"
    del torchserve.models["echo"]
    declare(ctl, *names)
    assert problems(ctl("status")) == ["model m149 1.0: 1 of 2 workers are ready"]


# --- tokens


def test_tokens_are_read_for_each_call(ctl, torchserve):
    torchserve.renew_after_each_call = True
    assert ctl("status").code == 0


def test_a_stale_token_is_told_in_the_words_of_the_engine(ctl, torchserve):
    torchserve.keys["management"] = "renewed-meanwhile"
    [problem] = problems(ctl("status"))
    assert "GET /models answered 400" in problem
    assert "Token either incorrect, expired, or not provided correctly" in problem


def test_a_missing_token_file_is_told_in_one_sentence(ctl, tmp_path):
    (tmp_path / "key_file.json").unlink()
    [problem] = problems(ctl("status"))
    assert problem.startswith(f"no management token in {tmp_path}/key_file.json: ")
    assert problem.endswith("(is torchserve.service running? are you root?)")


@pytest.mark.parametrize("content", ["", '{"management": {}}'], ids=["being written", "another shape"])
def test_an_unusable_token_file_is_told_in_one_sentence(ctl, tmp_path, content):
    (tmp_path / "key_file.json").write_text(content)
    [problem] = problems(ctl("status"))
    assert problem.startswith(f"no management token in {tmp_path}/key_file.json: ")


def test_without_token_authorisation_no_file_is_read(ctl, torchserve, monkeypatch):
    monkeypatch.setattr(_StandIn, "check", lambda _, __, headers: headers["Authorization"] is None or pytest.fail("a token"))
    ctl.settings(token_file=None)
    (torchserve.folder / "key_file.json").unlink()
    assert ctl("status").code == 0


@pytest.mark.parametrize(
    "expires",
    ["2026-11-30T09:59:00Z", "2026-11-30T09:59:00.123456789Z", "2026-11-30T10:00:10.5Z"],
    ids=["expired", "with nine digits", "about to expire"],
)
def test_an_expired_token_is_renewed_before_it_is_used(ctl, torchserve, expires):
    """As after a stop of the timer: the service would refuse sync, which could then never come to an end."""
    torchserve.write_keys("management", "inference", expires=expires)
    assert ctl("status").code == 0
    assert [request for request in torchserve.requests if "/token" in request] == ["GET /token"] * 2


def test_a_token_that_cannot_be_renewed_is_told_in_one_sentence(ctl, torchserve):
    torchserve.write_keys("management", "inference", expires="2026-11-30T09:00:00Z")
    torchserve.keys["API"] = "another"
    [problem] = problems(ctl("status"))
    assert "GET /token answered 400" in problem


def test_renew_tokens_renews_both(ctl, torchserve):
    before = dict(torchserve.keys)
    result = ctl("renew-tokens")
    assert (result.code, result.answer) == (0, {"renewed": ["inference", "management"]})
    assert {kind for kind in before if before[kind] != torchserve.keys[kind]} == {"management", "inference"}


def test_renew_tokens_without_tokens_asks_nobody(ctl, torchserve):
    ctl.settings(token_file=None)
    assert ctl("renew-tokens").answer == {"renewed": []}
    assert torchserve.requests == []


# --- sync


def test_sync_of_a_host_as_declared_only_asks(ctl, torchserve):
    result = ctl("sync")
    assert (result.code, result.answer) == (0, {"changed": False, "actions": []})
    assert {request.split()[0] for request in torchserve.requests} == {"GET"}


def test_sync_loads_a_new_model(ctl, torchserve):
    declare(ctl, ECHO, OTHER)
    assert ctl("sync").answer == {"changed": True, "actions": ["loaded other 1.0"]}
    assert torchserve.changes() == ["POST /models"]
    assert len(torchserve.models["other"]["1.0"]["workers"]) == 2


def test_sync_passes_the_declared_settings(ctl, torchserve):
    settings = {"batchSize": 8, "maxBatchDelay": 5, "responseTimeout": 60, "startupTimeout": 30}
    declare(ctl, ECHO_2, **settings)
    ctl("sync")
    loaded = torchserve.models["echo"]["2.0"]
    assert {key: loaded[key] for key in settings} == settings


def test_a_new_version_answers_before_the_old_one_goes(ctl, torchserve):
    declare(ctl, ECHO_2)
    assert ctl("sync").answer["actions"] == ["loaded echo 2.0", "made 2.0 the default version of echo", "unloaded echo 1.0"]
    assert torchserve.changes() == ["POST /models", "PUT /models/echo/2.0/set-default", "DELETE /models/echo/1.0"]


def test_a_declared_version_becomes_the_default_again(ctl, torchserve):
    torchserve.add(ECHO_2)
    declare(ctl, ECHO_2, ECHO)
    assert ctl("sync").answer["actions"] == ["made 2.0 the default version of echo"]


def test_another_archive_of_the_same_version_replaces_the_loaded_one(ctl, torchserve):
    declare(ctl, ECHO_REBUILT)
    assert ctl("sync").answer["actions"] == ["unloaded echo 1.0", "loaded echo 1.0"]
    assert torchserve.changes() == ["DELETE /models/echo/1.0", "POST /models"]
    assert torchserve.models["echo"]["1.0"]["modelUrl"] == ECHO_REBUILT


def test_a_default_version_is_replaced_beside_another_one(ctl, torchserve):
    """TorchServe refuses to remove a default version while there are others: those answer meanwhile."""
    torchserve.add(ECHO_2)
    declare(ctl, ECHO_REBUILT, ECHO_2)
    assert ctl("sync").code == 0
    assert torchserve.changes() == [
        "PUT /models/echo/2.0/set-default",
        "DELETE /models/echo/1.0",
        "POST /models",
        "PUT /models/echo/1.0/set-default",
    ]
    assert torchserve.defaults == {"echo": "1.0"}


def test_a_changed_batch_size_is_brought_into_the_running_service(ctl, torchserve):
    declare(ctl, ECHO, batchSize=8)
    assert ctl("sync").answer["actions"] == ["unloaded echo 1.0", "loaded echo 1.0"]
    assert torchserve.models["echo"]["1.0"]["batchSize"] == 8
    assert ctl("sync").answer["changed"] is False


def test_a_changed_timeout_restarts_the_service_since_a_reload_would_be_in_vain(ctl, torchserve, monkeypatch):
    """What TorchServe read of a version at its start wins over the registration's timeouts."""
    torchserve.read_at_start = {("echo", "1.0"): {"responseTimeout": 120}}
    declare(ctl, ECHO, responseTimeout=60)

    def systemctl(command, **_):
        assert command == ["systemctl", "restart", "torchserve.service"]
        torchserve.models["echo"]["1.0"]["responseTimeout"] = 60

    monkeypatch.setattr(serving_ctl.subprocess, "run", systemctl)
    assert ctl("sync").answer["actions"] == [
        "restarted torchserve.service: responseTimeout changed, which TorchServe reads at its start only"
    ]
    assert ctl("sync").answer["changed"] is False


@pytest.mark.parametrize(("replaced_after", "expected"), [(0, 2.5), (3600, 2.5)], ids=["first", "replaced"])
def test_load_time_is_that_of_the_process_not_of_the_thread_that_outlives_it(monkeypatch, replaced_after, expected):
    monkeypatch.setattr(serving_ctl, "process_started", lambda _: STARTED + replaced_after)
    worker = {"id": "9000", "pid": 4711, "startTime": "2026-11-30T10:00:00.000Z"}
    assert serving_ctl.load_seconds(worker, {"9000": replaced_after + 2.5}) == expected


def test_load_time_is_unknown_for_a_process_that_is_gone():
    worker = {"id": "9000", "pid": 2**22 + 1, "startTime": "2026-11-30T10:00:00.000Z"}
    assert serving_ctl.load_seconds(worker, {"9000": 2.5}) is None


def test_the_start_of_a_process_is_read_from_the_kernel():
    assert 0 <= time.time() - serving_ctl.process_started(os.getpid()) < 3600


def test_a_failed_load_is_told_and_repaired_by_the_next_run(ctl, torchserve):
    """TorchServe keeps the failed model, with no worker, and would answer 409 to a second registration."""
    torchserve.broken = {OTHER}
    declare(ctl, ECHO, OTHER)
    first = ctl("sync")
    assert first.code == 1
    assert "Failed to start workers for model other version: 1.0" in problems(first)[0]
    torchserve.broken = set()
    assert ctl("sync").answer["actions"] == ["unloaded other 1.0", "loaded other 1.0"]
    assert ctl("status").code == 0


@pytest.mark.parametrize("workers", [1, 4])
def test_a_changed_number_of_workers_scales_without_a_reload(ctl, torchserve, workers):
    declare(ctl, ECHO, workers=workers)
    assert ctl("sync").answer["actions"] == [f"scaled echo 1.0 to {workers} workers"]
    assert torchserve.changes() == ["PUT /models/echo/1.0"]
    assert ctl("status").code == 0


def test_one_sync_is_enough_where_the_archive_wants_another_number_of_workers(ctl, torchserve):
    torchserve.config_workers = {OTHER: 1}
    declare(ctl, OTHER, ECHO, configFile=True)
    assert ctl("sync").answer["actions"] == ["loaded other 1.0"]
    assert len(torchserve.models["other"]["1.0"]["workers"]) == 2
    assert ctl("sync").answer["changed"] is False


def test_a_model_that_is_no_longer_declared_goes_with_all_its_versions(ctl, torchserve):
    for mar in (OTHER, "other-2.0-eeeeeeeeeeee.mar", "other-3.0-ffffffffffff.mar"):
        torchserve.add(mar)
    result = ctl("sync")
    assert result.code == 0
    assert sorted(result.answer["actions"]) == ["unloaded other 1.0", "unloaded other 2.0", "unloaded other 3.0"]
    assert list(torchserve.models) == ["echo"]


@pytest.mark.parametrize(
    ("mar", "settings"),
    [(ECHO_2, {}), (ECHO_REBUILT, {}), (ECHO, {"batchSize": 8}), (ECHO, {"workers": 3}), (ECHO, {})],
    ids=["new version", "other archive", "other settings", "scaled", "nothing"],
)
def test_sync_leaves_other_models_alone(ctl, torchserve, mar, settings):
    bystander = torchserve.add(OTHER)
    workers = list(bystander["workers"])
    declare(ctl, mar, OTHER, **settings)
    assert ctl("sync").code == 0
    assert [request for request in torchserve.changes() if "/other" in request] == []
    assert torchserve.models["other"]["1.0"] is bystander
    assert bystander["workers"] == workers


def test_sync_waits_for_a_service_that_is_starting(ctl, torchserve, clock):
    keys = torchserve.folder / "key_file.json"
    content = keys.read_text()
    keys.unlink()
    clock.on_sleep = lambda: keys.write_text(content)
    assert ctl("sync", "--wait", "5").answer["changed"] is False


def test_sync_says_why_the_service_never_answered(ctl, clock):
    ctl.settings(management="http://127.0.0.1:1")
    [problem] = problems(ctl("sync", "--wait", "3"))
    assert problem.startswith("GET http://127.0.0.1:1/models: ")
    assert clock.now == 3


@pytest.mark.parametrize(("wait", "startup", "granted"), [(5, 600, 750), (1000, 600, 1000)])
def test_a_load_may_take_as_long_as_the_model_does(ctl, monkeypatch, wait, startup, granted):
    """A timeout of less than TorchServe's own would tell of a failure while the model is still loading."""
    timeouts = {}
    call = serving_ctl.Engine.call

    def note(engine, method, url, **options):
        timeouts[method, urlsplit(url).path] = options.get("timeout")
        return call(engine, method, url, **options)

    monkeypatch.setattr(serving_ctl.Engine, "call", note)
    declare(ctl, ECHO, startupTimeout=120)
    declare(ctl, ECHO_2, startupTimeout=startup)
    assert ctl("sync", "--wait", str(wait)).code == 0
    assert timeouts["POST", "/models"] == granted


# --- sync --dry-run


def number_of_workers_changed(_, ctl):
    declare(ctl, ECHO, workers=3)


def one_of_three_versions_stays(torchserve, ctl):
    for mar in (ECHO_2, "echo-3.0-eeeeeeeeeeee.mar"):
        torchserve.add(mar)
    torchserve.defaults["echo"] = "3.0"
    declare(ctl, ECHO_REBUILT)


def failed_load(torchserve, ctl):
    torchserve.broken = {OTHER}
    torchserve.add(OTHER)
    torchserve.broken = set()
    declare(ctl, ECHO, OTHER)


def everything_goes(torchserve, ctl):
    torchserve.add(ECHO_2)
    declare(ctl, OTHER)


def nothing_changed(*_):
    """Leave the host as declared."""


@pytest.mark.parametrize(
    "arrange",
    [
        nothing_changed, not_loaded, other_version, another_archive, not_declared, batching_changed, another_default,
        number_of_workers_changed, one_of_three_versions_stays, failed_load, everything_goes,
    ],
    ids=lambda value: value.__name__,
)  # fmt: skip
def test_a_dry_run_announces_what_the_run_does_and_only_asks(ctl, torchserve, arrange):
    arrange(torchserve, ctl)
    announced = ctl("sync", "--dry-run")
    assert (announced.code, torchserve.changes()) == (0, [])
    assert announced.answer == ctl("sync").answer
    assert announced.answer["changed"] is (arrange is not nothing_changed)
    assert ctl("status").code == 0


def test_a_dry_run_announces_a_restart_and_does_not_make_it(ctl, torchserve, monkeypatch):
    """The restart brings all else with it."""
    declare(ctl, ECHO, OTHER, responseTimeout=60)
    monkeypatch.setattr(serving_ctl.subprocess, "run", lambda command, **_: pytest.fail(f"{command} was run"))
    action = "restarted torchserve.service: responseTimeout changed, which TorchServe reads at its start only"
    assert ctl("sync", "--dry-run").answer == {"changed": True, "actions": [action]}
    assert torchserve.changes() == []


@pytest.mark.parametrize("missing", ["service", "key file"])
def test_a_dry_run_does_not_fail_for_a_service_that_is_not_there_and_does_not_wait_for_it(ctl, torchserve, clock, missing):
    if missing == "service":
        ctl.settings(management="http://127.0.0.1:1")
    else:
        (torchserve.folder / "key_file.json").unlink()
    ctl.models_file.unlink()
    result = ctl("sync", "--dry-run", "--wait", "60")
    assert (result.code, clock.now) == (0, 0)
    assert (result.answer["changed"], result.answer["actions"]) == (False, [])
    assert result.answer["unknown"]


# --- health


def said(time, level, logger, *messages, thread="W-9000-other_1.0-stdout"):
    head = {"time": time, "level": level, "logger": logger, "thread": thread}
    return [json.dumps(head | {"message": message}, separators=(",", ":")) for message in messages]


STREAM_READER = "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"


@pytest.fixture
def journal(tmp_path, monkeypatch):
    """Put a stand-in for journalctl in front; `write` sets the log, at first with what a failed load leaves there."""
    program = tmp_path / "bin" / "journalctl"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    def write(lines):
        program.write_text("\n".join(["#!/bin/sh", f'echo "$@" > {tmp_path}/asked', "cat <<'END'", *lines, "END", ""]))
        program.chmod(0o755)

    reason = said("10:01", "INFO", "MODEL_LOG", STREAM_READER)
    error = said("10:02", "ERROR", "WorkerThread", "Backend worker error")
    write([*said("10:00", "INFO", "ModelServer", "Model server started."), *reason, *error])
    return SimpleNamespace(errors=reason + error, asked=tmp_path / "asked", write=write)


def failed_load_in_the_log(second, reason):
    """What one try of one worker leaves: the traceback, that of its consequence, and what Java says to it."""
    time, other = f"10:00:{second:02}", f"W-9001-slow_1.0-{second}"
    frames = ['  File "ts/model_loader.py", line 143, in load', "    initialize_fn(service.context)"]
    model, *rest = (
        *said(time, "INFO", "MODEL_LOG", "Failed to load model other, exception"),
        *said(time, "INFO", "MODEL_LOG", "Traceback (most recent call last):", *frames, reason),
        *said(time, "INFO", "MODEL_LOG", "Traceback (most recent call last):", *frames, "RuntimeError: 500 - Unknown exception"),
    )
    return [
        model,
        *said(time, "INFO", "MODEL_LOG", "Backend worker process started.", thread=other),
        *rest,
        *said(time, "ERROR", "WorkerThread", f"Backend worker error, attempt {second}: Backend stream closed."),
        *said(time, "ERROR", "WorkerThread", f"Load model failed: other, attempt {second}"),
    ]


@pytest.mark.parametrize("reason", [STREAM_READER, "AssertionError", "binascii.Error: Incorrect padding", "SystemExit: 3"])
def test_the_reason_of_a_failed_load_is_shown_however_often_it_was_tried(ctl, torchserve, journal, reason):
    journal.write([line for second in range(12) for line in failed_load_in_the_log(second, reason)])
    worker_is_loading(torchserve, ctl)
    shown = [json.loads(line)["message"] for line in ctl("health").answer["log"]]
    assert shown[:2] == [reason, "RuntimeError: 500 - Unknown exception"]
    assert shown[-1] == "Load model failed: other, attempt 11"
    assert len(shown) == 7


def test_what_is_no_json_in_the_log_is_shown_too(ctl, torchserve, journal):
    line = "java.lang.IllegalArgumentException: Invalid configuration"
    journal.write(["5", "WARNING: sun.reflect.Reflection.getCallerClass is not supported", line])
    worker_is_loading(torchserve, ctl)
    assert ctl("health").answer["log"] == [line]


def test_health_returns_as_soon_as_all_models_answer(ctl, torchserve, clock):
    worker_is_loading(torchserve, ctl)

    def finish_loading():
        torchserve.models["echo"]["1.0"]["workers"][1]["status"] = "READY"

    clock.on_sleep = finish_loading
    result = ctl("health", "--wait", "60")
    assert (result.code, result.answer["ready"], clock.now) == (0, True, 0.5)
    assert "log" not in result.answer


def test_health_reports_after_the_wait_with_the_errors_of_the_log(ctl, torchserve, clock, journal):
    worker_is_loading(torchserve, ctl)
    result = ctl("health", "--wait", "10")
    assert (result.code, clock.now) == (1, 10)
    assert problems(result) == ["model echo 1.0: 1 of 2 workers are ready"]
    assert result.answer["log"] == journal.errors
    assert "--unit torchserve.service" in journal.asked.read_text()


@pytest.mark.parametrize("cut", [False, True], ids=["nobody listens", "it dies while it answers"])
def test_health_survives_a_service_that_is_down(ctl, torchserve, journal, cut):
    torchserve.cut_answers = cut
    if not cut:
        ctl.settings(management="http://127.0.0.1:1")
    result = ctl("health")
    assert (result.code, result.answer["ready"], result.answer["models"]) == (1, False, [])
    assert problems(result)[0].startswith("GET http://127.0.0.1:")
    assert result.answer["log"] == journal.errors


# --- drain


def test_drain_returns_at_once_when_nobody_is_there(ctl, clock):
    result = ctl("drain")
    assert (result.code, result.answer, clock.now) == (0, {"drained": True, "problems": []}, 0)


def test_drain_names_who_is_still_connected(ctl):
    port = urlsplit(ctl.inference).port
    with socket.create_connection(("127.0.0.1", port)):
        result = ctl("drain", "--wait", "2")
    assert (result.code, result.answer["drained"]) == (1, False)
    assert problems(result) == [f"127.0.0.1 is still connected to port {port}: drain it at the gateway first"]


def test_drain_sees_the_clients_of_grpc(ctl):
    port = urlsplit(ctl.grpc).port
    with socket.create_connection(("127.0.0.1", port)):
        result = ctl("drain", "--wait", "2")
    assert problems(result) == [f"127.0.0.1 is still connected to port {port}: drain it at the gateway first"]


def test_drain_returns_when_the_last_client_has_left(ctl, clock):
    client = socket.create_connection(("127.0.0.1", urlsplit(ctl.inference).port))
    clock.on_sleep = client.close
    assert ctl("drain", "--wait", "60").answer["drained"] is True
    assert clock.now > 0


def test_drain_waits_for_the_queue(ctl, torchserve):
    torchserve.models["echo"]["1.0"]["jobQueueStatus"]["pendingRequests"] = 3
    assert problems(ctl("drain", "--wait", "1")) == ["3 requests wait for model echo"]


# --- the program


def test_the_systems_own_python_runs_it():
    """One that somebody put first in PATH has no say."""
    assert Path(serving_ctl.__file__).read_text().splitlines()[0] == "#!/usr/bin/python3"


def test_a_host_without_the_role_is_told_in_one_sentence(tmp_path, capsys):
    assert serving_ctl.main(["--settings", str(tmp_path / "absent.json"), "status"]) == 1
    output = capsys.readouterr()
    assert "No such file or directory" in output.err
    assert len(output.err.splitlines()) == 1
    assert json.loads(output.out)["problems"]


@pytest.mark.parametrize("arguments", [[], ["restart"], ["drain", "--wait", "soon"]])
def test_a_wrong_command_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as exit_info:
        serving_ctl.main(arguments)
    assert exit_info.value.code == 2
    assert "usage:" in capsys.readouterr().err


# --- what a night on call has taught


def test_a_version_is_unloaded_only_when_nothing_waits_for_it(ctl, torchserve, clock):
    """TorchServe never answers what is in the queue of a version that it unloads."""
    torchserve.add(ECHO_2)
    declare(ctl, ECHO_2)
    queue = torchserve.models["echo"]["1.0"]["jobQueueStatus"]
    queue["pendingRequests"] = 2
    seen = []

    def serve():
        seen.append([request for request in torchserve.requests if request.startswith("DELETE")])
        queue["pendingRequests"] = max(0, queue["pendingRequests"] - 1)

    clock.on_sleep = serve
    assert ctl("sync").answer["actions"][-1] == "unloaded echo 1.0"
    assert seen[:2] == [[], []]
    assert len(seen) == 2 + serving_ctl.IDLE_LOOKS


def test_a_queue_that_never_empties_does_not_hold_up_a_run_for_ever(ctl, torchserve, clock):
    torchserve.add(ECHO_2)
    declare(ctl, ECHO_2)
    torchserve.models["echo"]["1.0"]["jobQueueStatus"]["pendingRequests"] = 5
    assert ctl("sync", "--wait", "10").code == 0
    assert 10 <= clock.now < 11


def test_a_key_file_that_was_removed_is_named_with_the_remedy_and_soon(ctl, torchserve, clock):
    (torchserve.folder / "key_file.json").unlink()
    result = ctl("sync", "--wait", "300")
    assert "key_file.json is missing" in problems(result)[0]
    assert "systemctl restart torchserve.service" in problems(result)[0]
    assert clock.now < 30


@pytest.mark.parametrize("broken", ["serving.json", "models.env"])
def test_a_dry_run_does_not_fail_for_a_file_that_the_run_will_mend(ctl, torchserve, broken):
    (torchserve.folder / broken).write_text("GROUNDWORK_MODELS='{'\n")
    result = ctl("sync", "--dry-run")
    assert (result.code, result.answer["changed"]) == (0, False)
    assert result.answer["unknown"]


def test_a_dry_run_compares_with_what_the_run_would_declare(ctl, torchserve, tmp_path):
    pending = tmp_path / "pending.env"
    pending.write_text(ctl.models_file.read_text().replace('"responseTimeout": 120', '"responseTimeout": 60'))
    result = ctl("sync", "--dry-run", "--models-file", str(pending))
    assert result.answer["actions"] == [
        "restarted torchserve.service: responseTimeout changed, which TorchServe reads at its start only"
    ]
    assert torchserve.changes() == []


def test_the_models_may_come_through_a_pipe(ctl, torchserve):
    """As a dry run of the role gives them: a pipe can be read once only."""
    reader, writer = os.pipe()
    os.write(writer, ctl.models_file.read_bytes())
    os.close(writer)
    result = ctl("sync", "--dry-run", "--models-file", f"/dev/fd/{reader}")
    os.close(reader)
    assert result.answer == {"changed": False, "actions": []}
    assert torchserve.changes() == []
