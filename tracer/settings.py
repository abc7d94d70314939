"""What is traced and where it goes: a model's settings over the runtime's over those of the command line. Pure.

    command line ◄── the runtime's, for all models ◄── one model's

Each layer says what it changes; what it does not say, it takes from the one before. Whatever replaces a setting makes a
new one (`revision`), which counts and collects from its beginning, as in Triton. The supervisor owns them.
"""

import itertools
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from shoal.errors import InternalError, InvalidArgumentError, UnsupportedError
from shoal.messages.shared import TraceSettingFields

TRITON, OPENTELEMETRY = "triton", "opentelemetry"
#: Levels, of which a setting may have several.
OFF, TIMESTAMPS, TENSORS = 0, 1, 2
_LEVELS = {"TIMESTAMPS": TIMESTAMPS, "TENSORS": TENSORS}
#: The name under which the runtime's settings stand: no model has it.
GLOBAL = ""

_MAX_UINT32, _MAX_INT32 = 2**32 - 1, 2**31 - 1
# A number as C++'s std::stoi reads it: leading white space and a sign are allowed, and the rest is ignored.
_STOI = re.compile(r"[ \t\n\v\f\r]*([+-]?)0*([0-9]+)", re.ASCII)

#: What one layer says: fields of TraceSetting; None takes back what it said before.
Changes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TraceSetting:
    """What holds for the requests of a model. All defaults are Triton's."""

    level: int = OFF  # or TIMESTAMPS, TENSORS or both
    rate: int = 1000  # every rate-th request; 0: none but those that bring a context
    count: int = -1  # traces still to be collected; -1: without end
    log_frequency: int = 0  # traces in a file; 0: all in one
    file: str = ""
    mode: str = TRITON
    revision: int = 0  # which of all settings this is

    @property
    def fault(self) -> str:
        """Why nothing can be traced like this, in Triton's words; "" where it can."""
        if self.rate == 0 and self.mode == TRITON:
            return "sample rate must be non-zero"
        if not self.file and self.mode == TRITON:
            return "trace file name is not given"
        return ""

    @property
    def fields(self) -> TraceSettingFields:
        """The fields, as messages carry them."""
        return cast(TraceSettingFields, asdict(self))

    @property
    def is_on(self) -> bool:
        """Whether anything is traced."""
        return self.level != OFF and not self.fault


class TraceSettings:
    """All of them. `at_start` is what the command line says."""

    def __init__(self, at_start: TraceSetting) -> None:
        self._revisions = itertools.count(1)
        self._at_start = replace(at_start, revision=0)
        # Changed by change and collected: what a layer says, and what that comes to. A model that says nothing has
        # neither.
        self._layers: dict[str, Changes] = {GLOBAL: {}}
        self._settings = {GLOBAL: self._new(self._at_start, {})}

    @property
    def in_force(self) -> Mapping[str, TraceSetting]:
        """By model; GLOBAL for those that are not named."""
        return self._settings

    def of(self, model: str) -> TraceSetting:
        """What holds for the model."""
        return self._settings.get(model, self._settings[GLOBAL])

    def change(self, model: str, changes: Changes) -> None:
        """Take in what a client wants, for a model or for GLOBAL.

        Raises InvalidArgumentError, and changes nothing, where that could not be traced.
        """
        said = {**self._layers.get(model, {}), **changes}
        layer = {field: value for field, value in said.items() if value is not None}
        if model == GLOBAL:
            layers = {**self._layers, GLOBAL: layer}
            settings = {GLOBAL: self._new(self._at_start, layer)}
            # What they take from this one is new.
            others = {name: self._new(settings[GLOBAL], said) for name, said in layers.items() if name != GLOBAL}
            settings |= others
        else:
            layers = {name: said for name, said in {**self._layers, model: layer}.items() if said or name == GLOBAL}
            settings = {name: setting for name, setting in self._settings.items() if name in layers}
            if layer:
                settings[model] = self._new(self._settings[GLOBAL], layer)
        for setting in settings.values():
            if setting.level != OFF and setting.fault:
                raise InvalidArgumentError(f"Attempting to set invalid trace setting :{setting.fault}")
        self._layers, self._settings = layers, settings

    def _new(self, fallback: TraceSetting, layer: Changes) -> TraceSetting:
        return replace(fallback, **layer, revision=next(self._revisions))

    def collected(self, revision: int, count: int) -> bool:
        """So many traces have been collected under a setting. True where they were its last."""
        for name, setting in self._settings.items():
            if setting.revision != revision or setting.count <= 0:
                continue
            left = max(0, setting.count - count)
            self._settings[name] = replace(setting, count=left)
            if "count" in self._layers[name]:
                self._layers[name]["count"] = left  # the next setting that it goes into counts on from there
            return left == 0
        return False


def read_changes(body: Any) -> Changes:
    """What a client's settings object asks for; other members are ignored, as in Triton.

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
    """The settings object that clients get; `options` are the exporter's."""
    described: dict[str, Any] = {
        "trace_level": [word for word, level in _LEVELS.items() if setting.level & level] or ["OFF"],
        "trace_rate": str(setting.rate),
        "trace_count": str(setting.count),
    }
    if setting.mode == TRITON:
        described |= {"log_frequency": str(setting.log_frequency), "trace_file": setting.file}
    described["trace_mode"] = setting.mode
    return {**described, **(options if setting.mode == OPENTELEMETRY else {})}


def level_of(word: str) -> int:
    """The level that a word means; OFF for an unknown word."""
    return _LEVELS.get(word, OFF)


def _level(_member: str, value: Any) -> int | None:
    if type(value) is not list:
        raise InternalError("attempt to access JSON non-array as array")
    words = [_text(each) for each in value]
    if "OFF" in words and len(words) > 1:
        raise InvalidArgumentError("Expect only one trace level 'OFF' is specified")
    return OFF if words == ["OFF"] else sum({level_of(word) for word in words}) or None  # None: nothing was understood


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
    return int(found[1] + found[2][:20])  # int() refuses thousands of digits; twenty are beyond any bound


def _within(low: int, high: int, number: int, member: str, text: str) -> int:
    if not low <= number <= high:
        raise InvalidArgumentError(f"Unable to parse '{member}', value is out of range [ {low}, {high} ], got: {text}")
    return number


def _text(value: Any) -> str:
    if type(value) is not str:
        raise InternalError("attempt to access JSON non-string as string")
    return value


#: Member of the settings object → the field, and how it is read; in the order in which Triton looks at them.
_MEMBERS = {
    "trace_level": ("level", _level),
    "trace_rate": ("rate", _uint32),
    "trace_count": ("count", _count),
    "log_frequency": ("log_frequency", _uint32),
}
