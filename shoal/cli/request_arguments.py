"""The arguments that the verbs `run` and `infer` take of a request: pairs, parameters, and how often to ask."""

import argparse
import json
from typing import Any


def name_and_value(text: str) -> tuple[str, str]:
    """The parts of `<name>=<value>`. Raises ArgumentTypeError for any other text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"expected <name>=<value>, got '{text}'")
    return name, value


def count(text: str) -> int:
    """A number of times, at least one. Raises ArgumentTypeError for any other text."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, got '{text}'")
    return int(text)


def parameter(text: str) -> Any:
    """The value of a request parameter: a number or a truth value where the text is one in JSON, or else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float)) else text
