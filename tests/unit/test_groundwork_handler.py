"""The handler library without torch or TorchServe; stand-ins take the place of both."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import threading
from contextlib import nullcontext
from enum import Enum
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "roles/torchserve/files/handler"))
library = importlib.import_module("groundwork_handler")

WEIGHTS = b"serialized weights"


class _Echo(library.TextHandler):
    """Predicts the length of each text, or does what the test asks for."""

    def __init__(self, action=None):
        self.action = action or (lambda texts: [f"{len(text)} characters" for text in texts])
        self.seen = []

    def load(self, model_dir, device):
        self.loaded = (model_dir, device)

    def predict(self, texts):
        if texts == [self.WARM_UP_TEXT]:
            return ["warm"]
        self.seen.append(texts)
        return self.action(texts)


class _Context:
    """Stand-in for ts.context.Context."""

    def __init__(self, model_dir, gpu=None, headers=(), config=None):
        self.model_name = "echo"
        self.manifest = {"model": {"modelVersion": "3f9c2d1", "serializedFile": "model.pt"}}
        self.system_properties = {"model_dir": str(model_dir), "gpu_id": gpu}
        self.model_yaml_config = config
        self.headers = list(headers)
        self.statuses, self.content_types, self.emitted = {}, {}, []
        self.metrics = SimpleNamespace(add_metric=lambda *metric: self.emitted.append(metric))

    def get_all_request_header(self, index):
        return self.headers[index] if index < len(self.headers) else {}

    def get_request_id(self, index):
        return f"torchserve-{index}"

    def set_response_status(self, code, phrase, index):
        self.statuses[index] = (code, phrase)

    def set_response_content_type(self, index, value):
        self.content_types[index] = value


class Dimension(NamedTuple):
    """Stand-in for ts.metrics.dimension.Dimension."""

    name: str
    value: str


@pytest.fixture(autouse=True)
def torch(monkeypatch):
    """Stand-ins for torch, whose calls are recorded, and for TorchServe's metric types."""
    calls = []
    cuda = SimpleNamespace(
        is_available=lambda: True,
        set_device=lambda gpu: calls.append(("set_device", gpu)),
        empty_cache=lambda: calls.append(("empty_cache",)),
        utilization=lambda gpu: calls.append(("utilization", gpu)) or 37,
        mem_get_info=lambda _: (60_000_000_000, 85_000_000_000),
    )
    stand_in = SimpleNamespace(__version__="2.0", inference_mode=nullcontext, cuda=cuda, calls=calls)
    kinds = Enum("MetricTypes", ["COUNTER", "GAUGE", "HISTOGRAM"])
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    monkeypatch.setitem(sys.modules, "ts.metrics.metric_type_enum", SimpleNamespace(MetricTypes=kinds))
    monkeypatch.setitem(sys.modules, "ts.metrics.dimension", SimpleNamespace(Dimension=Dimension))
    return stand_in


@pytest.fixture
def ready(tmp_path, capsys):
    """Return a function that gives an initialized handler and its context."""
    (tmp_path / "model.pt").write_bytes(WEIGHTS)

    def make(action=None, **context):
        handler, given = _Echo(action), _Context(tmp_path, **context)
        handler.initialize(given)
        capsys.readouterr()
        given.emitted.clear()
        return handler, given

    return make


def fail(error):
    def action(_):
        raise error

    return action


def ask(handler, context, *texts):
    return [json.loads(answer) for answer in handler.handle([{"body": {"text": text}} for text in texts], context)]


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    "row",
    [
        {"body": {"text": "hello"}},
        {"body": '{"text": "hello"}'},
        {"body": bytearray(b'{"text": "hello"}')},
        {"data": b'{"text": "hello"}'},
        {"body": {"text": "hello", "language": "en"}},
        {"text": bytearray(b"from the query string"), "body": {"text": "hello"}},
    ],
    ids=["json", "text/plain", "other content type", "grpc", "more fields", "query string"],
)
def test_text_is_read_in_every_form_torchserve_hands_it_over(row):
    assert library.read_text(row, 512) == "hello"


