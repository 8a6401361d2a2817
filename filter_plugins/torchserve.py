"""Turn the variables of the role torchserve into what TorchServe reads, refusing what it would misunderstand.

Source of the keys: ConfigManager.java of TorchServe 0.12.0, the last release. TorchServe ignores unknown keys in silence,
stops on some illegal values, and starts with others; here each is an error that names the key.
"""

from __future__ import annotations

import difflib
import importlib
import re
from ipaddress import AddressValueError, IPv4Address
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ansible.module_utils
from ansible.errors import AnsibleFilterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# ansible.cfg makes module_utils/ known to modules; a filter, which runs on the controller, has to find it itself.
ansible.module_utils.__path__.append(str(Path(__file__).parents[1] / "module_utils"))
model_archive = importlib.import_module("ansible.module_utils.model_archive")

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
    "grpc_management_address", "inference_address", "keystore", "keystore_type", "load_models",
    "management_address", "metrics_address", "metrics_config", "metrics_mode", "model_store", "models",
    "private_key_file", "service_envelope", "system_metrics_cmd", "token_expiration_min", "ts_header_key_sequence_end",
    "ts_header_key_sequence_id", "ts_header_key_sequence_start", "workflow_store",
}  # fmt: skip
# TorchServe does not read these, or they do harm: measured, see the remedy.
REFUSED = {
    "keystore_pass": "a run with --diff would show it; write TS_KEYSTORE_PASS=... into /etc/torchserve/override.env (mode 0600)",
    "batch_size": "TorchServe ignores it here; set batch_size of the model in torchserve_models",
    "max_batch_delay": "TorchServe ignores it here; set max_batch_delay_ms of the model in torchserve_models",
    "max_idle_time": "it does not exist in 0.12; sequenceMaxIdleMSec belongs in the archive's model-config.yaml",
    "use_env_allowed": "the key is called use_env_allowed_urls",
    "model_snapshot": "snapshots replace the whole configuration at the next start; models are declared in torchserve_models",
}

# Option: least value, and why.
LEAST = {
    "torchserve_token_lifetime_minutes": (3, "it is renewed before it ends, and who has just read it must still get through"),
    "torchserve_netty_threads": (1, "they take the requests"),
    "torchserve_job_queue_size": (1, "with 0 TorchServe starts and then refuses every model"),
    "torchserve_max_text_characters": (1, "each request would be answered with 413"),
    "torchserve_ready_timeout": (1, "models need time to load"),
}
PORTS = [f"torchserve_{name}_port" for name in ("inference", "management", "metrics", "grpc_inference", "grpc_management")]
ADDRESSES = ["torchserve_inference_address", "torchserve_metrics_address"]
# Option: the whole of its text, and what is expected.
FORMS = {
    "torchserve_java_heap": ("[1-9][0-9]*[mMgG]", "a size such as 512m or 4g"),
    "torchserve_memory_max": (
        r"|infinity|(?=.*[1-9])[0-9]+(\.[0-9]+)?[KMGT]|([1-9][0-9]?|100)%",
        "a size such as 24G, a share such as 80%, infinity, or nothing: systemd sets no limit where it can't read one",
    ),
    "torchserve_cuda_visible_devices": (
        "|[0-9]+(,[0-9]+)*",
        "numbers of GPUs such as 0 or 0,1: TorchServe reads each part as a number, and a UUID or a blank stops it at its start",
    ),
}


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


