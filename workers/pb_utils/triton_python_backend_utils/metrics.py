"""Metrics of a model's own, `pb_utils.MetricFamily`, and the registry that knows what has changed.

Real in any interpreter: the values are this process's. Where a server runs the model it takes the changes and adds them
up over instances (shoal/supervisor/custom_metrics.py). Safe for any thread: the registry's lock guards every series.
"""

import logging
import math
import os
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import Any, ClassVar

from triton_python_backend_utils.arguments import figure, text
from triton_python_backend_utils.errors import TritonModelException

_log = logging.getLogger(__name__)

#: Series of one process that a server hears of (ours): a label that never repeats must not fill anybody's memory. What
#: is beyond works as any other, for this process alone.
MAX_SERIES = 1000
#: Of one series; of its labels, and of a family's name and description (ours).
MAX_BUCKETS, MAX_TEXT_CHARS = 200, 4096

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_NO_FAMILY = "Error when creating MetricFamily: "
_NO_METRIC = "Error when creating Metric: "

Labels = tuple[tuple[str, str], ...]


class _Kind(Enum):
    """What a family measures, in Prometheus's words. Models know it as MetricFamily.MetricKind."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class _Series:
    """The figures of one set of labels: what they are, and what has changed since a server asked. One for each kind."""

    def __init__(self) -> None:
        # Changed under the registry's lock.
        self.value = 0.0

    def take(self) -> Any:
        """The change since the last time, as msgpack can carry it; what shoal/supervisor/custom_metrics.py adds."""
        raise NotImplementedError


class _Counter(_Series):
    def __init__(self) -> None:
        super().__init__()
        self._change = 0.0

    def increment(self, value: float) -> None:
        self.value += value
        self._change += value

    def take(self) -> float:
        change, self._change = self._change, 0.0
        return change


class _Gauge(_Series):
    def __init__(self) -> None:
        super().__init__()
        self._set: float | None = None
        self._change = 0.0  # since it was set, or told

    def increment(self, value: float) -> None:
        self.value += value
        self._change += value

    def set(self, value: float) -> None:
        self.value = self._set = value
        self._change = 0.0

    def take(self) -> tuple[float | None, float]:
        change, self._set, self._change = (self._set, self._change), None, 0.0
        return change


class _Histogram(_Series):
    def __init__(self, bounds: Sequence[float]) -> None:
        super().__init__()
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self._sum += value

    def take(self) -> tuple[tuple[float, ...], list[int], float]:
        change = self.bounds, self._counts, self._sum
        self._counts, self._sum = [0] * len(self._counts), 0.0
        return change


class MetricRegistry:
    """The families of one process, and which of their series have changed."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a log's handler may count, too
        #: Called under the lock by the first change after `take_changes`.
        self.on_change: Callable[[], None] = lambda: None
        # Changed under the lock.
        self._families: dict[str, MetricFamily] = {}
        self._num_series = 0
        self._changed: dict[tuple[str, Labels], _Series] = {}

    def enrol(self, family: "MetricFamily") -> dict[Labels, _Series]:
        """The series of a family, which it shares with every other of its name. Raises where those are of another."""
        with self.lock:
            known = self._families.setdefault(family.name, family)
            if (known.kind, known.description) != (family.kind, family.description):
                raise TritonModelException(
                    f"{_NO_FAMILY}metric family '{family.name}' exists already, as {known.kind.value} with the "
                    f"description '{known.description}'"
                )
            return known.series if known is not family else {}

    def series(self, family: "MetricFamily", labels: Labels, bounds: Sequence[float]) -> _Series:
        """The series of these labels, a new one where there is none."""
        with self.lock:
            found = family.series.get(labels)
            if found is not None:
                return found
            made = _make(family.kind, bounds)
            if self._num_series >= MAX_SERIES:
                if self._num_series == MAX_SERIES:
                    _log.warning(
                        "a model has more than %d series of metrics; the server hears of no further one, the first in "
                        "family '%s'", MAX_SERIES, family.name,
                    )  # fmt: skip
                    self._num_series += 1
                return made
            self._num_series += 1
            family.series[labels] = made
            self.note(family, labels, made)  # a server shows it from the start, as 0
            return made

    def note(self, family: "MetricFamily", labels: Labels, series: _Series) -> None:
        """It has changed. Under the lock."""
        if family.series.get(labels) is not series:
            return  # one too many
        if not self._changed:
            self.on_change()
        self._changed[family.name, labels] = series

    def take_changes(self) -> list[list[Any]]:
        """[name, kind, description, [[labels, change], …]] of each family with changes since the last call."""
        with self.lock:
            changed, self._changed = self._changed, {}
            families: dict[str, list[Any]] = {}
            for (name, labels), series in changed.items():
                known = self._families[name]
                family = families.setdefault(name, [name, known.kind.value, known.description, []])
                family[3].append([labels, series.take()])
            return list(families.values())


#: This process's.
registry = MetricRegistry()


def _after_fork() -> None:
    """In a process that the model has forked: a thread of the original may have held the lock."""
    registry.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def set_registry(other: MetricRegistry) -> None:
    """Have families that are made from now on enrolled there."""
    global registry
    registry = other


