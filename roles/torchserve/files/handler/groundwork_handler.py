"""What every model archive shares inside a TorchServe worker: input checks, warm-up, GPU figures, JSON log lines.

A model's `handler.py` holds one subclass of TextHandler with `load` and `predict`; this file travels in the archive
beside it. Nothing here needs torch until a worker calls `initialize`, so that the rules can be tested without it.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

# ts.context.Context; TorchServe is not installed where the fleet is described and tested.
Context: TypeAlias = Any
T = TypeVar("T")

MAX_TEXT_CHARACTERS = 512
MAX_TEXT_VARIABLE = "GROUNDWORK_MAX_TEXT_CHARACTERS"
EXAMPLE = 'send a JSON object such as {"text": "some words"} with Content-Type: application/json'
JSON_TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}

# cudaError_t by the text that cudaGetErrorString gives, for exceptions that carry no number.
CUDA_ERRORS = {
    "CUDA out of memory": 2,
    "CUDA error: out of memory": 2,
    "CUDA error: invalid argument": 1,
    "CUDA error: initialization error": 3,
    "CUDA driver version is insufficient": 35,
    "CUDA-capable device(s) is/are busy or unavailable": 46,
    "no CUDA-capable device is detected": 100,
    "invalid device ordinal": 101,
    "no kernel image is available": 209,
    "uncorrectable ECC error": 214,
    "uncorrectable NVLink error": 220,
    "an illegal memory access was encountered": 700,
    "too many resources requested for launch": 701,
    "the launch timed out and was terminated": 702,
    "device-side assert triggered": 710,
    "hardware stack error": 714,
    "an illegal instruction was encountered": 715,
    "misaligned address": 716,
    "operation not supported on global/shared address space": 717,
    "invalid program counter": 718,
    "unspecified launch failure": 719,
    "CUDA error: unknown error": 999,
}
OUT_OF_MEMORY = 2
# After these the CUDA context is lost: every later call in the process fails as well, so the worker must be replaced.
CONTEXT_LOST = frozenset({214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719})


class RequestError(Exception):
    """An answer other than a prediction: HTTP status, error type, message and the field it is about."""

    def __init__(self, status: HTTPStatus, kind: str, message: str, field: str | None = None) -> None:
        """Keep the parts; `message` says what was wrong and what to do."""
        super().__init__(message)
        self.status, self.kind, self.message, self.field = status, kind, message, field

    def body(self) -> dict[str, int | str | None]:
        """Return the JSON body; its first three keys are those of TorchServe's own errors."""
        return {"code": int(self.status), "type": self.kind, "message": self.message, "field": self.field}


def read_text(row: Mapping[str, object], limit: int) -> str:
    """Return the text of one request as TorchServe hands it over, or raise RequestError.

    The body of an application/json request comes parsed, but as bytes when it is no valid JSON; a text/* body comes as
    a string, any other type as bytes. gRPC clients name it `data`. A form has neither and is refused as no JSON.
    """
    body = row.get("body", row.get("data", b""))
    if isinstance(body, (bytes, bytearray, str)):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise invalid("body", f"is not valid JSON ({error}); {EXAMPLE}") from None
    if not isinstance(body, dict):
        raise invalid("body", f"is a JSON {json_type(body)}, expected an object; {EXAMPLE}")
    if "text" not in body:
        raise invalid("text", f"is missing; {EXAMPLE}")
    text = body["text"]
    if not isinstance(text, str):
        raise invalid("text", f"is a JSON {json_type(text)}, expected a string; put the words in double quotes")
    if len(text) > limit:
        message = f"text has {len(text)} characters, at most {limit} are accepted; shorten it or split it"
        raise RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "TextTooLong", message, "text")
    if not text.strip():
        raise invalid("text", "is blank; send at least one visible character")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise invalid("text", "holds half of a surrogate pair, which is no character; send whole Unicode characters")
    return text


def invalid(field: str, fault: str) -> RequestError:
    """Return the 400 for a fault in a field."""
    return RequestError(HTTPStatus.BAD_REQUEST, "InvalidInput", f"{field} {fault}", field)


def json_type(value: object) -> str:
    """Return what JSON calls the type of a parsed value."""
    return JSON_TYPES.get(type(value), "number")


