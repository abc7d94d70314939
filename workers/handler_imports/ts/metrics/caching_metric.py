"""A metric that a handler declares and then updates; each update has a value for every dimension of the metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.unit import full_name

#: Dimensions whose values the server knows; a metric has them after the dimensions that a handler names.
OWN_DIMENSIONS = ("ModelName", "Level")


class Sample(NamedTuple):
    """One value of a metric on its way to the server."""

    name: str
    unit: str  # the unit's full name
    metric_type: MetricTypes
    dimensions: tuple[tuple[str, str], ...]
    value: float


#: A function that takes the values of metrics. In a worker it passes them to the server; a plain interpreter has none.
Sink = Callable[[Sample], None]


class CachingMetric:
    """A metric of a name and a kind. `update` adds a value to a counter, sets a gauge, or adds a value to a
    histogram."""

    def __init__(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str],
        metric_type: MetricTypes,
        own_values: Mapping[str, str] | None = None,
        sink: Sink | None = None,
    ) -> None:
        """`own_values` are the values of OWN_DIMENSIONS, which count where a handler gives none."""
        self.metric_name = metric_name
        self.unit = full_name(unit)
        self.dimension_names = list(dimension_names)
        self.metric_type = metric_type
        self._own_values = dict(own_values or {})
        self._sink = sink

    def add_or_update(self, value: float, dimension_values: Sequence[str] = (), request_id: str = "") -> None:
        """Record a value, with the values of the dimensions in the order of their names; those that the server knows
        itself, ModelName and Level, may be left out. Raises ValueError for another number of values, and for a negative
        one of a counter."""
        del request_id  # TorchServe only logs it
        values = list(dimension_values)
        left = self.dimension_names[len(values) :]
        if left == [name for name in self.dimension_names if name in self._own_values]:
            values += [self._own_values[name] for name in left]
        if len(values) != len(self.dimension_names):
            raise ValueError(
                f"metric '{self.metric_name}' has the dimensions {self.dimension_names}, got the values {values}"
            )
        if self.metric_type is MetricTypes.COUNTER and value < 0:
            raise ValueError(f"counter '{self.metric_name}' can only grow, got {value}")
        if self._sink is not None:
            dimensions = tuple(zip(self.dimension_names, map(str, values), strict=True))
            self._sink(Sample(self.metric_name, self.unit, self.metric_type, dimensions, value))

    def update(self, value: float, request_id: str = "", dimensions: Sequence[Dimension] = ()) -> None:
        """Record a value with dimensions that are given as objects, in any order. Raises ValueError for dimensions that
        the metric does not have, and if one of its dimensions is missing."""
        given = {dimension.name: dimension.value for dimension in dimensions}
        known = {**self._own_values, **given}
        if not given.keys() <= {*self.dimension_names} <= known.keys():
            raise ValueError(f"metric '{self.metric_name}' has the dimensions {self.dimension_names}, got {[*given]}")
        self.add_or_update(value, [known[name] for name in self.dimension_names], request_id)
