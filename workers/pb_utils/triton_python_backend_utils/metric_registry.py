"""Custom metrics of one process: the figures of each series, their changes since the last report, and the family
objects that keep a series alive.

Safe for any thread: the registry's lock guards every series.
"""

import logging
import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from triton_python_backend_utils.enumeration import TritonEnum
from triton_python_backend_utils.errors import TritonModelException

_log = logging.getLogger(__name__)

#: Most series that one process reports (ours): a label with ever new values must not fill the server's memory. Further
#: series work like any other in the model, but are not reported.
MAX_SERIES = 1000

NO_FAMILY = "Error when creating MetricFamily: "

Labels = tuple[tuple[str, str], ...]


class MetricKind(TritonEnum):
    """The kind of a metric family."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

    @property
    def word(self) -> str:
        """Prometheus's word for this kind."""
        return self.name.lower()


class Series:
    """The figures of a family's metric with one set of labels: value, and change since the last report."""

    def __init__(self) -> None:
        # This field is changed under the registry's lock, by each kind of metric.
        self.value = 0.0

    def take(self) -> Any:
        """The change since the last call, in a form for msgpack, to be added up by
        supervisor/questions/custom_metrics.py. Each kind of series implements this; the base class raises
        NotImplementedError."""
        raise NotImplementedError


class _Counted(Series):
    def __init__(self) -> None:
        super().__init__()
        self._change = 0.0  # sum of the changes since the last report or, later, since the gauge was set

    def increment(self, value: float) -> None:
        self.value += value
        self._change += value

    def take(self) -> Any:
        change, self._change = self._change, 0.0
        return change


class _Gauge(_Counted):
    def __init__(self) -> None:
        super().__init__()
        self._set: float | None = None

    def set(self, value: float) -> None:
        self.value = self._set = value
        self._change = 0.0

    def take(self) -> tuple[float | None, float]:
        given, self._set = self._set, None
        return given, super().take()


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


class RegisteredFamily:
    """A metric family: its name and kind, and the series that the MetricFamily objects of its name have made."""

    def __init__(self, name: str, kind: MetricKind, description: str) -> None:
        self.name, self.kind, self.description = name, kind, description
        # These fields are changed by the registry, under its lock.
        self.series: dict[Labels, Series] = {}
        self.num_handles: Counter[Labels] = Counter()  # number of MetricFamily objects with a metric of the labels
        self.num_objects = 0


class FamilyHandle:
    """What one MetricFamily object has made in a family of that name. By it, the object's metrics know whether the
    object was deleted."""

    def __init__(self, family: RegisteredFamily) -> None:
        self.family = family
        # `labels` is changed by the registry, under its lock; `is_deleted` by the deletion of the MetricFamily object,
        # which may happen in any thread.
        self.labels = set[Labels]()
        self.is_deleted = False


class MetricRegistry:
    """The families of one process, and which of their series have changed."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # reentrant: a handler of the log may count under it
        #: Called by the first change after `take_changes`, and when a family with metrics is deleted; the latter by a
        #: finalizer, so that from its second call on this function must never wait.
        self.on_change: Callable[[], None] = lambda: None
        # The fields below are changed under the lock.
        self._families: dict[str, RegisteredFamily] = {}
        self._num_series = 0
        self._has_warned = False
        # The last changes of series that have ended; for each series, a change None comes last.
        self._ended: list[tuple[RegisteredFamily, Labels, Any]] = []
        self._changed: dict[tuple[str, Labels], Series] = {}
        # Handles of deleted MetricFamily objects; added by finalizers, without the lock.
        self._deleted: deque[FamilyHandle] = deque()

    def register(self, name: str, kind: MetricKind, description: str) -> FamilyHandle:
        """Register a new MetricFamily object; returns its handle. A family with several objects has the description of
        the first. Raises TritonModelException if the family is of another kind."""
        with self.lock:
            self._end_deleted()
            family = self._families.setdefault(name, RegisteredFamily(name, kind, description))
            if family.kind != kind:
                raise TritonModelException(
                    f"{NO_FAMILY}metric family '{name}' exists already, as {family.kind.word} with the "
                    f"description '{family.description}'"
                )
            family.num_objects += 1
            return FamilyHandle(family)

    def delete(self, handle: FamilyHandle) -> None:
        """End the series that only this MetricFamily object, which was deleted, has made. Finalizers call this, so it
        never waits."""
        handle.is_deleted = True
        self._deleted.append(handle)
        if handle.labels:
            self.on_change()

    def _end_deleted(self) -> None:
        while self._deleted:
            handle = self._deleted.popleft()
            family = handle.family
            family.num_objects -= 1
            for labels in handle.labels:
                family.num_handles[labels] -= 1
                if not family.num_handles[labels]:
                    del family.num_handles[labels]
                    self._end_series(family, labels)
            if not family.num_objects:
                del self._families[family.name]

    def _end_series(self, family: RegisteredFamily, labels: Labels) -> None:
        series = family.series.pop(labels)
        self._num_series -= 1
        if self._changed.pop((family.name, labels), None) is not None:
            self._ended.append((family, labels, series.take()))
        self._ended.append((family, labels, None))

    def series(self, handle: FamilyHandle, labels: Labels, bounds: Sequence[float]) -> Series:
        """The series of these labels, made if there is none."""
        with self.lock:
            self._end_deleted()
            family = handle.family
            found = family.series.get(labels)
            if found is None:
                found = _make(family.kind, bounds)
                if self._num_series >= MAX_SERIES:
                    self._warn(family.name)
                    return found
                self._num_series += 1
                family.series[labels] = found
                self.note(family, labels, found)  # so that a server shows the series from the start, as 0
            if labels not in handle.labels:
                handle.labels.add(labels)
                family.num_handles[labels] += 1
            return found

    def _warn(self, name: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "a model has more than %d series of metrics; further ones are not reported, the first of them in "
                "family '%s'", MAX_SERIES, name,
            )  # fmt: skip

    def note(self, family: RegisteredFamily, labels: Labels, series: Series) -> None:
        """Note that a series has changed. Called under the lock."""
        if family.series.get(labels) is not series:
            return  # the series is beyond MAX_SERIES, or has ended
        is_first = not self._changed
        self._changed[family.name, labels] = series
        if is_first:
            self.on_change()

    def take_changes(self) -> list[list[Any]]:
        """[name, kind, description, [[labels, change], …]] of each family with changes since the last call, oldest
        first; the change None is the end of a series."""
        with self.lock:
            self._end_deleted()
            ended, self._ended = self._ended, []
            changed, self._changed = self._changed, {}
            families: dict[RegisteredFamily, list[Any]] = {}
            for family, labels, change in ended:
                _changes_of(families, family).append([labels, change])
            for (name, labels), series in changed.items():
                _changes_of(families, self._families[name]).append([labels, series.take()])
            return list(families.values())


def _changes_of(families: dict[RegisteredFamily, list[Any]], family: RegisteredFamily) -> list[Any]:
    described = families.setdefault(family, [family.name, family.kind.word, family.description, []])
    changes: list[Any] = described[3]
    return changes


def _make(kind: MetricKind, bounds: Sequence[float]) -> Series:
    if kind is MetricKind.HISTOGRAM:
        return _Histogram(bounds)
    return _Counted() if kind is MetricKind.COUNTER else _Gauge()