def cuda_error_code(error: BaseException) -> int | None:
    """Return the cudaError_t number of an exception, None when CUDA is not its cause.

    torch.AcceleratorError carries the number; older exceptions only hold CUDA's text.
    """
    code = getattr(error, "error_code", None)
    if isinstance(code, int):
        return code
    return next((code for text, code in CUDA_ERRORS.items() if text in str(error)), None)


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether the GPU or the host ran out of memory."""
    return (
        isinstance(error, MemoryError)
        or cuda_error_code(error) == OUT_OF_MEMORY
        or "DefaultCPUAllocator: can't allocate memory" in str(error)
    )


def request_id(context: Context, index: int) -> str | None:
    """Return the client's X-Request-ID, else TorchServe's own id.

    Headers keep the client's spelling and TorchServe's look-up is case-sensitive. The same mapping also holds the
    content types of body fields, as dictionaries.
    """
    for name, value in context.get_all_request_header(index).items():
        if name.lower() == "x-request-id" and isinstance(value, str):
            return value
    identifier: str | None = context.get_request_id(index)
    return identifier


def log(event: str, **fields: object) -> None:
    """Write one JSON line to standard output in a single write: workers share the log."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sys.stdout.write(json.dumps({"event": event, "time": now, **fields}) + "\n")
    sys.stdout.flush()


