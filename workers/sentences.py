"""The sentence of an error, in the form in which it lies in a block for the client. Pure; runs in a worker."""

import re

from shoal.errors import ShoalError

#: The longest sentence of an error in bytes; it fits into the smallest block.
MAX_SENTENCE_BYTES = 4096

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")  # not line feeds and tabs, which tracebacks have


def sentence_bytes(error: ShoalError) -> bytes:
    """An error's sentence in UTF-8, cut at MAX_SENTENCE_BYTES; control characters except tab and line feed are
    escaped."""
    data = _CONTROL_CHARACTERS.sub(lambda found: repr(found[0])[1:-1], str(error)).encode(errors="replace")
    return data if len(data) <= MAX_SENTENCE_BYTES else data[:MAX_SENTENCE_BYTES].decode(errors="ignore").encode()


def text_of(error: BaseException) -> str:
    """The text of an exception. Its class may be a model's own, whose `str` may fail: then a fixed text is returned."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever a model raises must become an answer
        return "<exception str() failed>"  # as in Python's own tracebacks
