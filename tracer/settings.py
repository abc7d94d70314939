"""Trace settings: a model's settings over those that clients set for all models at runtime, over the command line's.
Pure.

    command line ◄── clients', for all models ◄── clients', for one model

Each layer has only the fields that it changes; the others are those of the layer before. Every change makes new
settings with new `revision`s. A change for all models begins a count of the command line anew; one that a client has
set goes on where it stood. The supervisor owns the settings.
"""

import itertools
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from shoal.errors import InternalError, InvalidArgumentError, UnsupportedError
from shoal.messages.shared import TraceSettingFields
from shoal.passwords import without_passwords

TRITON, OPENTELEMETRY = "triton", "opentelemetry"
#: Levels, of which a setting may have several.
OFF, TIMESTAMPS, TENSORS = 0, 1, 2
_LEVELS = {"TIMESTAMPS": TIMESTAMPS, "TENSORS": TENSORS}
#: The key of the settings for all models; no model has this name.
GLOBAL = ""

_MAX_UINT32, _MAX_INT32 = 2**32 - 1, 2**31 - 1
# A number as C++'s std::stoi reads it: leading white space and a sign are allowed, and the rest is ignored.
_STOI = re.compile(r"[ \t\n\v\f\r]*([+-]?)0*([0-9]+)", re.ASCII)

#: The fields of TraceSetting that a layer changes; None takes back an earlier change.
Changes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TraceSetting:
    """The trace setting for the requests of a model. All defaults are Triton's."""

    level: int = OFF  # or TIMESTAMPS, TENSORS or both
    rate: int = 1000  # every rate-th request; 0: only requests with a trace context of their own
    count: int = -1  # traces still to be collected; -1: no limit
    log_frequency: int = 0  # traces per file; 0: all in one file
    file: str = ""
    mode: str = TRITON
    revision: int = 0  # increases with each new setting

    @property
    def fault(self) -> str:
        """Why no trace can be made under this setting, in Triton's words; "" where one can."""
        if self.rate == 0 and self.mode == TRITON:
            return "sample rate must be non-zero"
        if not self.file and self.mode == TRITON:
            return "trace file name is not given"
        return ""

    @property
    def fields(self) -> TraceSettingFields:
        return cast(TraceSettingFields, asdict(self))

    @property
    def is_on(self) -> bool:
        return self.level != OFF and not self.fault


class TraceSettings:
    """The trace settings of all models. `at_start` is the command line's."""

    def __init__(self, at_start: TraceSetting) -> None:
        self._revisions = itertools.count(1)
        self._at_start = replace(at_start, revision=0)
        # Changed by change and collected.
        #: By model and for GLOBAL, the changes by clients.
        self.layers: dict[str, Changes] = {GLOBAL: {}}
        #: By model, the setting in force; GLOBAL for models that are not named.
        self.in_force = {GLOBAL: self._new(self._at_start, {})}

    def of(self, model: str) -> TraceSetting:
        return self.in_force.get(model, self.in_force[GLOBAL])

    def change(self, model: str, changes: Changes) -> None:
        """Apply a client's changes, for a model or for GLOBAL.

        Raises InvalidArgumentError, and changes nothing, if tracing would be on in a setting that has a `fault`.
        """
        said = {**self.layers.get(model, {}), **changes}
        layer = {field: value for field, value in said.items() if value is not None}
        if model == GLOBAL:
            layers = {**self.layers, GLOBAL: layer}
            settings = {GLOBAL: self._new(self._at_start, layer)}
            # Models' settings are made again, since they build on this one.
            others = {name: self._new(settings[GLOBAL], said) for name, said in layers.items() if name != GLOBAL}
            settings |= others
        else:
            layers = {name: said for name, said in {**self.layers, model: layer}.items() if said or name == GLOBAL}
            settings = {name: setting for name, setting in self.in_force.items() if name in layers}
            if layer:
                settings[model] = self._new(self.in_force[GLOBAL], layer)
        for setting in settings.values():
            if setting.level != OFF and setting.fault:
                raise InvalidArgumentError(f"Attempting to set invalid trace setting :{setting.fault}")
        self.layers, self.in_force = layers, settings

    def _new(self, fallback: TraceSetting, layer: Changes) -> TraceSetting:
        return replace(fallback, **layer, revision=next(self._revisions))

    def collected(self, revision: int, count: int) -> bool:
        """Count traces collected under a setting. Returns True if these traces exhaust the setting's count."""
        for name, setting in self.in_force.items():
            if setting.revision != revision or setting.count <= 0:
                continue
            left = max(0, setting.count - count)
            self.in_force[name] = replace(setting, count=left)
            if "count" in self.layers[name]:
                self.layers[name]["count"] = left  # the next setting made of this layer counts on from there
            return left == 0
        return False


