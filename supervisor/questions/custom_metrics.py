"""Metrics that models define: workers report changes, which are added up over all instances for /metrics.

Counts and observations of a dead instance stay in the total. A gauge is the value set last, plus what instances have
added since; the additions of a dead instance are subtracted, or a gauge of requests in flight would never return to 0.
A model's series are removed with the model. Pure but for the log; runs in the supervisor.

A report is read whole before it is applied: user code may have written it, and a malformed one must neither end the
supervisor nor break the page for all other models.
"""

import logging
import math
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

_log = logging.getLogger(__name__)

#: The most series of one model (ours). A worker has a bound of its own, but instances may each have other labels.
MAX_SERIES = 1000
#: The most buckets of one series, and the most characters of labels, or of a family's name and description (ours). The
#: same bounds hold in a worker.
MAX_BUCKETS, MAX_TEXT_CHARS = 200, 4096
#: The most that one bucket may count in one report: msgpack cannot carry a total of 2^64 or more.
_MAX_COUNT = 1 << 32
#: Prometheus's rules for names of metrics and labels.
_NAME, _LABEL = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*"), re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Counter:
    total: float = 0.0

    @staticmethod
    def read(change: Any) -> float:
        return float(change)

    def add(self, _instance: int, change: float) -> None:
        self.total += change

    def leave(self, _instance: int) -> None:
        """Keep what an ended instance has counted."""

    def values(self) -> float:
        return self.total


@dataclass(slots=True)
class _Gauge:
    value: float = 0.0
    added: dict[int, float] = field(default_factory=dict)  # what each instance has added since the value was set

    @staticmethod
    def read(change: Any) -> tuple[float | None, float]:
        value, added = change
        return None if value is None else float(value), float(added)

    def add(self, instance: int, change: tuple[float | None, float]) -> None:
        value, added = change
        if value is not None:
            self.value, self.added = value, {}
        self.added[instance] = self.added.get(instance, 0.0) + added

    def leave(self, instance: int) -> None:
        self.added.pop(instance, None)

    def values(self) -> float:
        return self.value + sum(self.added.values())


@dataclass(slots=True)
class _Histogram:
    bounds: tuple[float, ...] = ()
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    @staticmethod
    def read(change: Any) -> tuple[tuple[float, ...], list[int], float]:
        bounds, counts, total = change
        bounds, counts = tuple(map(float, bounds)), list(map(int, counts))
        _check(len(bounds) <= MAX_BUCKETS and len(counts) == len(bounds) + 1, "number of buckets")
        _check(all(lower < upper for lower, upper in pairwise((*bounds, math.inf))), "order of bounds")
        _check(all(0 <= count < _MAX_COUNT for count in counts), "counts")
        return bounds, counts, float(total)

    def add(self, _instance: int, change: tuple[tuple[float, ...], list[int], float]) -> None:
        bounds, counts, total = change
        if not self.counts:
            self.bounds, self.counts = bounds, [0] * len(counts)
        if self.bounds == bounds:  # as in Triton, the first report decides the buckets
            self.counts = [before + more for before, more in zip(self.counts, counts, strict=True)]
            self.total += total

    def leave(self, _instance: int) -> None:
        """Keep what an ended instance has observed."""

    def values(self) -> tuple[tuple[float, ...], list[int], float]:
        return self.bounds, self.counts, self.total


_KINDS: dict[str, type[_Counter | _Gauge | _Histogram]] = {
    "counter": _Counter, "gauge": _Gauge, "histogram": _Histogram,
}  # fmt: skip


class _Key(NamedTuple):
    family: str
    labels: Labels


class _Report(NamedTuple):
    """An instance's report on one family."""

    name: str
    kind: str
    description: str
    changes: list[tuple[Labels, Any]]  # what the kind's `read` returns; None for a series that has ended


@dataclass(slots=True)
class _Family:
    kind: str
    description: str
    series: dict[Labels, _Counter | _Gauge | _Histogram] = field(default_factory=dict)