class MetricFamily:
    """Metrics of one name, by their labels. Families of one name share their series."""

    MetricKind = _Kind
    COUNTER: ClassVar[_Kind] = _Kind.COUNTER
    GAUGE: ClassVar[_Kind] = _Kind.GAUGE
    HISTOGRAM: ClassVar[_Kind] = _Kind.HISTOGRAM

    def __init__(self, name: str | bytes, description: str | bytes, kind: _Kind) -> None:
        """Raises TritonModelException for a name that Prometheus has not, and one that another kind of family has."""
        if not isinstance(kind, _Kind):
            raise TypeError(f"{_NO_FAMILY}Unknown metric kind {kind!r}: use one of MetricFamily's")
        name = text("the name of a MetricFamily", name)
        if not _NAME.fullmatch(name):
            raise TritonModelException(f"{_NO_FAMILY}Invalid metric name '{name}'")
        self.name, self.description, self.kind = name, text("a description", description), kind
        if not _is_unicode(self.description):
            raise TritonModelException(f"{_NO_FAMILY}the description of '{name}' is not valid Unicode")
        if len(name) + len(self.description) > MAX_TEXT_CHARS:
            raise TritonModelException(f"{_NO_FAMILY}name and description of more than {MAX_TEXT_CHARS} characters")
        self.registry = registry
        self.series = self.registry.enrol(self)

    def Metric(self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None) -> "Metric":
        """The metric of these labels; `buckets`, the upper bounds in order, for histograms and for them alone."""
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        return Metric(self, _check_labels(labels or {}, self.kind), _check_buckets(buckets, self.kind))


class Metric:
    """One metric of a family. Metrics of the same labels are one."""

    def __init__(self, family: MetricFamily, labels: Labels, bounds: Sequence[float]) -> None:
        self._family = family
        self._labels = labels
        self._series = family.registry.series(family, labels, bounds)

    def increment(self, value: float) -> None:
        """Add to a counter or a gauge; to a counter nothing negative."""
        kind, value = self._family.kind, figure("an increment", value)
        if kind is _Kind.COUNTER and value < 0:
            raise TritonModelException(
                "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented "
                "monotonically by non-negative values."
            )
        self._change("increment", "Increment", value)

    def set(self, value: float) -> None:
        """Set a gauge."""
        self._change("set", "Set", figure("a value", value))

    def observe(self, value: float) -> None:
        """Count a value in a histogram's buckets."""
        self._change("observe", "Observe", figure("a value", value))

    def value(self) -> float:
        """What this process knows of a counter or a gauge."""
        if self._family.kind is _Kind.HISTOGRAM:
            raise TritonModelException(f"Failed to get metric value: {_not_supported(self._family.kind, 'Value')}")
        with self._family.registry.lock:
            return self._series.value

    def _change(self, verb: str, title: str, value: float) -> None:
        change = getattr(self._series, verb, None)
        if change is None:
            raise TritonModelException(f"Failed to {verb} metric value: {_not_supported(self._family.kind, title)}")
        with self._family.registry.lock:
            change(value)
            self._family.registry.note(self._family, self._labels, self._series)


def _not_supported(kind: _Kind, verb: str) -> str:
    return f"TRITONSERVER_METRIC_KIND_{kind.name} does not support {verb}"


def _make(kind: _Kind, bounds: Sequence[float]) -> _Series:
    if kind is _Kind.HISTOGRAM:
        return _Histogram(bounds)
    return _Counter() if kind is _Kind.COUNTER else _Gauge()


def _check_labels(labels: Mapping[str, str], kind: _Kind) -> Labels:
    for name, value in labels.items():
        if not isinstance(value, str):
            raise TritonModelException(f"{_NO_METRIC}attempt to access JSON non-string as string")
        if not _is_unicode(value):
            raise TritonModelException(f"{_NO_METRIC}the value of label '{name}' is not valid Unicode")
        if not _LABEL.fullmatch(name) or (name == "le" and kind is _Kind.HISTOGRAM):
            raise TritonModelException(f"{_NO_METRIC}Invalid label name '{name}'")
    if sum(len(name) + len(value) for name, value in labels.items()) > MAX_TEXT_CHARS:
        raise TritonModelException(f"{_NO_METRIC}labels of more than {MAX_TEXT_CHARS} characters")
    return tuple(sorted(labels.items()))


def _is_unicode(text: str) -> bool:
    """Whether it has no half of a surrogate pair, as what was read with surrogateescape may: nothing can send it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_buckets(buckets: Sequence[float] | None, kind: _Kind) -> tuple[float, ...]:
    if kind is not _Kind.HISTOGRAM:
        if buckets is not None:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        return ()
    if buckets is None:
        raise TritonModelException("Failed to create metric. Missing required buckets.")
    if not isinstance(buckets, list):
        raise TritonModelException("Failed to create metric. Buckets must be a list.")
    bounds = tuple(bound for bound in map(float, buckets) if bound != math.inf)  # that one is always there
    if not all(lower < upper for lower, upper in pairwise((*bounds, math.inf))):
        raise TritonModelException(f"{_NO_METRIC}Bucket Boundaries must be strictly sorted")
    if len(bounds) > MAX_BUCKETS:
        raise TritonModelException(f"{_NO_METRIC}more than {MAX_BUCKETS} buckets")
    return bounds
