"""The part of TorchServe's module `service` that handlers import: a function that prints metrics."""

from collections.abc import Iterable

from ts.utils.util import PredictionException

__all__ = ["PredictionException", "emit_metrics"]


def emit_metrics(metrics: Iterable[object]) -> None:
    """Print metrics in the form of TorchServe's logs. Metrics of `context.metrics` reach the server without this
    call."""
    for metric in metrics:
        print(f"[METRICS]{metric}")  # noqa: T201 - what the function is for
