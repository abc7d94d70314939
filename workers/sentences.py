"""The sentence of an error, as it lies in a block for the client. Pure; runs in a worker."""

import re

from shoal.errors import ShoalError

#: Longest sentence of an error, in bytes: one fits into the smallest block.
MAX_SENTENCE_BYTES = 4096

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")  # line feeds and tabs stay, as in tracebacks


def sentence_bytes(error: ShoalError) -> bytes:
    """An error's sentence in UTF-8, cut at MAX_SENTENCE_BYTES; control characters but tab and line feed are escaped."""
    data = _CONTROL_CHARACTERS.sub(lambda found: repr(found[0])[1:-1], str(error)).encode(errors="replace")
    return data if len(data) <= MAX_SENTENCE_BYTES else data[:MAX_SENTENCE_BYTES].decode(errors="ignore").encode()


def text_of(error: BaseException) -> str:
    """The text of an exception. The exception's class may be a model's own, and its `str` may fail."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever a model raises must become an answer
        return "<exception str() failed>"  # as in Python's own tracebacks
