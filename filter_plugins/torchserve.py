"""Turn the variables of the role torchserve into what TorchServe reads, refusing what it would misunderstand.

Source of the keys: ConfigManager.java of TorchServe 0.12.0, the last release. TorchServe ignores unknown keys in silence,
stops on some illegal values, and starts with others; here each is an error that names the key.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError

if TYPE_CHECKING:
    from collections.abc import Callable

INTEGER = {
    "default_response_timeout", "default_startup_timeout", "default_workers_per_model",
    "grpc_inference_max_connection_age_grace_ms", "grpc_inference_max_connection_age_ms", "grpc_inference_port",
    "grpc_management_max_connection_age_grace_ms", "grpc_management_max_connection_age_ms", "grpc_management_port",
    "initial_distribution_port", "initial_worker_port", "io_ratio", "job_queue_size", "max_request_size",
    "max_response_size", "metric_time_interval", "netty_client_threads", "number_of_gpu", "number_of_netty_threads",
    "unregister_model_timeout",
}  # fmt: skip
BOOLEAN = {
    "async_logging", "cpu_launcher_enable", "debug", "decode_input_request", "disable_system_metrics",
    "disable_token_authorization", "enable_envvars_config", "enable_grpc_ssl", "enable_metrics_api", "enable_model_api",
    "install_py_dep_per_model", "ipex_enable", "ipex_gpu_enable", "limit_max_image_pixels", "model_metrics_auto_detect",
    "prefer_direct_buffer", "ts_open_inference_protocol", "use_env_allowed_urls", "use_native_io",
}  # fmt: skip
TEXT = {
    "allowed_urls", "blacklist_env_vars", "certificate_file", "cors_allowed_headers", "cors_allowed_methods",
    "cors_allowed_origin", "cpp_log_config", "cpu_launcher_args", "default_service_handler", "grpc_inference_address",
    "grpc_management_address", "inference_address", "keystore", "keystore_pass", "keystore_type", "load_models",
    "management_address", "metrics_address", "metrics_config", "metrics_mode", "model_store", "models",
    "private_key_file", "service_envelope", "system_metrics_cmd", "token_expiration_min", "ts_header_key_sequence_end",
    "ts_header_key_sequence_id", "ts_header_key_sequence_start", "workflow_store",
}  # fmt: skip
# TorchServe's name for these is read nowhere, or does harm: measured, see the remedy.
IGNORED = {
    "batch_size": "TorchServe ignores it here; set batch_size of the model in torchserve_models",
    "max_batch_delay": "TorchServe ignores it here; set max_batch_delay_ms of the model in torchserve_models",
    "max_idle_time": "it does not exist in 0.12; sequenceMaxIdleMSec belongs in the archive's model-config.yaml",
    "use_env_allowed": "the key is called use_env_allowed_urls",
    "model_snapshot": "snapshots replace the whole configuration at the next start; models are declared in torchserve_models",
}

# The same as in module_utils/model_archive.py, which filters can't import: a bad name shall be told before a host is touched.
SAFE_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9_.-]*")


def check_value(key: str, value: Any) -> str:  # noqa: ANN401 -- any YAML value
    """Return the value as TorchServe reads it; ValueError says what is expected instead."""
    if key in BOOLEAN:
        if not isinstance(value, bool):
            raise ValueError(f"expected true or false, got {value!r}")
        return str(value).lower()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"expected {'a whole number of 0 or more' if key in INTEGER else 'text'}, got {value!r}")
    text = str(value)
    if key in INTEGER and not re.fullmatch(r"[0-9]+", text):
        raise ValueError(f"expected a whole number of 0 or more, got {value!r}")
    if key == "job_queue_size" and int(text) == 0:
        raise ValueError("expected 1 or more: with 0 TorchServe starts and then refuses every model")
    if text != text.strip() or "\n" in text:
        # A blank at the end turns "true " into false and "5 " into a fatal error.
        raise ValueError(f"expected one line without blanks at its ends, got {value!r}")
    if key == "metrics_mode" and text not in ("prometheus", "log", "legacy"):
        raise ValueError(f"expected prometheus, log or legacy, got {value!r}")
    return text.replace("\\", "\\\\")  # Java reads a backslash as the begin of an escape


def torchserve_properties(config: dict[str, Any], extra: dict[str, Any] | None = None) -> str:
    """Return the lines of config.properties.

    Args:
        config: what the role sets.
        extra: what the user adds (torchserve_config); it may not repeat a key of `config`.

    Raises:
        AnsibleFilterError: names every key that is wrong, with what was expected.
    """
    faults = []
    lines = []
    known = INTEGER | BOOLEAN | TEXT
    for key, value in {**(extra or {}), **config}.items():
        if key in (extra or {}) and key in config:
            faults.append(f"{key}: the role sets it; use its own variable instead (see the role's README)")
        elif key in IGNORED:
            faults.append(f"{key}: {IGNORED[key]}")
        elif key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            faults.append(f"{key}: TorchServe 0.12 reads no such key{f'; did you mean {near[0]}?' if near else ''}")
        else:
            try:
                lines.append(f"{key}={check_value(key, value)}")
            except ValueError as error:
                faults.append(f"{key}: {error}")
    if faults:
        raise AnsibleFilterError("torchserve_config: " + "; ".join(faults))
    return "\n".join(sorted(lines))


def torchserve_archives(models: list[dict[str, Any]], folder: str) -> list[dict[str, Any]]:
    """Say where each declared model's archive comes from and where it lies on the host.

    Args:
        models: torchserve_models.
        folder: the host's folder for archives that were fetched or built.

    Returns:
        The models, `archive` being its path on the host, with `source` (the original) and `origin` (sample | url | controller).

    Raises:
        AnsibleFilterError: names every model and field that is wrong.
    """
    faults = []
    result = []
    keys = [(str(model["name"]), str(model["version"])) for model in models]
    for index, model in enumerate(models):
        name, version, source = (str(model[field]) for field in ("name", "version", "archive"))
        weights = model.get("weights_sha256")
        label = f"torchserve_models[{index}] ({name})"
        if keys.count((name, version)) > 1:
            faults.append(f"{label}: version {version} stands more than once")
        for field, text in (("name", name), ("version", version)):
            if not SAFE_NAME.fullmatch(text):
                faults.append(
                    f"{label}: {field} is {text!r}, expected letters, digits, '_', '.' and '-' with no two dots in a row, "
                    "beginning with a letter or a digit"
                )
            if text.startswith("token"):
                faults.append(
                    f"{label}: {field} is {text!r}, but TorchServe takes any request with /token in it for one that renews "
                    "a token; choose one that does not begin with token"
                )
        if source != "sample" and not weights:
            faults.append(
                f"{label}: weights_sha256 is missing; take it from the training job or from sha256sum of the weights file"
            )
        if weights and not re.fullmatch(r"[0-9a-f]{64}", str(weights)):
            faults.append(f"{label}: weights_sha256 must be 64 lower-case hexadecimal digits, got {weights!r}")
        origin = "sample" if source == "sample" else "url" if re.match(r"https?://", source) else "controller"
        # Named after the weights too, so that a corrected checksum fetches again and an unchanged one never does.
        path = f"{folder}/{name}-{version}.mar" if origin == "sample" else f"{folder}/{name}-{version}-{str(weights)[:12]}.mar"
        result.append({**model, "archive": path, "source": source, "origin": origin})
    if faults:
        raise AnsibleFilterError("; ".join(faults))
    return result


class FilterModule:
    """Filters of the role torchserve."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name and function."""
        return {"torchserve_properties": torchserve_properties, "torchserve_archives": torchserve_archives}
