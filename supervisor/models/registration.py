"""A registered version of TorchServe's store, and what follows from its configuration. Pure; used in the supervisor."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.environments.wanted import is_installation_failure
from shoal.errors import ShoalError
from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter
from shoal.repository.found import FoundModel, FoundVersion
from shoal.torchserve_errors import torchserve_error, torchserve_fault

#: A version's text that is a whole number, perhaps with zeros behind points: "2", "2.0".
_NUMBER = re.compile(r"([1-9][0-9]{0,8})(?:\.0+)*", re.ASCII)


@dataclass(slots=True, eq=False)
class Registration:
    """A registered version."""

    text: str  # the version's name in TorchServe, such as "1.0"
    number: int  # the integer that Shoal gives this version
    url: str
    directory: Path  # the unpacked archive, or the registered folder
    modified_ns: int
    archive: str  # the name of a download in the store; "" where the archive was there
    config: Config
    workers: int  # the number of workers; 0: the version is registered, not loaded
    most: int  # max_worker of the registration or the last scaling, for descriptions: nothing scales up to it
    handler: str = ""  # the handler that the registration named; "": the archive's own
    workflow: str = ""  # the workflow of which the model is a node; "": none
    request: dict[str, Any] = field(default_factory=dict)  # the registration's fields of StoreRequest


def number_for(text: str, taken: Iterable[int]) -> int:
    """The integer of a version: the number that its text stands for ("3", "3.0") if that is not taken, else the first
    number above all that are taken."""
    numbers = set(taken)
    found = _NUMBER.fullmatch(text)
    if found is not None and int(found[1]) not in numbers:
        return int(found[1])
    return max(numbers, default=0) + 1


def with_default(config: Config, *, is_default: bool) -> Config:
    """A configuration with the parameter `ts_default` where its version is the default one, and without it
    where it is not."""
    others = {key: value for key, value in config["parameters"].items() if key != "ts_default"}
    return {**config, "parameters": {**others, "ts_default": {"string_value": "true"}} if is_default else others}


def merged(name: str, rows: Iterable[Registration]) -> FoundModel:
    """One model with all registered versions, each with its own configuration."""
    versions = {row.number: FoundVersion(row.directory, row.modified_ns, row.config) for row in rows}
    first = versions[min(versions)]
    assert first.config is not None
    return FoundModel(name, first.directory, first.config, {}, versions, 0)


def said(config: Config, key: str) -> str:
    """The text of a parameter that every registered version has."""
    text = parameter(config, key)
    assert text is not None, key
    return text


def readable(error: ShoalError) -> ShoalError:
    """An error without TorchServe's status and type in front of its sentence."""
    fault = torchserve_fault(str(error))
    return error if fault is None else type(error)(fault.message)


def failed_start(name: str, text: str, error: ShoalError) -> ShoalError:
    """TorchServe's error for a version whose workers do not come up, with the reason behind its sentence."""
    reason = readable(error)
    if is_installation_failure(str(reason)):
        sentence = f"Custom pip package installation failed for model {name}. {reason}"
        return torchserve_error(400, "ModelException", sentence)
    sentence = f"Failed to start workers for model {name} version: {text}. {reason}"
    is_exhausted = any(word in str(reason) for word in ("MemoryError", "CUDA"))
    return torchserve_error(507 if is_exhausted else 500, "InternalServerException", sentence)
