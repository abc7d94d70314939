"""A server's options, made of the values of config.properties. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from shoal.cli.torchserve.metrics_file import MetricsFile, read_metrics_file
from shoal.cli.torchserve.properties import PropertiesError
from shoal.shared_settings import UNIX
from shoal.store_settings import StoreSettings
from shoal.torchserve_settings import METRICS_MODES, TorchServeSettings

#: TorchServe's default ports of addresses without a port: for http and for https.
_PORTS = {"inference": (80, 443), "management": (8081, 8444), "metrics": (8082, 8445)}
#: Numeric settings of a version in `models=` or `model_snapshot=`; values below 1 are ignored.
_NUMBERS = ("minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "responseTimeout", "startupTimeout")
#: Of these, the ones that may be 0 in a snapshot: a version may have no workers, and a batch no delay.
_ZEROS = frozenset({"minWorkers", "maxWorkers", "maxBatchDelay"})
#: The longest path of a Unix socket: the 108 bytes of sun_path less the final zero.
_MAX_PATH_BYTES = 107
#: The seconds that stand for "no limit" if debug=true: the longest timeout that a model's configuration allows.
_NO_LIMIT_S = 3600


class Address(NamedTuple):
    """The address of a listener: host and port, or `unix:` and a path with port 0."""

    host: str
    port: int
    is_https: bool = False


class Rows(NamedTuple):
    """The contents of `models=` or `model_snapshot=`: settings by model and version, and `NAME=FILE` of each
    row with a marName."""

    settings: Mapping[str, Mapping[str, Mapping[str, Any]]]
    load_models: tuple[str, ...]


def settings_of_options(values: Mapping[str, Any], token_file: str) -> tuple[dict[str, Any], list[str]]:
    """Fields of ServerOptions, and warnings about settings that are not honoured. `values` has a value for every key
    of config.properties; `token_file` "" means no tokens.

    Raises PropertiesError for values that the server cannot start with.
    """
    warnings: list[str] = []
    fields: dict[str, Any] = {"store": store_settings(values, warnings), "allow_torchserve": True}
    for api, ports in _PORTS.items():
        address = read_address(f"{api}_address", values[f"{api}_address"], *ports)
        fields |= {f"torchserve_{api}_address": address.host, f"torchserve_{api}_port": address.port}
        if address.is_https:
            cert, key = tls_files(values, f"{api}_address={values[f'{api}_address']}")
            https = (*fields.get("torchserve_https", ()), api)
            fields |= {"torchserve_https": https, "http_server_cert": cert, "http_server_key": key}
    fields |= grpc_settings(values)
    if values["metrics_mode"] not in METRICS_MODES:
        warnings.append(
            f"metrics_mode is '{values['metrics_mode']}', must be one of {', '.join(METRICS_MODES)}: log is used"
        )
    declared = read_metrics_file(Path(values["metrics_config"])) if values["metrics_config"] else None
    fields["store"] = replace(fields["store"], environment={**fields["store"].environment, **_for_handlers(declared)})
    fields["torchserve"] = TorchServeSettings(
        max_request_size=values["max_request_size"],
        enable_model_api=values["enable_model_api"],
        metrics_mode=values["metrics_mode"] if values["metrics_mode"] in METRICS_MODES else "log",
        enable_metrics_api=values["enable_metrics_api"],
        system_metrics=not values["disable_system_metrics"],
        server_metrics=None if declared is None else tuple(each.name for each in declared.of_server),
        handler_metrics=None
        if declared is None or values["model_metrics_auto_detect"]
        else tuple((each.name, each.kind, each.unit) for each in declared.of_handlers),
        open_inference_protocol=values["ts_open_inference_protocol"],
        token_file=token_file,
        token_expiration_min=max(1, values["token_expiration_min"]),
        cors_allowed_origin=values["cors_allowed_origin"] or "",
        cors_allowed_methods=values["cors_allowed_methods"] or "",
        cors_allowed_headers=values["cors_allowed_headers"] or "",
        default_workers=values["default_workers_per_model"],
    )
    fields["install_requirements"] = values["install_py_dep_per_model"]
    return fields, warnings


def _for_handlers(declared: MetricsFile | None) -> dict[str, str]:
    """The handlers' metrics that metrics.yaml declares, as the parameter `ts_metrics` of every model."""
    return {"ts_metrics": json.dumps(declared.of_handlers)} if declared is not None and declared.of_handlers else {}


