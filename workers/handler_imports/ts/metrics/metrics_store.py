"""The metrics of a handler, `context.metrics`."""

from collections.abc import Mapping, Sequence

from ts.metrics.caching_metric import OWN_DIMENSIONS, CachingMetric, Sink
from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes


class MetricsStore:
    """The metrics of one model by kind and name. `add_metric_to_cache` makes a metric, and so does `add_metric` with a
    metric's first value."""

    def __init__(
        self, request_ids: Mapping[int, str] | None = None, model_name: str = "", sink: Sink | None = None
    ) -> None:
        self.request_ids = request_ids
        self.model_name = model_name
        self.cache: dict[str, dict[str, CachingMetric]] = {kind.value: {} for kind in MetricTypes}
        self._sink = sink

    @property
    def store(self) -> list[CachingMetric]:
        return [metric for metrics in self.cache.values() for metric in metrics.values()]

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> CachingMetric:
        """Declare a metric. Its dimensions are `dimension_names`, and ModelName and Level, whose values the server
        knows. If a metric of this name and kind exists already, it is returned. Raises TypeError for wrong
        arguments."""
        if not isinstance(metric_type, MetricTypes):
            raise TypeError(f"the type of metric '{metric_name}' must be one of MetricTypes, got {metric_type!r}")
        if not isinstance(metric_name, str) or not isinstance(unit, str):
            raise TypeError(f"name and unit of a metric must be strings, got {metric_name!r} and {unit!r}")
        metrics = self.cache[metric_type.value]
        metric = metrics.get(metric_name)
        if metric is None:
            own = {"ModelName": self.model_name, "Level": "Model"}
            added = [name for name in OWN_DIMENSIONS if name not in dimension_names]
            metric = metrics[metric_name] = CachingMetric(
                metric_name, unit, [*dimension_names, *added], metric_type, own, self._sink
            )
        return metric

    def get_metric(self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER) -> CachingMetric:
        """A metric that has been declared. Raises KeyError if there is none of this name and kind."""
        metric = self.cache[metric_type.value].get(metric_name)
        if metric is None:
            raise KeyError(f"there is no {metric_type.value} '{metric_name}': declare it with add_metric_to_cache")
        return metric

    def add_metric(
        self,
        name: str,
        value: float,
        unit: str,
        idx: int | None = None,
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        """Record a value of a metric; the metric is made if there is none of this name and kind."""
        dimensions = dimensions or ()
        metric = self.add_metric_to_cache(name, unit, [dimension.name for dimension in dimensions], metric_type)
        metric.update(value, self._request_id(idx), dimensions)

    def add_counter(
        self, name: str, value: float, idx: int | None = None, dimensions: Sequence[Dimension] | None = None
    ) -> None:
        self.add_metric(name, value, "count", idx, dimensions, MetricTypes.COUNTER)

    def add_time(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Record a time in ms or s. Raises ValueError for another unit."""
        self.add_metric(name, value, _checked(unit, ("ms", "s"), "a time"), idx, dimensions, metric_type)

    def add_size(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Record a size in MB, kB, GB or B. Raises ValueError for another unit."""
        self.add_metric(name, value, _checked(unit, ("MB", "kB", "GB", "B"), "a size"), idx, dimensions, metric_type)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        self.add_metric(name, value, "percent", idx, dimensions, metric_type)

    def add_error(self, name: str, value: object, dimensions: Sequence[Dimension] | None = None) -> None:
        """Count an error; `value`, its text, is dropped. In TorchServe this method itself fails for any text."""
        del value
        self.add_metric(name, 1, "count", None, dimensions, MetricTypes.COUNTER)

    def _request_id(self, idx: int | None) -> str:
        return "" if idx is None or not self.request_ids else self.request_ids.get(idx, "")


def _checked(unit: str, known: Sequence[str], what: str) -> str:
    if unit not in known:
        raise ValueError(f"the unit of {what} must be one of {', '.join(known)}, got '{unit}'")
    return unit
