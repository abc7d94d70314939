"""The keys of config.properties: every one of TorchServe's, what its value is, and whether Shoal honours it.

A key is honoured, or its sentence says why it is not needed or what to do instead. Where a key wants a whole number and
its value is none, the default is used, with a warning, as by TorchServe. Pure.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_INTEGER = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)


class Key(NamedTuple):
    """A key of config.properties."""

    name: str
    default: Any  # the value has the default's type; None: the value is a text, and there is no default
    ignored: str = ""  # completes the warning "NAME is ignored: …"; "": the key is honoured
    has_variable: bool = True  # with enable_envvars_config=true, an environment variable overrides the key
    variable: str = ""  # the variable's name; "": TS_ and the key in capitals

    @property
    def environment(self) -> str:
        """The name of the environment variable that overrides the key."""
        upper = self.name.upper()
        return self.variable or (upper if upper.startswith("TS_") else f"TS_{upper}")


_THREADS = "lanes, batcher and workers are processes; --http-process-count of shoal serve adds lanes"
_JAVA = "there is no Java virtual machine"
_TLS = "TLS has its files in PEM format: private_key_file and certificate_file"
_PINNED = "workers are pinned to cores by shoal itself"
_SYSTEM = "figures of the machine are read when /metrics is asked"
_AGE = "connections of both gRPC listeners have the age of grpc_inference_max_connection_age_ms"

KEYS = {
    key.name: key
    for key in (
        Key("inference_address", "http://127.0.0.1:8080"),
        Key("management_address", "http://127.0.0.1:8081"),
        Key("metrics_address", "http://127.0.0.1:8082"),
        Key("grpc_inference_address", "127.0.0.1"),
        Key("grpc_management_address", "127.0.0.1"),
        Key("grpc_inference_port", 7070),
        Key("grpc_management_port", 7071),
        Key("grpc_inference_max_connection_age_ms", 0),
        Key("grpc_inference_max_connection_age_grace_ms", 0),
        Key("grpc_management_max_connection_age_ms", 0, _AGE),
        Key("grpc_management_max_connection_age_grace_ms", 0, _AGE),
        Key("enable_grpc_ssl", False),
        Key("model_store", None),
        Key("load_models", None),
        Key("models", None, has_variable=False),
        Key("model_snapshot", None, has_variable=False),
        Key("default_workers_per_model", 0),
        Key("default_response_timeout", 120),
        Key("default_startup_timeout", 120),
        Key("unregister_model_timeout", 120, "a model that is unregistered answers what it has accepted, then ends"),
        Key("job_queue_size", 100),
        Key("max_request_size", 6_553_500),
        Key("max_response_size", 6_553_500, "an answer may be as large as shared memory has room for; no worker ends"),
        Key("number_of_gpu", None),
        Key("number_of_netty_threads", 0, _THREADS),
        Key("netty_client_threads", 0, _THREADS),
        Key("default_service_handler", None),
        Key("service_envelope", None),
        Key("decode_input_request", True),
        Key("install_py_dep_per_model", False),
        Key("blacklist_env_vars", None),
        Key("allowed_urls", "file://.*|http(s)?://.*"),
        Key("use_env_allowed_urls", False, has_variable=False),
        Key("enable_model_api", False),
        Key("disable_token_authorization", False),
        Key("token_expiration_min", 60, variable="TS_TOKEN_EXPIRATION_TIME_MIN"),
        Key("enable_metrics_api", True),
        Key("metrics_mode", "log"),
        Key("metrics_config", None),
        Key("model_metrics_auto_detect", False),
        Key("disable_system_metrics", False),
        Key("metric_time_interval", 60, _SYSTEM, has_variable=False),
        Key("system_metrics_cmd", "", _SYSTEM, has_variable=False),
        Key("cors_allowed_origin", None),
        Key("cors_allowed_methods", None),
        Key("cors_allowed_headers", None),
        Key("keystore", None, _TLS),
        Key("keystore_pass", "changeit", _TLS),
        Key("keystore_type", "PKCS12", _TLS),
        Key("private_key_file", None),  # these two: for gRPC, and for addresses with https://
        Key("certificate_file", None),
        Key("limit_max_image_pixels", True),
        Key("ts_open_inference_protocol", False),
        Key("ts_header_key_sequence_id", "ts_request_sequence_id"),
        Key("ts_header_key_sequence_start", "ts_request_sequence_start"),
        Key("ts_header_key_sequence_end", "ts_request_sequence_end"),
        Key("workflow_store", None),
        Key("initial_worker_port", 9000, "workers have no ports"),
        Key("initial_distribution_port", 29500, "workers have no ports"),
        Key("debug", False),
        Key("model_server_home", None, _JAVA),
        Key("prefer_direct_buffer", False, "bodies are received into shared memory"),
        Key("async_logging", False, "the log is written by each process itself"),
        Key("use_native_io", True, "there is epoll", has_variable=False),
        Key("io_ratio", 50, "there is one loop for all of a lane's connections", has_variable=False),
        Key("vmargs", None, _JAVA, has_variable=False),
        Key("plugins_path", None, "plugins are Java", has_variable=False),
        Key("cpp_log_config", None, "the C++ backend is not there"),
        Key("ipex_enable", False, _PINNED),
        Key("ipex_gpu_enable", False, _PINNED),
        Key("cpu_launcher_enable", False, _PINNED),
        Key("cpu_launcher_args", None, _PINNED),
        Key("enable_envvars_config", False, has_variable=False),
    )
}
#: The variable that turns the open inference protocol on, by this value alone; it counts without enable_envvars_config,
#: too, as in TorchServe.
_OPEN_INFERENCE = ("TS_OPEN_INFERENCE_PROTOCOL", "oip")


class Values(NamedTuple):
    """The values of all keys, and warnings about keys that were given without effect."""

    values: Mapping[str, Any]
    warnings: tuple[str, ...]


def read_values(given: Mapping[str, str], flags: Mapping[str, str], environ: Mapping[str, str]) -> Values:
    """The value of every key: from the environment (with enable_envvars_config), else from flags, else from the file,
    else its default."""
    warnings = [_unknown(name) for name in given if name not in KEYS]
    has_variables = given.get("enable_envvars_config", "").lower() == "true"
    values: dict[str, Any] = {}
    for key in KEYS.values():
        text = flags.get(key.name, given.get(key.name))
        uses_variable = has_variables and key.has_variable
        if key.name == "allowed_urls":
            uses_variable = given.get("use_env_allowed_urls", "").lower() == "true"
        if uses_variable and key.environment in environ:
            text = environ[key.environment]
        if key.name == "ts_open_inference_protocol":
            name, on = _OPEN_INFERENCE
            text = "true" if environ.get(name) == on else text if name not in environ else "false"
        values[key.name] = key.default if text is None else _value(key, text.strip(), warnings)
        if key.ignored and values[key.name] != key.default:
            warnings.append(f"{key.name} is ignored: {key.ignored}")
    return Values(values, tuple(warnings))


def _value(key: Key, text: str, warnings: list[str]) -> Any:
    if isinstance(key.default, bool):
        return text.lower() == "true"  # as in TorchServe: every other text means false
    if not isinstance(key.default, int):
        return text or key.default
    if _INTEGER.fullmatch(text):
        return int(text)
    warnings.append(f"{key.name} is '{text}', which is no whole number: {key.default} is used")
    return key.default


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, KEYS, n=1)
    return f"{name} is ignored: TorchServe has no such key" + (f"; did you mean '{close[0]}'?" if close else "")
