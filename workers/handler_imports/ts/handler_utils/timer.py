"""The decorator `timed`: records the durations of a handler's methods as metrics if the model's YAML file has
`handler: {profile: true}`."""

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def timed(method: Callable[..., Result]) -> Callable[..., Result]:
    """The method of a handler, with the time of each call recorded as the metric `ts_handler_METHOD` in ms if the model
    is profiled."""
    name = f"ts_handler_{method.__name__}"

    @functools.wraps(method)
    def measured(self: Any, *arguments: Any, **options: Any) -> Result:
        context = getattr(self, "context", None)
        settings = getattr(context, "model_yaml_config", None) or {}
        if not (settings.get("handler") or {}).get("profile", False):
            return method(self, *arguments, **options)
        _finish_gpu_work(self)  # of earlier methods
        start_ns = time.monotonic_ns()
        result = method(self, *arguments, **options)
        _finish_gpu_work(self)
        if context is not None and context.metrics is not None:
            context.metrics.add_time(name, (time.monotonic_ns() - start_ns) / 1e6)
        return result

    return measured


def _finish_gpu_work(handler: Any) -> None:
    """Wait until the GPU has done what the handler's methods have launched; it is done after a method has returned."""
    device = getattr(handler, "device", None)
    if getattr(device, "type", "") == "cuda":
        import torch

        torch.cuda.synchronize(device)
