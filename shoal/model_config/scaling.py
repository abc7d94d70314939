"""The number of instances that a model may have, and whether it follows the load: parameters of a model. Pure.

    parameters { key: "min_instances" value { string_value: "1" } }
    parameters { key: "max_instances" value { string_value: "8" } }
    parameters { key: "autoscale" value { string_value: "true" } }
    parameters { key: "autoscale_queue_age_ms" value { string_value: "50" } }

Triton has a fixed count, so these are parameters, as any setting that Triton does not know.
"""

from collections.abc import Iterator

from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter, whole_number_faults

#: The most instances of a model (ours): most often, each is a process.
MAX_INSTANCES = 64
#: The longest queue age, one hour, as for every other time in a configuration (ours).
MAX_QUEUE_AGE_MS = 3_600_000
#: The queue age of a model that sets none (ours): clients notice such a wait, and a worker wakes up far sooner.
DEFAULT_QUEUE_AGE_MS = 50
_MOST = {"min_instances": MAX_INSTANCES, "max_instances": MAX_INSTANCES, "autoscale_queue_age_ms": MAX_QUEUE_AGE_MS}
#: Triton's spellings of booleans.
_TRUE, _FALSE = ("true", "on", "1"), ("false", "off", "0")


def bounds(config: Config) -> tuple[int, int]:
    """The least and the most instances that scaling may reach. The configuration has been checked."""
    return int(parameter(config, "min_instances") or 1), int(parameter(config, "max_instances") or MAX_INSTANCES)


def autoscale(config: Config) -> bool:
    """Whether the number of instances follows the load, between the bounds."""
    return (parameter(config, "autoscale") or "").lower() in _TRUE


def queue_age_ns(config: Config) -> int:
    """The age of the oldest waiting request, in ns, above which there are too few instances.

    The model's own batching delay is added.
    """
    delay_us: int = config.get("dynamic_batching", {}).get("max_queue_delay_microseconds", 0)
    milliseconds = int(parameter(config, "autoscale_queue_age_ms") or DEFAULT_QUEUE_AGE_MS)
    return milliseconds * 1_000_000 + delay_us * 1_000


def faults(config: Config) -> Iterator[str]:
    """Check the parameters: whole numbers from 1 on, bounds in order, a boolean."""
    wrong = [
        sentence
        for name, most in _MOST.items()
        for sentence in whole_number_faults(config, name, 1, most, f"a whole number from 1 to {most}")
    ]
    yield from wrong
    if not wrong and bounds(config)[0] > bounds(config)[1]:
        least, most = bounds(config)
        yield f"parameter 'min_instances' of model '{config['name']}' is {least}, more than 'max_instances', {most}"
    said = parameter(config, "autoscale")
    if said is not None and said.lower() not in (*_TRUE, *_FALSE):
        words = ", ".join((*_TRUE, *_FALSE))
        yield f"parameter 'autoscale' of model '{config['name']}' is '{said}', must be one of {words}"