@pytest.mark.parametrize(
    ("row", "status", "field", "part"),
    [
        ({"body": bytearray(b"{nope")}, 400, "body", "is not valid JSON"),
        ({"body": bytearray(b"")}, 400, "body", "is not valid JSON"),
        ({"body": bytearray(b'{"text": "\xff"}')}, 400, "body", "is not valid JSON"),
        ({"body": b"[" * 200_000}, 400, "body", "is not valid JSON"),
        ({'{"text": "sent as a form"}': bytearray(b"")}, 400, "body", "Content-Type: application/json"),
        ({"body": ["hello"]}, 400, "body", "is a JSON array, expected an object"),
        ({"body": 5}, 400, "body", "is a JSON number, expected an object"),
        ({"body": None}, 400, "body", "is a JSON null, expected an object"),
        ({"body": {"txt": "hello"}}, 400, "text", 'text is missing; send a JSON object such as {"text"'),
        ({"body": {"text": None}}, 400, "text", "text is a JSON null, expected a string"),
        ({"body": {"text": True}}, 400, "text", "text is a JSON boolean, expected a string"),
        ({"body": {"text": ["hello"]}}, 400, "text", "text is a JSON array, expected a string"),
        ({"body": {"text": " \n\t"}}, 400, "text", "text is blank"),
        ({"body": {"text": "half \ud83d"}}, 400, "text", "half of a surrogate pair"),
        ({"body": {"text": "a" * 513}}, 413, "text", "has 513 characters, at most 512 are accepted"),
    ],
)
def test_input_that_cannot_be_served_is_refused_with_field_and_remedy(row, status, field, part):
    with pytest.raises(library.RequestError) as caught:
        library.read_text(row, 512)
    body = caught.value.body()
    assert (body["code"], body["field"]) == (status, field)
    assert part in body["message"]


@pytest.mark.parametrize("text", ["a" * 512, "😀" * 512], ids=["ascii", "emoji"])
def test_the_limit_counts_characters_and_includes_the_last(text):
    assert library.read_text({"body": {"text": text}}, 512) == text


def test_an_answer_has_the_four_fields_and_no_invented_gpu_figures(ready):
    handler, context = ready()
    (answer,) = ask(handler, context, "hello")
    latency = answer.pop("latency_ms")
    assert answer == {"prediction": "5 characters", "gpu_util_pct": None, "memory_used_gb": None}
    assert 0 <= latency < 1000


def test_bad_requests_of_a_batch_leave_the_good_ones_alone(ready):
    handler, context = ready()
    rows = [{"body": {"text": text}} for text in ("one", "", "x" * 600, "three")]
    answers = [json.loads(answer) for answer in handler.handle(rows, context)]
    assert [answer.get("prediction", answer.get("code")) for answer in answers] == ["3 characters", 400, 413, "5 characters"]
    assert context.statuses == {1: (400, "Bad Request"), 2: (413, HTTPStatus(413).phrase)}
    assert handler.seen == [["one", "three"]]


def test_a_batch_without_a_good_request_does_not_reach_the_model(ready):
    handler, context = ready()
    ask(handler, context, "", "")
    assert handler.seen == []


def test_every_answer_is_declared_as_json(ready):
    handler, context = ready()
    ask(handler, context, "good", "")
    assert context.content_types == {0: "application/json", 1: "application/json"}


@pytest.mark.parametrize(
    "action",
    [
        fail(KeyError("internal detail")),
        lambda _: [],
        lambda texts: [float("nan")] * len(texts),
        lambda texts: [object()] * len(texts),
    ],
    ids=["exception", "wrong count", "not a number", "not serializable"],
)
def test_a_failed_prediction_is_a_500_without_internals(ready, action):
    handler, context = ready(action)
    (answer,) = ask(handler, context, "hello")
    assert (answer["code"], answer["type"], answer["field"]) == (500, "PredictionFailed", None)
    assert "internal" not in answer["message"]
    assert context.statuses == {0: (500, "Internal Server Error")}


