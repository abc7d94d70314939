"""Parameters that make a model's answers deterministic, or measure how far they are not; Triton has neither. Pure.

    parameters { key: "deterministic" value { string_value: "true" } }      every request runs in a batch of its own
    parameters { key: "deterministic" value { string_value: "padded" } }    every batch has max_batch_size rows
    parameters { key: "batch_drift_share" value { string_value: "0.01" } }  of the requests that shared a batch, the
                                                                            share that runs once more, alone

A kernel may add up in another order where its operands have other shapes, so the size of a batch may change bits of
each answer in it. Executed alone, a request always has its own shape; padded, all batches have one shape.
"""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

from shoal.deterministic import PARAMETER
from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter

SHARE = "batch_drift_share"
_SHARE = re.compile(r"0|1|[01]?\.[0-9]{1,9}")
#: Backends that execute all rows of a batch as one array, so that rows of padding can be added.
PADDING_BACKENDS = ("fil", "onnxruntime", "openvino", "pytorch", "tensorflow", "tensorrt")


class Mode(Enum):
    """How the answers of a model are kept independent of other requests; the value is the parameter's."""

    NONE = "false"
    ALONE = "true"
    PADDED = "padded"


def mode(config: dict[str, Any]) -> Mode:
    """How a model's answers are kept independent of other requests."""
    return Mode(parameter(config, PARAMETER) or Mode.NONE.value)


def padded_rows(config: Config) -> int:
    """The rows that every batch of a model is padded to; 0: none are added. The configuration is finished."""
    return int(config["max_batch_size"]) if mode(config) is Mode.PADDED else 0


def batch_drift_share(config: Config) -> float:
    """The share of the requests in batches of several that are executed once more; 0: none."""
    return float(parameter(config, SHARE) or 0)


def faults(config: Config) -> Iterator[str]:
    """Check both parameters, and that nothing in the configuration contradicts them."""
    text = parameter(config, PARAMETER)
    which = f"parameter '{PARAMETER}' of model '{config['name']}'"
    if text is not None and text not in [each.value for each in Mode]:
        yield f"{which} is '{text}', must be 'true', 'padded' or 'false'"
        return
    wanted = mode(config)
    if wanted is not Mode.NONE:
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in config:
                yield f"{which} is about dynamic batching; the model has '{scheduler}'. Remove one of them"
    share = parameter(config, SHARE)
    if share is not None and not (_SHARE.fullmatch(share) and float(share) <= 1):
        yield f"parameter '{SHARE}' of model '{config['name']}' is '{share}', must be a number from 0 to 1"
        return
    if batch_drift_share(config):
        yield from _not_compared(config, wanted)


def _not_compared(config: Config, wanted: Mode) -> Iterator[str]:
    which = f"parameter '{SHARE}' of model '{config['name']}'"
    if wanted is Mode.ALONE:
        yield f"{which} compares answers of batches, and '{PARAMETER}' runs every request alone. Remove one of them"
    for scheduler in ("sequence_batching", "ensemble_scheduling"):
        if scheduler in config:
            yield f"{which} runs requests once more, which is not possible with '{scheduler}'. Remove one of them"
    if config.get("model_transaction_policy", {}).get("decoupled", False):
        yield f"{which} runs requests once more, which is not possible for a decoupled model. Remove one of them"


def faults_when_finished(config: Config) -> Iterator[str]:
    """Check what auto-complete could have changed: that the model batches, by a backend that rows can be added to."""
    name, most = config["name"], config["max_batch_size"]
    if batch_drift_share(config) and most < 2:
        yield (
            f"parameter '{SHARE}' of model '{name}' compares answers of batches: 'max_batch_size' is {most}, must be "
            "at least 2"
        )
    if mode(config) is not Mode.PADDED:
        return
    which = f"parameter '{PARAMETER}' of model '{name}' is 'padded'"
    if config["backend"] not in PADDING_BACKENDS:
        yield f"{which}, which backend '{config['backend']}' cannot be: its model sees each request. Use 'true'"
    if most < 1:
        yield f"{which}, but 'max_batch_size' is {most}: there is no batch to pad. Use 'true'"
    if config["batch_input"] or config["batch_output"] or any(each["allow_ragged_batch"] for each in config["input"]):
        yield f"{which}, and its batches are ragged: they have no rows to add. Use 'true'"
