"""The parameter `deterministic` of a request: the request is executed in a batch of its own, so that no other request
has any effect on the bits of its answer. Pure.

In a request's record the parameter is the flag ALONE, beside the flags of sequences; the model sees the parameter as
any other. What a model's configuration says about determinism is in shoal/model_config/determinism.py.
"""

from collections.abc import Mapping
from typing import Final

from shoal.errors import InvalidArgumentError

PARAMETER = "deterministic"
#: The bit in the FLAGS of a REQUEST, behind those of shoal/sequences.py.
ALONE: Final = 4
#: In the batcher: a shape key from here on is that of one request alone, whose key is in the lower bits. Clients' shape
#: keys are words, and so smaller.
ALONE_KEY: Final = 1 << 64
#: Values of the parameter: booleans in HTTP and gRPC, texts in query strings of `generate` and in forwarded headers.
_MEANINGS = {True: ALONE, False: 0, "true": ALONE, "false": 0}


def alone_flag(parameters: Mapping[str, "str | int | float | bool"]) -> int:
    """The flag for a request with these parameters: ALONE, or 0. Raises InvalidArgumentError for a value that is
    neither true nor false."""
    if PARAMETER not in parameters:
        return 0
    value = parameters[PARAMETER]
    if value not in _MEANINGS:
        raise InvalidArgumentError(f"parameter '{PARAMETER}' is {value!r}, must be true or false")
    return _MEANINGS[value]
