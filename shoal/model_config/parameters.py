"""The `parameters` of a model's configuration: texts by name, for settings that Triton has no field for. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from shoal.model_config.messages import Config

#: Leading zeros are accepted while a number has at most this many digits, or as many as the largest allowed one (ours).
_DIGITS = 7


def parameter(config: Mapping[str, Any], name: str) -> str | None:
    """The text of a parameter; None where the configuration lacks it."""
    value = config.get("parameters", {}).get(name)
    return None if value is None else str(value.get("string_value", ""))


def whole_number_faults(config: Config, name: str, least: int, most: int, wanted: str) -> Iterator[str]:
    """The sentence about a parameter that is no whole number from `least` to `most`; `wanted` are the words for that
    range."""
    text = parameter(config, name)
    if text is None:
        return
    is_number = text.isascii() and text.isdecimal() and len(text) <= max(_DIGITS, len(str(most)))
    if not (is_number and least <= int(text) <= most):
        yield f"parameter '{name}' of model '{config['name']}' is '{text}', must be {wanted}"
