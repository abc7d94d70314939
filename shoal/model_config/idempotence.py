"""Whether a request may be executed a second time after its first execution ended with the instance's death. Pure.

Triton has no word for it: its stub's death fails what was executing. Here the built-in backends compute an output from
an input and nothing else, so a second time is as good as the first. A `model.py` may do anything, and is executed once
unless its configuration declares it idempotent. A sequence has moved on and a stream has begun: their requests are
never executed again.

    parameters { key: "idempotent" value { string_value: "true" } }
"""

from typing import Any

from shoal.model_config.parameters import parameter

#: Backends that run what a user wrote.
_USER_CODE = frozenset({"python"})


def may_run_again(config: dict[str, Any]) -> bool:
    """By a normalised configuration."""
    if "sequence_batching" in config or config.get("model_transaction_policy", {}).get("decoupled"):
        return False
    said = parameter(config, "idempotent")
    is_user_code = config["backend"] in _USER_CODE or config.get("runtime") == "model.py"
    return bool(said == "true" or (said != "false" and not is_user_code))