def test_each_failed_request_leaves_one_complete_log_line(ready, capsys):
    headers = [{"X-Request-ID": "from-client"}, {}]
    handler, context = ready(fail(RuntimeError("CUDA error: misaligned address\nat kernel.cu")), headers=headers)
    ask(handler, context, "one", "two")
    first, second = lines(capsys)
    assert first.pop("time").endswith("Z")
    assert first == {
        "event": "inference_failed",
        "request_id": "from-client",
        "model": "echo",
        "model_version": "3f9c2d1",
        "weights_sha256": hashlib.sha256(WEIGHTS).hexdigest(),
        "gpu_index": None,
        "cuda_error_code": 716,
        "error": "RuntimeError: CUDA error: misaligned address at kernel.cu",
    }
    assert second["request_id"] == "torchserve-1"


def test_a_log_line_is_written_at_once(monkeypatch):
    writes = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=writes.append, flush=lambda: writes.append("flush")))
    library.log("model_loaded", model="echo")
    assert len(writes) == 2
    assert writes[0].endswith("}\n")
    assert writes[1] == "flush"


@pytest.mark.parametrize("name", ["X-Request-ID", "x-request-id", "X-Request-Id"])
def test_the_clients_request_id_is_found_in_any_spelling(tmp_path, name):
    assert library.request_id(_Context(tmp_path, headers=[{"Accept": "*/*", name: "abc"}]), 0) == "abc"


def test_a_form_field_named_like_the_header_is_no_request_id(tmp_path):
    context = _Context(tmp_path, headers=[{"X-Request-ID": {"content-type": "text/plain"}}])
    assert library.request_id(context, 0) == "torchserve-0"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("CUDA error: device-side assert triggered\nCompile with TORCH_USE_CUDA_DSA"), 710),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), 700),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB"), 2),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), 209),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), 214),
        (type("AcceleratorError", (RuntimeError,), {"error_code": 719})("anything"), 719),
        (type("OtherError", (RuntimeError,), {"error_code": "719"})("anything"), None),
        (ValueError("text is odd"), None),
    ],
)
def test_the_cuda_error_code_is_found(error, code):
    assert library.cuda_error_code(error) == code


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: 8 bytes"),
    ],
    ids=["python", "gpu", "host"],
)
def test_out_of_memory_is_a_503_that_can_be_repeated(ready, error):
    handler, context = ready(fail(error))
    (answer,) = ask(handler, context, "hello")
    assert (answer["code"], answer["type"]) == (503, "OutOfMemory")


def test_out_of_memory_on_a_gpu_gives_the_cache_back(ready, torch):
    handler, context = ready(fail(MemoryError()), gpu=0)
    ask(handler, context, "hello")
    assert ("empty_cache",) in torch.calls


@pytest.fixture(autouse=True)
def exits(monkeypatch):
    """Record the timers that would end the worker."""
    started = []

    def timer(delay, action, arguments):
        return SimpleNamespace(start=lambda: started.append((delay, action, arguments)))

    monkeypatch.setattr(threading, "Timer", timer)
    return started


def test_a_worker_whose_cuda_context_is_lost_is_replaced_once(ready, exits):
    handler, context = ready(fail(RuntimeError("CUDA error: unspecified launch failure")), gpu=0)
    ask(handler, context, "hello")
    ask(handler, context, "hello again")
    assert exits == [(1.0, library.os._exit, [1])]
    assert len(handler.seen) == 1


@pytest.mark.parametrize("error", [MemoryError(), ValueError("odd"), RuntimeError("CUDA error: invalid argument")])
def test_other_failures_keep_the_worker(ready, exits, error):
    handler, context = ready(fail(error), gpu=0)
    ask(handler, context, "hello")
    assert exits == []


def test_a_gpu_worker_binds_its_gpu_before_it_loads(ready, torch, tmp_path):
    handler, _ = ready(gpu=1)
    assert torch.calls[0] == ("set_device", 1)
    assert handler.loaded == (tmp_path, "cuda:1")


def test_gpu_figures_are_utilisation_and_used_framebuffer(ready):
    handler, context = ready(gpu=0)
    (answer,) = ask(handler, context, "hello")
    assert (answer["gpu_util_pct"], answer["memory_used_gb"]) == (37, 25.0)


