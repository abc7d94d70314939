"""Parameters of TorchServe's requests, read as TorchServe reads them: one that should be a number and is not counts as
absent, only `true` is true. Pure."""

import re

_INTEGER = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)


def integer(text: str, default: int) -> int:
    """The number in a text; `default` where there is none."""
    return int(text) if _INTEGER.fullmatch(text) else default


def boolean(text: str) -> bool:
    """Whether a text says `true`, in any case."""
    return text.lower() == "true"
