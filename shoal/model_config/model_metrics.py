"""`model_metrics`: the buckets of a model's histograms. Pure.

Triton lets a model choose the buckets of one family, that of first responses. Triton ignores any other family in this
field, and Shoal refuses it.
"""

import itertools
import math
from collections.abc import Iterator

from shoal.model_config.messages import Config

#: The family of first responses, and the bounds of its buckets in Triton, in ms.
FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"
DEFAULT_BOUNDS = (100.0, 500.0, 2000.0, 5000.0)
#: The most bounds (ours): a model version's row of counters has room for so many.
MAX_BOUNDS = 64


def faults(config: Config) -> Iterator[str]:
    """A sentence for each fault, in Triton's order and, where it has any, in its words."""
    for control in _controls(config):
        if "metric_identifier" not in control:
            yield "metric control must specify 'metric_identifier'"
        elif not (family := control["metric_identifier"]["family"]):
            yield "metric identifier must specify non-empty 'family'"
        elif "histogram_options" not in control:
            yield "metric control must specify 'histogram_options'"
        elif not (bounds := control["histogram_options"]["buckets"]):
            yield "histogram options must specify non-empty 'buckets'"
        elif family != FIRST_RESPONSE:
            yield (
                f"model_metrics of {config['name']} name the family '{family}', which has no buckets to choose; "
                f"only {FIRST_RESPONSE} has"
            )
        elif not all(map(math.isfinite, bounds)) or any(low >= high for low, high in itertools.pairwise(bounds)):
            yield f"buckets of {family} for {config['name']} must be finite and ascending"
        elif len(bounds) > MAX_BOUNDS:
            yield f"{family} has {len(bounds)} buckets for {config['name']}, must have at most {MAX_BOUNDS}"


def first_response_bounds(config: Config) -> tuple[float, ...]:
    """The upper bounds of the buckets for first responses, in ms, without the infinite one."""
    bounds = DEFAULT_BOUNDS
    for control in _controls(config):
        bounds = tuple(control["histogram_options"]["buckets"])
    return bounds


def _controls(config: Config) -> list[Config]:
    controls: list[Config] = config.get("model_metrics", {}).get("metric_control", [])
    return controls
