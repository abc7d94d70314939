"""The decorator `timed`: times of methods as metrics, for a YAML file with `handler: {profile: true}`."""

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
        if getattr(getattr(self, "device", None), "type", "") == "cuda":
            import torch

            torch.cuda.synchronize(self.device)  # work of earlier methods on the GPU must not count for this one
        start_ns = time.monotonic_ns()
        result = method(self, *arguments, **options)
        if context is not None and context.metrics is not None:
            context.metrics.add_time(name, (time.monotonic_ns() - start_ns) / 1e6)
        return result

    return measured
