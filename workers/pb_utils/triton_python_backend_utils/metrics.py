"""Metrics of a model's own: `pb_utils.MetricFamily`.

They work in any interpreter, with the values of this process. A server that runs the model takes their changes and adds
them up over the model's instances (supervisor/questions/custom_metrics.py).
"""

import math
import os
import re
import threading
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

from triton_python_backend_utils.arguments import figure, text
from triton_python_backend_utils.errors import TritonModelException
from triton_python_backend_utils.metric_registry import NO_FAMILY, FamilyHandle, Labels, MetricRegistry
from triton_python_backend_utils.metric_registry import MetricKind as Kind

#: The most buckets of a histogram; the most characters of one metric's labels, and of a family's name and description
#: (ours).
MAX_BUCKETS, MAX_TEXT_CHARS = 200, 4096

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_NO_METRIC = "Error when creating Metric: "
_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be deleted AFTER its corresponding 'Metric' objects have been deleted."
)

#: The registry of this process.
registry = MetricRegistry()


def _after_fork() -> None:
    """Reset the registry in a process that the model has forked: another thread of the worker may have held the lock at
    the fork, and the connection to the server stays the worker's."""
    registry.lock = threading.RLock()
    registry.on_change = lambda: None


os.register_at_fork(after_in_child=_after_fork)


def set_registry(other: MetricRegistry) -> None:
    """Use `other` as the registry of families that are made from now on."""
    global registry
    registry = other


class MetricFamily:
    """Metrics of one name, by their labels. MetricFamily objects of one name share their metrics, which end when the
    last of these objects is deleted."""

    MetricKind = Kind
    COUNTER: ClassVar[Kind] = Kind.COUNTER
    GAUGE: ClassVar[Kind] = Kind.GAUGE
    HISTOGRAM: ClassVar[Kind] = Kind.HISTOGRAM

    _handle: FamilyHandle | None = None

    def __init__(self, name: str | bytes, description: str | bytes, kind: Kind) -> None:
        """Register the family. Raises TypeError for an unknown kind, TritonModelException for a name or description
        that Prometheus does not allow, and for a name that a family of another kind has."""
        if not isinstance(kind, Kind):
            raise TypeError(f"{NO_FAMILY}Unknown metric kind {kind!r}: use one of MetricFamily's")
        name = text("the name of a MetricFamily", name)
        if not _NAME.fullmatch(name):
            raise TritonModelException(f"{NO_FAMILY}Invalid metric name '{name}'")
        self.name, self.description, self.kind = name, text("a description", description), kind
        if not _is_unicode(self.description):
            raise TritonModelException(f"{NO_FAMILY}the description of '{name}' is not valid Unicode")
        if len(name) + len(self.description) > MAX_TEXT_CHARS:
            raise TritonModelException(f"{NO_FAMILY}name and description of more than {MAX_TEXT_CHARS} characters")
        self._registry = registry
        self._handle = registry.register(name, kind, self.description)

    def Metric(self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None) -> "Metric":
        """The metric of these labels; `buckets` are the upper bounds in order, for histograms only. Raises
        TritonModelException for invalid labels or buckets."""
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        assert self._handle is not None
        checked = _check_labels(labels or {}, self.kind)
        return Metric(self._registry, self._handle, checked, _check_buckets(buckets, self.kind))

    def __del__(self) -> None:
        if self._handle is not None:
            self._registry.delete(self._handle)


class Metric:
    """One metric of a family, usable as long as its MetricFamily object exists. Metrics of equal labels share their
    figures."""

    def __init__(self, registry: MetricRegistry, handle: FamilyHandle, labels: Labels, bounds: Sequence[float]) -> None:
        self._registry = registry
        self._handle = handle
        self._labels = labels
        self._series = registry.series(handle, labels, bounds)

    def increment(self, value: float) -> None:
        """Add to a counter or a gauge; to a counter no negative value. Raises TritonModelException for other kinds
        and values."""
        value = figure("an increment", value)
        if self._kind is Kind.COUNTER and value < 0:
            raise TritonModelException(
                "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented "
                "monotonically by non-negative values."
            )
        self._change("increment", "Increment", value)

    def set(self, value: float) -> None:
        """Set a gauge. Raises TritonModelException for other kinds."""
        self._change("set", "Set", figure("a value", value))

    def observe(self, value: float) -> None:
        """Count a value in a histogram's buckets. Raises TritonModelException for other kinds."""
        self._change("observe", "Observe", figure("a value", value))

    def value(self) -> float:
        """The value of a counter or a gauge in this process. Raises TritonModelException for a histogram."""
        if self._kind is Kind.HISTOGRAM:
            raise TritonModelException(f"Failed to get metric value: {_not_supported(Kind.HISTOGRAM, 'Value')}")
        with self._registry.lock:
            return self._series.value

    @property
    def _kind(self) -> Kind:
        """The family's kind. Raises TritonModelException if the family was deleted."""
        if self._handle.is_deleted:
            raise TritonModelException(_DELETED)
        return self._handle.family.kind

    def _change(self, verb: str, title: str, value: float) -> None:
        kind, change = self._kind, getattr(self._series, verb, None)
        if change is None:
            raise TritonModelException(f"Failed to {verb} metric value: {_not_supported(kind, title)}")
        with self._registry.lock:
            change(value)
            self._registry.note(self._handle.family, self._labels, self._series)


def _not_supported(kind: Kind, verb: str) -> str:
    return f"TRITONSERVER_METRIC_KIND_{kind.name} does not support {verb}"


def _check_labels(labels: Mapping[str, str], kind: Kind) -> Labels:
    for name, value in labels.items():
        if not isinstance(value, str):
            raise TritonModelException(f"{_NO_METRIC}attempt to access JSON non-string as string")
        if not _is_unicode(value):
            raise TritonModelException(f"{_NO_METRIC}the value of label '{name}' is not valid Unicode")
        if not _LABEL.fullmatch(name) or (name == "le" and kind is Kind.HISTOGRAM):
            raise TritonModelException(f"{_NO_METRIC}Invalid label name '{name}'")
    if sum(len(name) + len(value) for name, value in labels.items()) > MAX_TEXT_CHARS:
        raise TritonModelException(f"{_NO_METRIC}labels of more than {MAX_TEXT_CHARS} characters")
    return tuple(sorted(labels.items()))


def _is_unicode(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, as a text read with surrogateescape may have: such a text cannot
    be sent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_buckets(buckets: Sequence[float] | None, kind: Kind) -> tuple[float, ...]:
    if kind is not Kind.HISTOGRAM:
        if buckets is not None:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        return ()
    if buckets is None:
        raise TritonModelException("Failed to create metric. Missing required buckets.")
    if not isinstance(buckets, list):
        raise TritonModelException("Failed to create metric. Buckets must be a list.")
    bounds = tuple(bound for bound in map(float, buckets) if bound != math.inf)  # infinity is a bound of each histogram
    if not all(lower < upper for lower, upper in pairwise((*bounds, math.inf))):
        raise TritonModelException(f"{_NO_METRIC}Bucket Boundaries must be strictly sorted")
    if len(bounds) > MAX_BUCKETS:
        raise TritonModelException(f"{_NO_METRIC}more than {MAX_BUCKETS} buckets")
    return bounds