def describe(error: BaseException) -> str:
    """Return an exception as one short line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def attempt(action: Callable[[], T]) -> T | None:
    """Return what the action returns, None when it fails: for what must never cost a request."""
    try:
        return action()
    except Exception:  # torch and NVML raise many kinds
        return None


class GpuFigures:
    """Utilisation in per cent and used framebuffer in GB (10^9 bytes) of one GPU, None where there is none."""

    LIFETIME_S = 1.0  # NVML's own sampling period; asking more often would only cost time

    def __init__(self, torch: ModuleType, gpu: int | None) -> None:
        """Read nothing yet; `gpu` is None on a CPU worker."""
        self._torch, self._gpu = torch, gpu
        self._expires = 0.0
        self._values: tuple[int | None, float | None] = (None, None)

    def read(self) -> tuple[int | None, float | None]:
        """Return (utilisation, memory), at most a second old."""
        if self._gpu is not None and time.monotonic() >= self._expires:
            self._values = (attempt(self._utilisation), attempt(self._memory))
            self._expires = time.monotonic() + self.LIFETIME_S
        return self._values

    def _utilisation(self) -> int:
        return int(self._torch.cuda.utilization(self._gpu))  # needs the package nvidia-ml-py

    def _memory(self) -> float:
        free, total = self._torch.cuda.mem_get_info(self._gpu)
        return round(int(total - free) / 1e9, 3)


class TextHandler(ABC):
    """A TorchServe handler for a model that takes texts; a subclass says how to load it and how to predict."""

    WARM_UP_TEXT = "The first request pays for lazy initialisation, so it is not a client's."
    WARM_UP_ROUNDS = 3
    EXIT_DELAY_S = 1.0

    @abstractmethod
    def load(self, model_dir: Path, device: str) -> None:
        """Load the model from the unpacked archive onto `device` ("cpu" or "cuda:N"). `self.torch` is imported."""

    @abstractmethod
    def predict(self, texts: Sequence[str]) -> Sequence[object]:
        """Return one JSON-serialisable prediction a text, in order. Runs in inference mode."""

    def initialize(self, context: Context) -> None:
        """Load and warm up the model; TorchServe calls this once in each worker."""
        started = time.monotonic()
        self.torch = importlib.import_module("torch")
        self.metrics = context.metrics
        manifest = (context.manifest or {}).get("model", {})
        model_dir = Path(context.system_properties["model_dir"])
        self.gpu: int | None = context.system_properties.get("gpu_id")
        self.figures = GpuFigures(self.torch, self.gpu)
        settings = context.model_yaml_config or {}
        self.limit = int(settings.get("max_text_characters", os.environ.get(MAX_TEXT_VARIABLE, MAX_TEXT_CHARACTERS)))
        self.context_lost = False
        self.identity: dict[str, str | int | None] = {
            "model": context.model_name,
            "model_version": manifest.get("modelVersion"),
            "weights_sha256": None,
            "gpu_index": self.gpu,
        }
        try:
            if manifest.get("serializedFile"):
                self.identity["weights_sha256"] = sha256(model_dir / manifest["serializedFile"])
            device = self._device()
            self.load(model_dir, device)
            loaded = time.monotonic()
            for _ in range(self.WARM_UP_ROUNDS):
                self._run([self.WARM_UP_TEXT])
        except Exception as error:
            self._emit("ts_model_load_failures_total", 1, "count", "COUNTER")
            log("model_load_failed", **self.identity, cuda_error_code=cuda_error_code(error), error=describe(error))
            raise
        self._emit("ts_model_loads_total", 1, "count", "COUNTER")
        log(
            "model_loaded",
            **self.identity,
            device=device,
            load_seconds=round(loaded - started, 3),
            warmup_seconds=round(time.monotonic() - loaded, 3),
        )

    def handle(self, data: Sequence[Mapping[str, object]], context: Context) -> list[str]:
        """Answer a batch: one JSON document a request, statuses set one by one, nothing raised.

        TorchServe turns any exception into 503, which its clients also get for a full queue, and fails the whole batch.
        """
        started = time.monotonic()
        answers: dict[int, str] = {}
        texts: dict[int, str] = {}
        for index, row in enumerate(data):
            context.set_response_content_type(index, "application/json")
            try:
                texts[index] = read_text(row, self.limit)
            except RequestError as error:
                answers[index] = self._refuse(context, index, error)
        if texts:
            try:
                answers |= self._answer(texts, started)
            except Exception as error:
                failure = self._failure(error)
                for index in texts:
                    log(
                        "inference_failed",
                        request_id=request_id(context, index),
                        **self.identity,
                        cuda_error_code=cuda_error_code(error),
                        error=describe(error),
                    )
                    answers[index] = self._refuse(context, index, failure)
        return [answers[index] for index in range(len(data))]

    def _device(self) -> str:
        """Bind the worker to its GPU before anything allocates, so that it holds one CUDA context and no other."""
        if self.gpu is None:
            return "cpu"
        if not self.torch.cuda.is_available():
            raise RuntimeError(
                f"TorchServe gave this worker GPU {self.gpu}, which torch {self.torch.__version__} cannot use; install "
                "a build of torch for the host's driver, or set number_of_gpu=0 to serve from the CPU"
            )
        self.torch.cuda.set_device(self.gpu)
        return f"cuda:{self.gpu}"

    def _run(self, texts: Sequence[str]) -> Sequence[object]:
        with self.torch.inference_mode():
            predictions = self.predict(texts)
        if len(predictions) != len(texts):
            raise ValueError(f"predict returned {len(predictions)} predictions for {len(texts)} texts")
        return predictions

    def _answer(self, texts: Mapping[int, str], started: float) -> dict[int, str]:
        if self.context_lost:
            raise RuntimeError("the CUDA context was lost by an earlier request; the worker is being replaced")
        predictions = self._run(list(texts.values()))
        utilisation, memory = self.figures.read()
        latency_ms = round((time.monotonic() - started) * 1000, 3)
        answers = {
            index: json.dumps(
                {
                    "prediction": prediction,
                    "latency_ms": latency_ms,
                    "gpu_util_pct": utilisation,
                    "memory_used_gb": memory,
                },
                allow_nan=False,
            )
            for index, prediction in zip(texts, predictions, strict=True)
        }
        self._emit("ts_inference_latency_ms", latency_ms, "ms", "GAUGE")
        # TorchServe's buckets are fixed, 0.005 to 10: they fit latencies in seconds, and percentiles need a histogram.
        self._emit("ts_inference_latency_seconds", latency_ms / 1000, "s", "HISTOGRAM")
        if utilisation is not None:
            self._emit("ts_gpu_util_pct", utilisation, "percent", "GAUGE")
        if memory is not None:
            self._emit("ts_memory_used_gb", memory, "GB", "GAUGE")
        return answers

    def _failure(self, error: Exception) -> RequestError:
        """Choose what the client learns of a failure, and give back what can be given back."""
        if is_out_of_memory(error):
            gc.collect()
            if self.gpu is not None:
                attempt(self.torch.cuda.empty_cache)
            message = "the model ran out of memory; send the request again in a moment or send less text"
            return RequestError(HTTPStatus.SERVICE_UNAVAILABLE, "OutOfMemory", message)
        if cuda_error_code(error) in CONTEXT_LOST and not self.context_lost:
            self.context_lost = True
            # TorchServe starts a new worker in its place; the delay lets this answer out.
            leave = threading.Timer(self.EXIT_DELAY_S, os._exit, [1])
            leave.daemon = True
            leave.start()
        message = "the prediction failed; the host's log has the cause under this request's X-Request-ID"
        return RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, "PredictionFailed", message)

    @staticmethod
    def _refuse(context: Context, index: int, error: RequestError) -> str:
        context.set_response_status(int(error.status), error.status.phrase, index)
        return json.dumps(error.body())

    def _emit(self, name: str, value: float, unit: str, kind: str) -> None:
        """Hand TorchServe a metric; one that its metrics_config does not declare is dropped there.

        A metrics configuration that does not fit costs the metrics, never a request.
        """
        if self.metrics is None:
            return
        try:
            kinds = importlib.import_module("ts.metrics.metric_type_enum").MetricTypes
            label = importlib.import_module("ts.metrics.dimension").Dimension
            version = label("ModelVersion", str(self.identity["model_version"]))
            self.metrics.add_metric(name, value, unit, None, [version], kinds[kind])
        except Exception as error:
            self.metrics = None
            log("metrics_disabled", **self.identity, metric=name, error=describe(error))
