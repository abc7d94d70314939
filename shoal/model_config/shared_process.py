"""Instances that share a process: a parameter of a model, since all instances of Triton share one. Pure.

    parameters { key: "instances_share_process" value { string_value: "true" } }

The instances of a group on one device are then threads of one worker process, with one copy of the model. This pays for
backends that release the interpreter's lock while they compute; a Python model has to be written for several threads.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from shoal.model_config import recycling
from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter
from shoal.model_config.python_backends import runs_on

PARAMETER = "instances_share_process"
#: Backends that can load a model once for several threads.
BACKENDS = ("identity", "onnxruntime", "python", "pytorch", "tensorrt")


def instances_share_process(config: Mapping[str, Any]) -> bool:
    """Whether the instances of a group on one device are threads of one process. The configuration has been
    checked."""
    return parameter(config, PARAMETER) == "true"


def faults(config: Config) -> Iterator[str]:
    """Check the parameter, and that the backend and all other settings allow it."""
    text = parameter(config, PARAMETER)
    which = f"parameter '{PARAMETER}' of model '{config['name']}'"
    if text not in (None, "true", "false"):
        yield f"{which} is '{text}', must be 'true' or 'false'"
        return
    if not instances_share_process(config):
        return
    if "ensemble_scheduling" in config or runs_on(config) not in BACKENDS:
        backend = config["backend"] or config["platform"]
        yield f"{which} is for the backends {', '.join(BACKENDS)}, and not for '{backend}'. Remove it"
    limits = recycling.recycling_limits(config)
    if limits.max_requests or limits.max_rss_bytes:
        yield (
            f"{which} makes one process of the instances, and 'max_requests' and 'max_rss' replace the process of a "
            "single one. Remove one of them"
        )
