"""TorchServe's module of a worker's service, as far as handlers import it."""

from collections.abc import Iterable

from ts.utils.util import PredictionException

__all__ = ["PredictionException", "emit_metrics"]


def emit_metrics(metrics: Iterable[object]) -> None:
    """Print metrics as TorchServe's logs have them; those of `context.metrics` need no call."""
    for metric in metrics:
        print(f"[METRICS]{metric}")  # noqa: T201 - what the function is for