def _properties(config: Mapping[str, Any], extra: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the lines of config.properties, and what is wrong with the keys of `extra`."""
    faults = []
    lines = []
    known = INTEGER | BOOLEAN | TEXT
    for key, value in {**extra, **config}.items():
        if key in extra and key in config:
            faults.append(f"{key}: the role sets it; use its own variable instead (see the role's README)")
        elif key in REFUSED:
            faults.append(f"{key}: {REFUSED[key]}")
        elif key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            faults.append(f"{key}: TorchServe 0.12 reads no such key{f'; did you mean {near[0]}?' if near else ''}")
        else:
            try:
                lines.append(f"{key}={check_value(key, value)}")
            except ValueError as error:
                faults.append(f"{key}: {error}")
    return sorted(lines), [f"torchserve_config: {fault}" for fault in faults]


def torchserve_properties(config: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> str:
    """Return the lines of config.properties.

    Args:
        config: what the role sets.
        extra: what the user adds (torchserve_config); it may not repeat a key of `config`.

    Raises:
        AnsibleFilterError: names every key that is wrong, with what was expected.
    """
    lines, faults = _properties(config, extra or {})
    if faults:
        raise AnsibleFilterError("; ".join(faults))
    return "\n".join(lines)


def _origin(source: str) -> str:
    return "sample" if source == "sample" else "url" if re.match(r"https?://", source) else "controller"


def torchserve_archives(models: list[dict[str, Any]], folder: str) -> list[dict[str, Any]]:
    """Say where each declared model's archive comes from and where it lies on the host.

    Args:
        models: torchserve_models, in which torchserve_faults found nothing.
        folder: the host's folder for archives that were fetched or built.

    Returns:
        The models, `archive` being its path on the host, with `source` (the original) and `origin` (sample | url | controller).
    """
    result = []
    for model in models:
        source = str(model["archive"])
        origin = _origin(source)
        # Named after the weights too, so that a corrected checksum fetches again and an unchanged one never does.
        suffix = "" if origin == "sample" else f"-{str(model['weights_sha256'])[:12]}"
        path = f"{folder}/{model['name']}-{model['version']}{suffix}.mar"
        result.append({**model, "archive": path, "source": source, "origin": origin})
    return result


def _number_fault(value: object, least: int, most: int | None = None) -> str | None:
    """Say that a value, which may be text (from -e), is no whole number in the range."""
    number = int(str(value)) if re.fullmatch("[0-9]+", str(value)) else -1
    if number >= least and (most is None or number <= most):
        return None
    return f"is {value!r}, expected a whole number {f'of {least} or more' if most is None else f'from {least} to {most}'}"


def _address_fault(text: str, own: Iterable[str]) -> str | None:
    try:
        address = IPv4Address(text)
    except AddressValueError:
        return f"is {text!r}, expected an IPv4 address in digits: TorchServe can't bind IPv6, and a name may change its meaning"
    if address.is_unspecified or address.is_multicast or address.is_reserved:
        return f"is {text}, which no client can use, and clients are told it; set the host's own address"
    if own and not address.is_loopback and text not in own:
        return f"is {text}, which is no address of this host; it has {', '.join(sorted(own))}"
    return None


def _model_faults(index: int, model: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with one declared model, and with its archive if that lies on the controller."""
    faults = []
    name, version, source = (str(model[field]) for field in ("name", "version", "archive"))
    weights, origin = model.get("weights_sha256"), _origin(source)
    for field, text in (("name", name), ("version", version)):
        if not model_archive.SAFE_NAME.fullmatch(text):
            faults.append(
                f"{field} is {text!r}, expected letters, digits, '_', '.' and '-' with no two dots in a row, "
                "beginning with a letter or a digit"
            )
        if text.startswith("token"):
            faults.append(
                f"{field} is {text!r}, but TorchServe takes any request with /token in it for one that renews "
                "a token; choose one that does not begin with token"
            )
    if origin == "sample" and name != "text_classifier":
        faults.append("archive sample is a model named text_classifier; use that name, or another archive")
    if origin == "controller" and not source.startswith("/"):
        faults.append(
            f"archive is {source!r}, expected sample, an http(s):// URL, or an absolute path on the controller, "
            "such as {{ inventory_dir }}/models/<file>.mar"
        )
    if origin != "sample" and not weights:
        faults.append("weights_sha256 is missing; take it from the training job or from sha256sum of the weights file")
    if weights and not re.fullmatch(r"[0-9a-f]{64}", str(weights)):
        faults.append(f"weights_sha256 must be 64 lower-case hexadecimal digits, got {weights!r}")
    limits = {option: least for option, (_, least) in model_archive.LIMITS.items() if option in model}
    faults += [f"{option} {fault}" for option, least in limits.items() if (fault := _number_fault(model[option], least))]
    if origin == "controller" and not faults:
        try:
            declared = {"name": name, "version": version, "archive": source, "weights_sha256": str(weights)}
            faults = model_archive.archive_faults(declared, model_archive.read_archive(Path(source)))
        except model_archive.ArchiveError as error:
            faults = [f"archive {source} on the controller {error}"]
    return [f"torchserve_models[{index}] ({name}): {fault}" for fault in faults]


def torchserve_faults(settings: Mapping[str, Any], properties: Mapping[str, Any], addresses: Iterable[str] = ()) -> list[str]:
    """Return all that is wrong with a host's settings, before anything is changed: what types and choices can't say.

    Args:
        settings: the variables torchserve_*, all of the role's options.
        properties: what the role writes into config.properties.
        addresses: the host's IPv4 addresses; none if they are not known.
    """
    faults = [f"{name} {fault}: {why}" for name, (least, why) in LEAST.items() if (fault := _number_fault(settings[name], least))]
    faults += [
        f"{name} {fault}: the service is not root, and a lower port is for a proxy before it"
        for name in PORTS
        if (fault := _number_fault(settings[name], 1024, 65535))
    ]
    faults += [
        f"{one} and {other} are both {settings[one]}; each port needs a number of its own"
        for one, other in combinations(PORTS, 2)
        if str(settings[one]).lstrip("0") == str(settings[other]).lstrip("0")
    ]
    faults += [f"{name} {fault}" for name in ADDRESSES if (fault := _address_fault(str(settings[name]), addresses))]
    if settings["torchserve_auth"] == "disabled" and not str(settings["torchserve_inference_address"]).startswith("127."):
        faults.append(
            f"torchserve_auth is disabled while torchserve_inference_address is {settings['torchserve_inference_address']}: "
            "anybody who reaches that address could use the models; set torchserve_auth to token, or listen on 127.0.0.1"
        )
    faults += [
        f"{name} is {str(settings[name])!r}, expected {expected}"
        for name, (form, expected) in FORMS.items()
        if not re.fullmatch(form, str(settings[name]))
    ]
    faults += _properties(properties, settings["torchserve_config"])[1]
    models = settings["torchserve_models"]
    keys = [(str(model["name"]), str(model["version"])) for model in models]
    for index, model in enumerate(models):
        faults += _model_faults(index, model)
        if keys[index] in keys[:index]:
            faults.append(f"torchserve_models[{index}] ({keys[index][0]}): version {keys[index][1]} stands more than once")
    return faults


class FilterModule:
    """Filters of the role torchserve."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name and function."""
        return {
            "torchserve_properties": torchserve_properties,
            "torchserve_archives": torchserve_archives,
            "torchserve_faults": torchserve_faults,
        }
