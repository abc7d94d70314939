"""Idempotence: whether a request may be executed again after its first execution ended with the instance's death. Pure.

Triton has no such setting: the death of its stub fails what was executing. Here the built-in backends compute an output
from an input and do nothing else, so a second execution has the same effect as the first. A `model.py` may do anything,
and is executed once unless its configuration declares it idempotent. Requests of sequences and of decoupled models are
never executed again: the sequence's state has moved on, or a part of the responses has been sent.

    parameters { key: "idempotent" value { string_value: "true" } }
"""

from typing import Any

from shoal.model_config.parameters import parameter
from shoal.model_config.python_backends import runs_on

#: Backends that run users' code; a backend that is not built in is a model.py, too.
_USER_CODE = frozenset({"python", "torchserve"})


def may_run_again(config: dict[str, Any]) -> bool:
    """Whether requests to the model of a normalised configuration may be executed again."""
    if "sequence_batching" in config or config.get("model_transaction_policy", {}).get("decoupled"):
        return False
    said = parameter(config, "idempotent")
    has_backend = config["backend"] != ""  # an ensemble has none
    is_user_code = (has_backend and runs_on(config) in _USER_CODE) or config.get("runtime") == "model.py"
    return bool(said == "true" or (said != "false" and not is_user_code))
