"""Kinds of metrics."""

from enum import Enum


class MetricTypes(Enum):
    """The kinds of metrics that a handler can have."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