class CustomMetrics:
    """All metric families that models have made, and which models and instances use which series."""

    def __init__(self, reserved: Collection[str]) -> None:
        """`reserved` are the names of the server's own families."""
        self._reserved = reserved
        # Changed by add, leave and forget: families by name; the series that each model, and each instance, uses.
        self._families: dict[str, _Family] = {}
        self._of_model: dict[int, set[_Key]] = {}
        self._of_instance: dict[int, set[_Key]] = {}
        self._has_complained: set[tuple[int, str]] = set()

    def add(self, model_id: int, instance: int, families: Any) -> None:
        """Apply an instance's report of changes: for each family, as msgpack carries it, [name, kind, description,
        [[labels, change], …]]; the change None ends a series."""
        self._of_instance.setdefault(instance, set())
        try:
            reports = [_read(*family) for family in families]
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            self._complain(model_id, "metrics", f"what instance {instance} says is no report of any, by {error}")
            return
        for name, kind, description, changes in reports:
            if not self._may_have(model_id, name, kind):
                continue
            for labels, change in changes:
                key = _Key(name, labels)
                if change is None:
                    self._end(model_id, instance, key)
                elif self._has_room(model_id, key):
                    self._of_instance.setdefault(instance, set()).add(key)
                    family = self._families.setdefault(name, _Family(kind, description))
                    family.series.setdefault(labels, _KINDS[kind]()).add(instance, change)

    def has_reported(self, instance: int) -> bool:
        """Whether this running instance has ever sent a report."""
        return instance in self._of_instance

    def _end(self, model_id: int, instance: int, key: _Key) -> None:
        """Remove an instance from a series that it has deleted; another model's part in the series stays."""
        keys = self._of_instance[instance]
        if key not in keys:
            return
        keys.remove(key)
        self._leave(instance, key)
        if not any(key in others for others in self._of_instance.values()):
            self._of_model.get(model_id, set()).discard(key)
            self._drop({key})

    def _may_have(self, model_id: int, name: str, kind: str) -> bool:
        """Whether a model may have a family of this name and kind."""
        if name in self._reserved:
            self._complain(model_id, f"metric family '{name}'", "the server has a family of that name itself")
            return False
        family = self._families.get(name)
        if family is not None and family.kind != kind:
            why = f"another model has made it a {family.kind}, not a {kind}"
            self._complain(model_id, f"metric family '{name}'", why)
            return False
        return True

    def _has_room(self, model_id: int, key: _Key) -> bool:
        keys = self._of_model.setdefault(model_id, set())
        if key not in keys and len(keys) >= MAX_SERIES:
            why = f"a model may have {MAX_SERIES} series, this one has more"
            self._complain(model_id, f"metric family '{key.family}'", why)
            return False
        keys.add(key)
        return True

    def _complain(self, model_id: int, what: str, why: str) -> None:
        if (model_id, what) not in self._has_complained:
            self._has_complained.add((model_id, what))
            _log.warning("/metrics does not show all of a model's %s: %s", what, why)

    def leave(self, instance: int) -> None:
        """Remove an ended instance, and its additions to gauges."""
        for key in self._of_instance.pop(instance, ()):
            self._leave(instance, key)

    def _leave(self, instance: int, key: _Key) -> None:
        family = self._families.get(key.family)
        if family is not None and key.labels in family.series:
            family.series[key.labels].leave(instance)

    def forget(self, model_id: int) -> None:
        """Remove the series of a model that is unloaded, except those that another model uses."""
        own = self._of_model.pop(model_id, set())
        self._has_complained = {each for each in self._has_complained if each[0] != model_id}
        self._drop(own)

    def _drop(self, keys: set[_Key]) -> None:
        """Delete those series that no model uses any more."""
        for name, labels in keys.difference(*self._of_model.values()):
            family = self._families.get(name)
            if family is not None and family.series.pop(labels, None) is not None and not family.series:
                del self._families[name]

    def values(self) -> list[list[Any]]:
        """[name, kind, description, [[labels, figures], …]] of each family, as msgpack can carry it."""
        return [
            [name, family.kind, family.description, [[labels, each.values()] for labels, each in family.series.items()]]
            for name, family in sorted(self._families.items())
            if family.series
        ]


def _read(name: Any, kind: Any, description: Any, series: Any) -> _Report:
    """An instance's report on one family. Raises KeyError, OverflowError, TypeError or ValueError if malformed."""
    _check(_NAME.fullmatch(name), "name")
    _check(isinstance(description, str) and len(name) + len(description) <= MAX_TEXT_CHARS, "description")
    read = _KINDS[kind].read
    changes = [(_read_labels(pairs, kind), None if change is None else read(change)) for pairs, change in series]
    return _Report(name, kind, description, changes)


def _read_labels(pairs: Any, kind: str) -> Labels:
    labels = tuple(sorted(dict(pairs).items()))  # each label once
    for name, value in labels:
        _check(_LABEL.fullmatch(name) and isinstance(value, str), "label")
        _check(name != "le" or kind != "histogram", "label")
    _check(sum(len(name) + len(value) for name, value in labels) <= MAX_TEXT_CHARS, "labels")
    return labels


def _check(is_so: object, what: str) -> None:
    if not is_so:
        raise ValueError(f"its {what}")
