"""Custom metrics of one process: the figures of each series, what of them has changed since the last report, and the
family objects that keep a series.

Safe for any thread: the registry's lock guards every series.
"""

import logging
import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from triton_python_backend_utils.errors import TritonModelException

_log = logging.getLogger(__name__)

#: Series that one process reports (ours): a label that never repeats must not fill the server's memory. Further series
#: work as any other, and are not reported.
MAX_SERIES = 1000

NO_FAMILY = "Error when creating MetricFamily: "

Labels = tuple[tuple[str, str], ...]


class Kind(Enum):
    """What a family measures, in Prometheus's words. Models know it as MetricFamily.MetricKind."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Series:
    """The figures of one set of labels: what they are, and what has changed since the last report."""

    def __init__(self) -> None:
        # Changed under the registry's lock.
        self.value = 0.0

    def take(self) -> Any:
        """The change since the last time, as msgpack can carry it; what shoal/supervisor/custom_metrics.py adds."""
        raise NotImplementedError


class _Counted(Series):
    def __init__(self) -> None:
        super().__init__()
        self._change = 0.0

    def increment(self, value: float) -> None:
        self.value += value
        self._change += value

    def take(self) -> float:
        change, self._change = self._change, 0.0
        return change


class _Gauge(Series):
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


class _Histogram(Series):
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


class Known:
    """A family name of this process: what it measures, and the series that its family objects have made."""

    def __init__(self, name: str, kind: Kind, description: str) -> None:
        self.name, self.kind, self.description = name, kind, description
        # Changed by the registry, under its lock.
        self.series: dict[Labels, Series] = {}
        self.num_holders: Counter[Labels] = Counter()  # family objects with metrics of these labels
        self.num_families = 0


class Holding:
    """What one family object has made: ended with it, while its metrics may still be in somebody's hands."""

    def __init__(self, known: Known) -> None:
        self.known = known
        # Changed by the registry, under its lock; at last by the family's end, in any thread.
        self.labels = set[Labels]()
        self.is_deleted = False


class MetricRegistry:
    """The families of one process, and which of their series have changed."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a log's handler may count, too
        #: Called by the first change after `take_changes`, and when a family with metrics is deleted; the latter in the
        #: middle of anything, so it waits for nothing once it has been called for a change.
        self.on_change: Callable[[], None] = lambda: None
        # Changed under the lock.
        self._families: dict[str, Known] = {}
        self._num_series = 0
        self._has_warned = False
        self._ended: list[tuple[Known, Labels, Any]] = []  # changes of series that are gone, each with its end, None
        self._changed: dict[tuple[str, Labels], Series] = {}
        # Changed by finalizers, without the lock.
        self._deleted: deque[Holding] = deque()

    def enrol(self, name: str, kind: Kind, description: str) -> Holding:
        """A new family object's part in a family. The first says what the description is; raises where another kind
        is."""
        with self.lock:
            self._end_deleted()
            known = self._families.setdefault(name, Known(name, kind, description))
            if known.kind != kind:
                raise TritonModelException(
                    f"{NO_FAMILY}metric family '{name}' exists already, as {known.kind.value} with the "
                    f"description '{known.description}'"
                )
            known.num_families += 1
            return Holding(known)

    def delete(self, holding: Holding) -> None:
        """A family object is gone, and with it what it alone has made. A finalizer's: waits for nothing."""
        holding.is_deleted = True
        self._deleted.append(holding)
        if holding.labels:
            self.on_change()

    def _end_deleted(self) -> None:
        while self._deleted:
            holding = self._deleted.popleft()
            known = holding.known
            known.num_families -= 1
            for labels in holding.labels:
                known.num_holders[labels] -= 1
                if not known.num_holders[labels]:
                    del known.num_holders[labels]
                    self._end_series(known, labels)
            if not known.num_families:
                del self._families[known.name]

    def _end_series(self, known: Known, labels: Labels) -> None:
        series = known.series.pop(labels)
        self._num_series -= 1
        if self._changed.pop((known.name, labels), None) is not None:
            self._ended.append((known, labels, series.take()))
        self._ended.append((known, labels, None))

    def series(self, holding: Holding, labels: Labels, bounds: Sequence[float]) -> Series:
        """The series of these labels, a new one where there is none."""
        with self.lock:
            self._end_deleted()
            known = holding.known
            found = known.series.get(labels)
            if found is None:
                found = _make(known.kind, bounds)
                if self._num_series >= MAX_SERIES:
                    self._warn(known.name)
                    return found
                self._num_series += 1
                known.series[labels] = found
                self.note(known, labels, found)  # a server shows it from the start, as 0
            if labels not in holding.labels:
                holding.labels.add(labels)
                known.num_holders[labels] += 1
            return found

    def _warn(self, name: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "a model has more than %d series of metrics; the server hears of no further one, the first in "
                "family '%s'", MAX_SERIES, name,
            )  # fmt: skip

    def note(self, known: Known, labels: Labels, series: Series) -> None:
        """A series has changed. Under the lock."""
        if known.series.get(labels) is not series:
            return  # one too many, or gone
        is_first = not self._changed
        self._changed[known.name, labels] = series
        if is_first:
            self.on_change()

    def take_changes(self) -> list[list[Any]]:
        """[name, kind, description, [[labels, change], …]] of each family with changes since the last call, in their
        order; the change None is the end of a series."""
        with self.lock:
            self._end_deleted()
            ended, self._ended = self._ended, []
            changed, self._changed = self._changed, {}
            families: dict[Known, list[Any]] = {}
            for known, labels, change in ended:
                _told(families, known).append([labels, change])
            for (name, labels), series in changed.items():
                _told(families, self._families[name]).append([labels, series.take()])
            return list(families.values())


def _told(families: dict[Known, list[Any]], known: Known) -> list[Any]:
    told = families.setdefault(known, [known.name, known.kind.value, known.description, []])
    changes: list[Any] = told[3]
    return changes


def _make(kind: Kind, bounds: Sequence[float]) -> Series:
    if kind is Kind.HISTOGRAM:
        return _Histogram(bounds)
    return _Counted() if kind is Kind.COUNTER else _Gauge()
