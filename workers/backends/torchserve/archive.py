"""An unpacked archive as a worker reads it: MANIFEST.json, the model's YAML file, and the configuration's parameters.

The poller checked the archive when it unpacked it; a worker reads only the parts that a handler sees.
"""

import json
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

from shoal.errors import InvalidArgumentError
from shoal.model_config import sequences
from shoal.workers.backends import parameters
from shoal.workers.backends.backend import BackendModel

MANIFEST = os.path.join("MAR-INF", "MANIFEST.json")
#: The most processes that may run one handler together (ours).
MAX_PROCESSES = 64
_FLAGS = {"true": True, "false": False}


class SequenceHeaders(NamedTuple):
    """The names of the HTTP headers for sequences: in a request, the sequence's id and whether the sequence begins with
    the request; in a response, whether the sequence has ended."""

    id: str = "ts_request_sequence_id"
    start: str = "ts_request_sequence_start"
    end: str = "ts_request_sequence_end"


class Launch(NamedTuple):
    """The processes that run a handler together (ranks.py)."""

    num_processes: int
    shares_batches: bool  # True: every process gets each batch; False: only the first process
    num_threads: int  # threads of OpenMP in each process


@dataclass(frozen=True, slots=True)
class Archive:
    """One version of a model as its handler finds it."""

    name: str
    directory: str  # absolute path of the unpacked archive
    manifest: dict[str, Any] | None  # MANIFEST.json; None: the directory has none
    handler: str  # as the manifest or the registration gives it: "handler.py:entry"
    envelope: str  # the name of a request envelope; "": none
    yaml_config: dict[str, Any]
    batch_size: int
    decodes_inputs: bool  # whether bodies of JSON or text are decoded, by their content types
    limits_image_pixels: bool
    is_decoupled: bool  # a response may come in parts
    is_async: bool  # `handle` is a coroutine function
    is_continuous: bool  # continuous batching: unfinished requests are executed again, with new ones
    is_sequential: bool  # requests belong to sequences, which the handler may end
    sequence_headers: "SequenceHeaders"
    metrics: list[Any]  # of metrics.yaml; for each its kind, name, unit and names of dimensions
    launch: Launch | None  # None: one process runs the handler


def open_archive(model: BackendModel) -> Archive:
    """The archive that a model's version directory holds. Raises InvalidArgumentError for a manifest or YAML file that
    cannot be read, and if no handler is named."""
    directory = os.path.abspath(model.version_dir)
    manifest = _manifest(directory)
    described: dict[str, Any] = (manifest or {}).get("model") or {}
    handler = model.parameter("ts_handler") or described.get("handler") or ""
    if not handler:
        raise InvalidArgumentError(
            f"model '{model.name}' has no handler: name one in 'model.handler' of {MANIFEST}, when the model is "
            "registered, or as the parameter 'ts_handler'"
        )
    yaml_config = _yaml_config(directory, described.get("configFile") or "")
    policy = model.config.get("model_transaction_policy") or {}
    return Archive(
        name=described.get("modelName") or model.name,
        directory=directory,
        manifest=manifest,
        handler=str(handler),
        envelope=model.parameter("ts_service_envelope") or "",
        yaml_config=yaml_config,
        batch_size=parameters.whole_number(model, "ts_batch_size") or max(model.config["max_batch_size"], 1),
        decodes_inputs=_flag(model, "ts_decode_input_request"),
        limits_image_pixels=_flag(model, "ts_limit_max_image_pixels"),
        is_decoupled=bool(policy.get("decoupled")),
        is_async=yaml_config.get("asyncCommunication") is True,
        is_continuous=yaml_config.get("continuousBatching") is True and _is_iterative(model),
        is_sequential=sequences.batching(model.config) is not None,
        sequence_headers=SequenceHeaders(
            *[
                model.parameter(f"ts_header_key_sequence_{field}") or usual
                for field, usual in SequenceHeaders()._asdict().items()
            ]
        ),
        metrics=json.loads(model.parameter("ts_metrics") or "[]"),
        launch=_launch(model, yaml_config),
    )


def _launch(model: BackendModel, yaml_config: dict[str, Any]) -> Launch | None:
    """The processes of a handler that needs several; None if one process runs it. Raises InvalidArgumentError if the
    model's other settings allow only one."""
    torchrun, kind = yaml_config.get("torchrun"), yaml_config.get("parallelType")
    if not isinstance(torchrun, dict) or kind not in ("pp", "tp", "pptp"):
        return None
    number, num_threads = torchrun.get("nproc-per-node", 1), torchrun.get("OMP_NUMBER_THREADS", 1)
    if type(number) is not int or not 1 <= number <= MAX_PROCESSES or type(num_threads) is not int or num_threads < 1:
        raise InvalidArgumentError(
            f"'torchrun' of model '{model.name}' must have whole numbers: nproc-per-node from 1 to {MAX_PROCESSES}, "
            f"OMP_NUMBER_THREADS from 1 on, got: {number!r}, {num_threads!r}"
        )
    others = [key for key in ("asyncCommunication", "continuousBatching", "sequenceBatching") if yaml_config.get(key)]
    if number > 1 and others:
        raise InvalidArgumentError(f"model '{model.name}' has 'torchrun' and '{others[0]}', which do not go together")
    return Launch(number, kind != "pp", num_threads) if number > 1 else None


def _is_iterative(model: BackendModel) -> bool:
    """True if the configuration lets a request be executed again and again; otherwise raises InvalidArgumentError."""
    is_iterative: bool = (sequences.batching(model.config) or {}).get("iterative_sequence", False)
    if not is_iterative or not (model.config.get("model_transaction_policy") or {}).get("decoupled"):
        raise InvalidArgumentError(
            f"model '{model.name}' has 'continuousBatching: true' in its YAML file: its config.pbtxt must have "
            "'sequence_batching { iterative_sequence: true oldest { ... } }' and "
            "'model_transaction_policy { decoupled: true }'"
        )
    return is_iterative


def _manifest(directory: str) -> dict[str, Any] | None:
    path = os.path.join(directory, MANIFEST)
    try:
        with open(path, "rb") as file:
            manifest = json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"the manifest '{path}' cannot be read: {error}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("model", {}), dict):
        raise InvalidArgumentError(f"the manifest '{path}' must be a JSON object with an object 'model'")
    return manifest


def _yaml_config(directory: str, name: str) -> dict[str, Any]:
    """The YAML file that the manifest names; {} if it names none, or the file is empty or missing."""
    if not name:
        return {}
    from ts.utils.util import get_yaml_config  # PyYAML is imported only for a model that has such a file

    path = os.path.join(directory, os.path.basename(name))
    try:
        read = get_yaml_config(path)
    except FileNotFoundError:
        return {}
    except ModuleNotFoundError as error:
        raise InvalidArgumentError(f"'{path}' cannot be read: {error}. Install it with: pip install pyyaml") from error
    except Exception as error:
        raise InvalidArgumentError(f"'{path}' is no YAML file: {error}") from error
    if not isinstance(read, dict):
        raise InvalidArgumentError(f"'{path}' must hold a mapping of keys to values, got {type(read).__name__}")
    return read


def _flag(model: BackendModel, key: str) -> bool:
    return parameters.flag(model, key, model.parameter(key), _FLAGS, "'true' or 'false'", default=True)
