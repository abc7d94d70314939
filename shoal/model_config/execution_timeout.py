"""The execution limit of one model: the time after which a batch without a response counts as hanging. Pure.

    parameters { key: "execution_timeout_ms" value { string_value: "1500" } }

Triton has no such limit, so it is a parameter, as any setting that Triton does not know. 0 means no limit.
"""

from collections.abc import Iterator

from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter, whole_number_faults

PARAMETER = "execution_timeout_ms"
_LOAD_PARAMETER = "ts_startup_timeout_s"
#: The most milliseconds: one hour, as for every other time in a configuration (ours).
MAX_MS = 3_600_000


def execution_timeout_ms(config: Config) -> int | None:
    """The limit in milliseconds; None where the server's limit holds. The configuration has been checked."""
    text = parameter(config, PARAMETER)
    return None if text is None else int(text)


def execution_limit_ms(config: Config, server_limit_s: int) -> int:
    """The limit in force in milliseconds; 0 for none."""
    own = execution_timeout_ms(config)
    return server_limit_s * 1000 if own is None else own


def load_timeout_s(config: Config) -> int | None:
    """Seconds that an instance has to load, as a TorchServe archive says; None where the server's limit holds."""
    text = parameter(config, _LOAD_PARAMETER) or ""
    return min(int(text[:10]), MAX_MS) or None if text.isascii() and text.isdecimal() else None


def faults(config: Config) -> Iterator[str]:
    """Check that the parameter is a whole number, at most one hour."""
    wanted = f"a whole number of milliseconds, at most {MAX_MS} (one hour), or 0 for no limit"
    return whole_number_faults(config, PARAMETER, 0, MAX_MS, wanted)