def test_gpu_figures_are_read_once_a_second(ready, torch, monkeypatch):
    handler, _ = ready(gpu=0)
    clock = iter([1000.0, 1000.0, 1000.9, 1001.0, 1001.0])  # a read that asks the GPU looks twice
    monkeypatch.setattr(library.time, "monotonic", lambda: next(clock))
    for _ in range(3):
        handler.figures.read()
    assert torch.calls.count(("utilization", 0)) == 2


def test_a_gpu_figure_that_cannot_be_read_is_null_and_the_other_stays(ready, torch):
    torch.cuda.utilization = fail(ModuleNotFoundError("pynvml"))
    handler, context = ready(gpu=0)
    (answer,) = ask(handler, context, "hello")
    assert (answer["gpu_util_pct"], answer["memory_used_gb"]) == (None, 25.0)


def test_a_gpu_that_torch_cannot_use_fails_the_load_with_a_remedy(ready, torch):
    torch.cuda.is_available = lambda: False
    with pytest.raises(RuntimeError, match=r"GPU 0, which torch 2\.0 cannot use; install a build"):
        ready(gpu=0)


def test_a_load_is_logged_with_its_checksum_and_its_durations(tmp_path, capsys):
    (tmp_path / "model.pt").write_bytes(WEIGHTS)
    _Echo().initialize(_Context(tmp_path))
    (line,) = lines(capsys)
    assert line.pop("time")
    assert line.pop("load_seconds") >= 0
    assert line.pop("warmup_seconds") >= 0
    assert line == {
        "event": "model_loaded",
        "model": "echo",
        "model_version": "3f9c2d1",
        "weights_sha256": hashlib.sha256(WEIGHTS).hexdigest(),
        "gpu_index": None,
        "device": "cpu",
    }


def test_a_failed_load_is_logged_counted_and_raised(tmp_path, capsys):
    context = _Context(tmp_path)
    with pytest.raises(FileNotFoundError):
        _Echo().initialize(context)
    (line,) = lines(capsys)
    assert (line["event"], line["model_version"]) == ("model_load_failed", "3f9c2d1")
    assert "model.pt" in line["error"]
    assert [metric[0] for metric in context.emitted] == ["ts_model_load_failures_total"]


@pytest.mark.parametrize(
    ("config", "environment", "limit"),
    [(None, None, 512), ({}, "100", 100), ({"max_text_characters": 2000}, "100", 2000)],
    ids=["default", "host", "archive"],
)
def test_the_limit_is_the_archives_then_the_hosts_then_the_default(ready, monkeypatch, config, environment, limit):
    if environment:
        monkeypatch.setenv("GROUNDWORK_MAX_TEXT_CHARACTERS", environment)
    assert ready(config=config)[0].limit == limit


def test_metrics_carry_the_version_and_leave_out_what_is_unknown(ready):
    handler, context = ready()
    ask(handler, context, "hello")
    names = [(name, unit, kind.name) for name, _, unit, _, _, kind in context.emitted]
    assert names == [("ts_inference_latency_ms", "ms", "GAUGE"), ("ts_inference_latency_seconds", "s", "HISTOGRAM")]
    assert all(dimensions == [("ModelVersion", "3f9c2d1")] for _, _, _, _, dimensions, _ in context.emitted)


def test_metrics_of_a_gpu_worker_hold_its_figures(ready):
    handler, context = ready(gpu=0)
    ask(handler, context, "hello")
    values = {name: value for name, value, *_ in context.emitted}
    assert (values["ts_gpu_util_pct"], values["ts_memory_used_gb"]) == (37, 25.0)


def test_a_metrics_configuration_that_does_not_fit_costs_no_request(ready, capsys):
    handler, context = ready()
    handler.metrics = SimpleNamespace()
    answers = ask(handler, context, "hello") + ask(handler, context, "again")
    assert all("prediction" in answer for answer in answers)
    assert [line["event"] for line in lines(capsys)] == ["metrics_disabled"]
