"""The `parameters` of a model's configuration: texts by name, for what Triton has no field for. Pure."""

from collections.abc import Iterator

from shoal.model_config.messages import Config

#: Leading zeros are read, as long as a number has no more digits than this, or than the largest one allowed (ours).
_DIGITS = 7


def parameter(config: Config, name: str) -> str | None:
    """The text of a parameter; None where the configuration does not have it."""
    value = config.get("parameters", {}).get(name)
    return None if value is None else str(value.get("string_value", ""))


def whole_number_faults(config: Config, name: str, least: int, most: int, wanted: str) -> Iterator[str]:
    """The rule for a parameter that is a whole number from `least` to `most`, which the sentence calls `wanted`."""
    text = parameter(config, name)
    if text is None:
        return
    is_number = text.isascii() and text.isdecimal() and len(text) <= max(_DIGITS, len(str(most)))
    if not (is_number and least <= int(text) <= most):
        yield f"parameter '{name}' of model '{config['name']}' is '{text}', must be {wanted}"