def grpc_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ServerOptions for TorchServe's gRPC. Raises PropertiesError for TLS without certificate_file
    and private_key_file."""
    fields: dict[str, Any] = {}
    for api in ("inference", "management"):
        fields[f"torchserve_grpc_{api}_address"] = values[f"grpc_{api}_address"]
        fields[f"torchserve_grpc_{api}_port"] = values[f"grpc_{api}_port"]
    fields["grpc_max_connection_age"] = values["grpc_inference_max_connection_age_ms"]
    fields["grpc_max_connection_age_grace"] = values["grpc_inference_max_connection_age_grace_ms"]
    if values["enable_grpc_ssl"]:
        certificate, key = tls_files(values, "enable_grpc_ssl=true")
        fields |= {"grpc_use_ssl": True, "grpc_server_cert": certificate, "grpc_server_key": key}
    return fields


def tls_files(values: Mapping[str, Any], why: str) -> tuple[str, str]:
    """The files of the certificate and of the certificate's key. Raises PropertiesError, which says `why` they are
    needed, if they are not given."""
    certificate, key = values["certificate_file"], values["private_key_file"]
    if certificate and key:
        return certificate, key
    sentence = f"{why} needs certificate_file and private_key_file, in PEM format"
    if values["keystore"]:
        sentence += ": a keystore is not read; 'keytool -importkeystore' and 'openssl pkcs12' convert one"
    raise PropertiesError(sentence)


def store_settings(values: Mapping[str, Any], warnings: list[str]) -> StoreSettings:
    """The settings of the model store. Raises PropertiesError without a model store, or for an invalid pattern or
    invalid JSON."""
    if values["model_store"] is None:
        raise PropertiesError("Missing mandatory parameter --model-store")
    rows = read_rows(values, warnings)
    loaded = rows.load_models if values["model_snapshot"] else tuple(filter(None, _split(values["load_models"])))
    patterns = tuple(filter(None, _split(values["allowed_urls"])))
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise PropertiesError(f"allowed_urls has '{pattern}', which is no regular expression: {error}") from error
    is_debug = values["debug"]
    return StoreSettings(
        Path(values["model_store"]),
        load_models=loaded,
        workflow_store=values["workflow_store"] or "",
        allowed_urls=patterns,
        models=rows.settings,
        models_are_snapshots=bool(values["model_snapshot"]),
        default_workers_per_model=1 if is_debug else max(0, values["default_workers_per_model"]),
        default_response_timeout=_NO_LIMIT_S if is_debug else max(1, values["default_response_timeout"]),
        default_startup_timeout=_NO_LIMIT_S if is_debug else max(1, values["default_startup_timeout"]),
        job_queue_size=max(1, values["job_queue_size"]),
        default_service_handler=values["default_service_handler"] or "",
        service_envelope=values["service_envelope"] or "",
        decode_input_request=values["decode_input_request"],
        install_py_dep_per_model=values["install_py_dep_per_model"],
        limit_max_image_pixels=values["limit_max_image_pixels"],
        number_of_gpu=_count(values["number_of_gpu"]),
        environment=environment_of(values),
    )


def environment_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Properties that workers need, as parameters of every model."""
    said = {"ts_blacklist_env_vars": values["blacklist_env_vars"] or ""}
    for end in ("id", "start", "end"):
        name = values[f"ts_header_key_sequence_{end}"]
        said[f"ts_header_key_sequence_{end}"] = "" if name == f"ts_request_sequence_{end}" else name
    return {key: value for key, value in said.items() if value}


def read_address(key: str, text: str, http_port: int, https_port: int) -> Address:
    """The address of a listener. Raises PropertiesError for a text that is no address."""
    scheme = text.partition(":")[0]
    if scheme == "unix":
        path = "/" + text.removeprefix(UNIX).lstrip("/")
        if not text.startswith(f"{UNIX}/") or len(path.encode()) > _MAX_PATH_BYTES or "\0" in path:
            raise PropertiesError(
                f"{key} is '{text}', which is no path of a Unix socket: write it as unix:/run/torchserve.sock, with at "
                f"most {_MAX_PATH_BYTES} bytes"
            )
        return Address(UNIX + path, 0)
    try:
        parts = urlsplit(text)
        host, port, path = parts.hostname, parts.port, parts.path
    except ValueError:  # brackets without an IPv6 address, or a port that is no number
        host, port, path = None, None, ""
    if scheme not in ("http", "https") or not host or path not in ("", "/"):
        raise PropertiesError(f"{key} is '{text}', which is no address: write it as http://127.0.0.1:8080")
    is_https = scheme == "https"
    default_port = https_port if is_https else http_port
    return Address(host, default_port if port is None else port, is_https)


def read_rows(values: Mapping[str, Any], warnings: list[str]) -> Rows:
    """The contents of `model_snapshot=` where it is given, else of `models=`. Raises PropertiesError for invalid
    JSON."""
    key = "model_snapshot" if values["model_snapshot"] else "models"
    text = values[key]
    if not text:
        return Rows({}, ())
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PropertiesError(f"{key} is no JSON: {error}") from error
    models = document.get("models", {}) if key == "model_snapshot" and isinstance(document, dict) else document
    if not isinstance(models, dict):
        raise PropertiesError(f"{key} is no JSON object of models")
    settings: dict[str, dict[str, dict[str, Any]]] = {}
    archives: list[str] = []
    for name, versions in models.items():
        for version, row in versions.items() if isinstance(versions, dict) else ():
            if not isinstance(row, dict):
                warnings.append(f"{key} of model '{name}' version '{version}' is ignored: it is no JSON object")
                continue
            where, least = f"{key} of model '{name}' version '{version}'", 0 if key == "model_snapshot" else 1
            settings.setdefault(name, {})[version] = _row(row, where, warnings, least)
            if isinstance(row.get("marName"), str) and row["marName"]:
                archives.append(f"{name}={row['marName']}")
            elif key == "model_snapshot":
                warnings.append(f"{key} of model '{name}' version '{version}' has no marName: it is not loaded")
    return Rows(settings, tuple(archives))


def _row(row: Mapping[str, Any], where: str, warnings: list[str], least: int) -> dict[str, Any]:
    """The settings of a version. Numbers below 1 are left out, as TorchServe does with a 0 in `models=`; fields in
    _ZEROS may be as small as `least`."""
    taken: dict[str, Any] = {}
    for field in _NUMBERS:
        value = row.get(field)
        if value is None:
            continue
        lowest = least if field in _ZEROS else 1
        if isinstance(value, int) and not isinstance(value, bool) and value >= lowest:
            taken[field] = value
        else:
            warnings.append(f"{field} of {where} is ignored: it is no whole number from {lowest} on")
    if isinstance(row.get("handler"), str) and row["handler"]:
        taken["handler"] = row["handler"]
    if row.get("defaultVersion") is True:
        taken["defaultVersion"] = True
    return taken


def _split(text: str | None) -> Sequence[str]:
    return () if text is None else text.split(",")


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
