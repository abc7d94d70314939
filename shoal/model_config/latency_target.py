"""The latency target of a model, from which its batching follows: a parameter of the model, or the server's.

    parameters { key: "latency_target_ms" value { string_value: "50" } }

The target replaces the sizes and the delay of `dynamic_batching`, which may be present for its priorities and timeouts.
The server's --latency-target holds for models with an empty `dynamic_batching`. Triton has no such target, so it is a
parameter, as any setting that Triton does not know. Pure.
"""

from collections.abc import Iterator
from typing import Any

from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter, whole_number_faults

PARAMETER = "latency_target_ms"
#: The most milliseconds: one hour, as for every other time in a configuration (ours).
MAX_MS = 3_600_000


def latency_target_ms(config: dict[str, Any], default_ms: int = 0) -> int:
    """The target in milliseconds; 0: batches are formed by sizes and delays, if at all. `default_ms`: the server's."""
    text = parameter(config, PARAMETER)
    if text is not None:
        return int(text)
    says_nothing = "dynamic_batching" in config and not any(_contradictions(config))
    return default_ms if says_nothing and config.get("max_batch_size", 0) > 1 else 0


def faults(config: Config) -> Iterator[str]:
    """Check that the parameter is a whole number, and that no other setting contradicts it."""
    which = f"parameter '{PARAMETER}' of model '{config['name']}'"
    wanted = f"a whole number of milliseconds, at most {MAX_MS} (one hour), or 0 for none"
    wrong = list(whole_number_faults(config, PARAMETER, 0, MAX_MS, wanted))
    yield from wrong
    if not wrong and int(parameter(config, PARAMETER) or 0) > 0:
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in config:
                yield f"{which} is about dynamic batching; the model has '{scheduler}'. Remove one of them"
        for setting in _contradictions(config):
            yield f"{which} takes the place of '{setting}' in 'dynamic_batching'. Remove one of them"


def faults_when_finished(config: Config) -> Iterator[str]:
    """Check that the model batches, which auto-complete could have changed."""
    if int(parameter(config, PARAMETER) or 0) > 0 and config["max_batch_size"] < 2:
        yield (
            f"parameter '{PARAMETER}' of model '{config['name']}' needs batches to choose from: 'max_batch_size' is "
            f"{config['max_batch_size']}, must be at least 2"
        )


def _contradictions(config: dict[str, Any]) -> Iterator[str]:
    """The settings of `dynamic_batching` that contradict a target; one preferred size, the largest, is Triton's
    default."""
    batching = config.get("dynamic_batching", {})
    if list(batching.get("preferred_batch_size", ())) not in ([], [config.get("max_batch_size", 0)]):
        yield "preferred_batch_size"
    if batching.get("max_queue_delay_microseconds", 0):
        yield "max_queue_delay_microseconds"
