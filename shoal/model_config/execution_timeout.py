"""A model's own execution limit: how long one batch, or one response, may take before its instance hangs. Pure.

    parameters { key: "execution_timeout_ms" value { string_value: "1500" } }

Triton has no such limit; a parameter is what its configurations have for what they do not know. 0 means none.
"""

from collections.abc import Iterator

from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter, whole_number_faults

PARAMETER = "execution_timeout_ms"
#: One hour, as for every other time in a configuration (ours).
MAX_MS = 3_600_000


def execution_timeout_ms(config: Config) -> int | None:
    """Milliseconds; None where the configuration leaves it to the server. The configuration has been checked."""
    text = parameter(config, PARAMETER)
    return None if text is None else int(text)


def faults(config: Config) -> Iterator[str]:
    """The rule: a whole number, one hour at most."""
    wanted = f"a whole number of milliseconds, at most {MAX_MS} (one hour), or 0 for no limit"
    return whole_number_faults(config, PARAMETER, 0, MAX_MS, wanted)
