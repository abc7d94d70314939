"""One value of a metric, as handlers of TorchServe's first releases make and print it."""

import socket
import time
from collections.abc import Sequence
from typing import Any

from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.unit import full_name


class Metric:
    """A metric's value with its unit and dimensions."""

    def __init__(
        self,
        name: str,
        value: float,
        unit: str,
        dimensions: Sequence[Dimension],
        request_id: str | None = None,
        metric_method: str | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        self.name = name
        self.unit = full_name(unit)
        self.metric_method = metric_method
        self.metric_type = metric_type
        self.value = value
        self.dimensions = list(dimensions)
        self.request_id = request_id

    def update(self, value: float) -> None:
        """Set the value; if `metric_method` is "counter", add to it."""
        if self.metric_method == "counter":
            self.value += value
        else:
            self.value = value

    def __str__(self) -> str:
        """The value in the form of a line in TorchServe's logs."""
        dimensions = ",".join(map(str, self.dimensions))
        request = f",{self.request_id}" if self.request_id else ""
        return (
            f"{self.name}.{self.unit}:{self.value}|#{dimensions}|#hostname:{socket.gethostname()},{int(time.time())}"
            f"{request}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "MetricName": self.name,
            "Value": self.value,
            "Unit": self.unit,
            "Dimensions": [{"Name": each.name, "Value": each.value} for each in self.dimensions],
            "HostName": socket.gethostname(),
        }
