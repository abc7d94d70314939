"""model-config.yaml, the settings that an archive brings along, and other untrusted YAML. Read by PyYAML's safe
loader, in the poller.

A key of the wrong type is logged and ignored, as TorchServe does; keys that are not TorchServe's belong to the handler.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.model_config import files

_log = logging.getLogger(__name__)

_MAX_BYTES = 256 << 10
#: The most aliases and merges (`<<`) in a file, more than settings need: merges of merges grow exponentially in PyYAML.
_MAX_ALIASES, _MAX_MERGES = 100, 4
#: Limits that no settings need, and that no file without aliases can exceed in number of values.
_MAX_INTEGER_BITS, _MAX_VALUES = 64, 1 << 18

#: Settings that are integers → the least value that is accepted.
_INTEGERS = {
    "minWorkers": 0, "maxWorkers": 0, "batchSize": 1, "maxBatchDelay": 0, "responseTimeout": 1, "startupTimeout": 1,
    "maxRetryTimeoutInSec": 1, "clientTimeoutInMills": 0, "jobQueueSize": 1, "parallelLevel": 1,
    "sequenceMaxIdleMSec": 0, "sequenceTimeoutMSec": 0, "maxNumSequence": 1, "maxSequenceJobQueueSize": 1,
}  # fmt: skip
_BOOLEANS = frozenset({"useJobTicket", "useVenv", "continuousBatching", "sequenceBatching", "asyncCommunication"})
_WORDS = {"deviceType": ("cpu", "gpu"), "parallelType": ("pp", "tp", "pptp", "custom")}


class YamlError(ValueError):
    """A model-config.yaml cannot be used; the message is the reason."""


def read_yaml_config(path: Path) -> Mapping[str, Any]:
    """The settings in a file that are TorchServe's own and of the right type, by TorchServe's keys; none for an empty
    file. Raises YamlError for a file that is no mapping in YAML."""
    return _checked(read_mapping(path), path.name)


def read_mapping(path: Path) -> Mapping[Any, Any]:
    """The mapping in an untrusted YAML file; an empty one for an empty file. Raises YamlError."""
    import yaml  # here: most archives have no such file, and the import costs 15 ms

    name = path.name
    try:
        raw = files.read(path, _MAX_BYTES + 1)
    except OSError as error:
        raise YamlError(f"'{name}' cannot be read: {error.strerror or error}") from error
    if len(raw) > _MAX_BYTES:
        raise YamlError(f"'{name}' is larger than {_MAX_BYTES} bytes")
    try:
        text = raw.decode("utf-8-sig")
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the loader of LibYAML, which is as safe and faster
        tokens = list(yaml.scan(text, Loader=loader))
        num_merges = sum(isinstance(token, yaml.ScalarToken) and token.value == "<<" for token in tokens)
        if sum(isinstance(token, yaml.AliasToken) for token in tokens) > _MAX_ALIASES or num_merges > _MAX_MERGES:
            raise YamlError(f"'{name}' has more than {_MAX_ALIASES} aliases or {_MAX_MERGES} merged mappings")
        document = yaml.load(text, Loader=loader)
        _num_values(document, name, {})
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise YamlError(f"'{name}' is no YAML: {' '.join(str(error).split())}") from error
    except (ValueError, OverflowError) as error:
        if isinstance(error, YamlError):
            raise
        raise YamlError(f"'{name}' has a value that cannot be read: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise YamlError(f"'{name}' is no mapping of keys to values")
    return document


def _num_values(value: Any, name: str, known: dict[int, int]) -> int:
    """The number of values in a value when its aliases are written out, as in JSON, error messages and the log. `known`
    has the number of each collection by the collection's identity, 0 for those that contain this value.

    Raises YamlError for a collection that contains itself or has too many values, and for a number that is too large:
    Python refuses to print one of thousands of digits.
    """
    if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        raise YamlError(f"'{name}' has a whole number of more than {_MAX_INTEGER_BITS} bits")
    if not isinstance(value, (dict, list, tuple, set)):
        return 1
    if id(value) not in known:
        known[id(value)] = 0
        parts = (*value, *value.values()) if isinstance(value, dict) else value
        known[id(value)] = 1 + sum([_num_values(each, name, known) for each in parts])
    elif not known[id(value)]:
        raise YamlError(f"'{name}' has a value that contains itself")
    if known[id(value)] > _MAX_VALUES:
        raise YamlError(f"'{name}' has more than {_MAX_VALUES} values, aliases written out")
    return known[id(value)]


def _checked(document: Mapping[Any, Any], name: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, value in document.items():
        expected = _fault(key, value)
        if expected is None:
            settings[key] = value
        elif expected:
            _log.warning("'%s' of '%s' is ignored: expected %s, got %r", key, name, expected, value)
    least, most = settings.get("minWorkers"), settings.get("maxWorkers")
    if (least is None) != (most is None) or (least is not None and least > most):
        _log.warning("minWorkers and maxWorkers of '%s' are ignored: both are needed, the latter not less", name)
        settings.pop("minWorkers", None)
        settings.pop("maxWorkers", None)
    return settings


def _fits_json(value: Any) -> bool:
    """Whether a value's keys, at all depths, are texts or numbers, which can become keys in JSON."""
    if isinstance(value, dict):
        return all(isinstance(key, (str, int, float)) and _fits_json(each) for key, each in value.items())
    return not isinstance(value, list) or all(map(_fits_json, value))


def _fault(key: Any, value: Any) -> str | None:
    """The expected form of a value that is wrong; None where it is right, "" for a key that is not TorchServe's."""
    if key in _INTEGERS:
        least = _INTEGERS[key]
        is_right = isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 31
        return None if is_right else f"a whole number from {least} on"
    if key in _BOOLEANS:
        return None if isinstance(value, bool) else "true or false"
    if key in _WORDS:
        return None if value in _WORDS[key] else " or ".join(_WORDS[key])
    if key == "deviceIds":
        is_right = isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)
        return None if is_right else "a list of whole numbers"
    if key == "torchrun":
        return None if isinstance(value, dict) and _fits_json(value) else "a mapping, its keys texts"
    return ""
