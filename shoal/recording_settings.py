"""`--record` and `--record-config`: which requests are recorded, and how much of them is kept. Pure."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from shoal.errors import InvalidArgumentError

_MIB = 1 << 20
_UNITS = {"": 1, "KIB": 1 << 10, "MIB": _MIB, "GIB": 1 << 30, "TIB": 1 << 40, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SECONDS = {"": 1.0, "S": 1.0, "M": 60.0, "H": 3600.0, "D": 86400.0}
#: The least value of max_bytes, the limit of a recording's size (ours: sixteen files of a mebibyte).
MIN_BYTES = 16 * _MIB
#: How long a client may have a model be recorded, in s (ours).
MAX_LIVE_S = 7 * 86400.0


class RecordRule(NamedTuple):
    """Which requests are recorded: those to models whose names match a pattern, the share `sample` of their batches.
    Failed requests are recorded whatever the share. A value, which msgpack carries to the batcher."""

    models: Sequence[str] = ("*",)  # patterns as of a shell
    sample: float = 1.0

    def concerns(self, model: str) -> bool:
        """Whether the rule is for this model."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)


class RecordLimits(NamedTuple):
    """How much of a recording is kept, and which parts of requests are left out."""

    max_bytes: int = 2 << 30  # beyond this, the oldest file is removed
    max_age_s: float = 7 * 86400.0  # an older file is removed; 0: no limit
    redact: Sequence[str] = ()  # names of tensors, `parameters.NAME`, or `id`
    headers: Sequence[str] = ()  # names, in lower case, of the headers or metadata that are recorded


def read_settings(settings: Sequence[tuple[str, str]]) -> tuple[RecordRule, RecordLimits]:
    """The rule and the limits of --record-config. Raises InvalidArgumentError for a setting that there is not, or a
    value that does not fit."""
    rule, limits = RecordRule(), RecordLimits()
    for name, text in settings:
        if name == "models":
            rule = rule._replace(models=_names(text))
        elif name == "sample":
            rule = rule._replace(sample=share(text))
        elif name == "max-size":
            limits = limits._replace(max_bytes=size(text))
        elif name == "max-age":
            limits = limits._replace(max_age_s=duration_s(text))
        elif name == "redact":
            limits = limits._replace(redact=_names(text))
        elif name == "headers":
            limits = limits._replace(headers=_header_names(text))
        else:
            raise InvalidArgumentError(
                f"--record-config: there is no setting '{name}'; there are models, sample, max-size, max-age, redact "
                "and headers"
            )
    return rule, limits


def _names(text: str) -> tuple[str, ...]:
    return tuple([each.strip() for each in text.split(",") if each.strip()])


def _header_names(text: str) -> tuple[str, ...]:
    names = tuple([each.lower() for each in _names(text)])
    for name in names:
        if re.fullmatch(r"[!#$%&'*+.^_`|~0-9a-z-]+", name) is None:  # RFC 9110, 5.6.2: a token
            raise InvalidArgumentError(f"--record-config: '{name[:40]}' is no name of a header")
    return names


def share(text: str) -> float:
    """A share, `0.1` or `10%`. Raises InvalidArgumentError."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)(%?)", text.strip())
    value = -1.0 if found is None else float(found[1]) / (100 if found[2] else 1)
    if not 0 <= value <= 1:
        raise InvalidArgumentError(f"a sample is a number from 0 to 1, as 0.1, or 10%; got '{text[:40]}'")
    return value


def size(text: str) -> int:
    """A number of bytes, `2GiB`. Raises InvalidArgumentError."""
    value = _with_unit(text, _UNITS)
    if value is None or value < MIN_BYTES:
        raise InvalidArgumentError(f"a recording's size is at least {MIN_BYTES >> 20}MiB, as 2GiB; got '{text[:40]}'")
    return int(value)


def duration_s(text: str) -> float:
    """A time in seconds, `10m`; units are s, m, h and d. Raises InvalidArgumentError."""
    value = _with_unit(text, _SECONDS)
    if value is None:
        raise InvalidArgumentError(f"a time is a number with s, m, h or d, as 10m; got '{text[:40]}'")
    return value


def _with_unit(text: str, units: dict[str, Any]) -> float | None:
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) *([A-Za-z]*)", text.strip())
    if found is None or found[2].upper() not in units:
        return None
    return float(found[1]) * float(units[found[2].upper()])
