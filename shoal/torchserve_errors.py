"""Errors as TorchServe words them: a status, a type and a message, carried in the sentence of a ShoalError.

    ts:404:ModelNotFoundException:Model not found: resnet

The front end of TorchServe's protocols takes the sentence apart again; other protocols show it as it is. Pure.
"""

import re
from typing import NamedTuple

from shoal.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ShoalError,
    UnavailableError,
    UnsupportedError,
)
from shoal.passwords import without_passwords

_FORM = re.compile(r"ts:([1-5][0-9]{2}):([A-Za-z]*):(.*)", re.DOTALL | re.ASCII)
_CLASSES: dict[int, type[ShoalError]] = {
    404: NotFoundError, 500: InternalError, 501: UnsupportedError, 503: UnavailableError, 507: InternalError,
}  # fmt: skip


class TorchServeFault(NamedTuple):
    """The content of one of TorchServe's error bodies."""

    status: int  # of HTTP
    kind: str  # the member `type`, the name of a class of TorchServe's
    message: str


def torchserve_error(status: int, kind: str, message: str) -> ShoalError:
    """A ShoalError that carries TorchServe's status, type and message in its sentence; URLs have *** in place of
    passwords."""
    return _CLASSES.get(status, InvalidArgumentError)(f"ts:{status}:{kind}:{without_passwords(message)}")


def torchserve_fault(sentence: str) -> TorchServeFault | None:
    """The status, type and message that a sentence carries; None where it is not of the form."""
    found = _FORM.fullmatch(sentence)
    return None if found is None else TorchServeFault(int(found[1]), found[2], found[3])