def read_changes(body: Any) -> Changes:
    """The changes in a client's settings object; unknown members are ignored, as in Triton.

    Raises ShoalErrors with Triton's sentences.
    """
    if type(body) is not dict:
        raise InternalError("attempt to get members for non-object")
    if "trace_file" in body:
        raise UnsupportedError("trace file location can not be updated through network protocol")
    changes: Changes = {}
    for member, (field, read) in _MEMBERS.items():
        if member not in body:
            continue
        if body[member] is None:
            changes[field] = None
        elif (value := read(member, body[member])) is not None:
            changes[field] = value
    return changes


def describe(setting: TraceSetting, options: Mapping[str, str]) -> dict[str, Any]:
    """The settings object for clients; `options`, the exporter's, are added in OpenTelemetry's mode with *** in place
    of passwords."""
    described: dict[str, Any] = {
        "trace_level": [word for word, level in _LEVELS.items() if setting.level & level] or ["OFF"],
        "trace_rate": str(setting.rate),
        "trace_count": str(setting.count),
    }
    if setting.mode == TRITON:
        described |= {"log_frequency": str(setting.log_frequency), "trace_file": setting.file}
    described["trace_mode"] = setting.mode
    shown = {name: without_passwords(value) for name, value in options.items()}
    return {**described, **(shown if setting.mode == OPENTELEMETRY else {})}


def level_of(word: str) -> int:
    """The level of this name; OFF for an unknown name."""
    return _LEVELS.get(word, OFF)


def _level(_member: str, value: Any) -> int | None:
    if type(value) is not list:
        raise InternalError("attempt to access JSON non-array as array")
    words = [_text(each) for each in value]
    if "OFF" in words and len(words) > 1:
        raise InvalidArgumentError("Expect only one trace level 'OFF' is specified")
    return OFF if words == ["OFF"] else sum({level_of(word) for word in words}) or None  # None: no word was understood


def _uint32(member: str, value: Any) -> int:
    return _within(0, _MAX_UINT32, _number(member, value), member, value)


def _count(member: str, value: Any) -> int:
    number = _number(member, value)
    if ~_MAX_INT32 <= number < -1:
        raise InvalidArgumentError(f"Unable to parse '{member}'. Expecting value >= -1, got:{value}")
    return _within(-1, _MAX_INT32, number, member, value)


def _number(member: str, value: Any) -> int:
    found = _STOI.match(_text(value))
    if found is None:
        raise InvalidArgumentError(f"Unable to parse '{member}', got: {value}")
    return int(found[1] + found[2][:20])  # int() refuses thousands of digits; twenty exceed any bound


def _within(low: int, high: int, number: int, member: str, text: str) -> int:
    if not low <= number <= high:
        raise InvalidArgumentError(f"Unable to parse '{member}', value is out of range [ {low}, {high} ], got: {text}")
    return number


def _text(value: Any) -> str:
    if type(value) is not str:
        raise InternalError("attempt to access JSON non-string as string")
    return value


#: Member of the settings object → the field, and the function that reads it; in Triton's order.
_MEMBERS = {
    "trace_level": ("level", _level),
    "trace_rate": ("rate", _uint32),
    "trace_count": ("count", _count),
    "log_frequency": ("log_frequency", _uint32),
}
