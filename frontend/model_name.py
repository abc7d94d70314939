"""What can be a model's name: that of a directory, which leads nowhere else. Pure; front-end processes."""

import re
from urllib.parse import unquote_to_bytes

from shoal.errors import InvalidArgumentError

#: A model is a directory, and that is as long as a file name can be.
MAX_NAME_BYTES = 255
_CONTROL = re.compile("[\x00-\x1f\x7f]")


def decode_name(raw: str) -> str:
    """A name in a path, percent-decoded once. Raises InvalidArgumentError for what can be no model's directory."""
    if raw.isalnum() and raw.isascii() and len(raw) <= MAX_NAME_BYTES:
        return raw
    decoded = unquote_to_bytes(raw.encode("latin-1", "replace"))  # servers hand over the path as latin-1
    name = decoded.decode("utf-8", "replace")
    _check(name, len(decoded), f"{raw[:80]}' in the path", "percent-encoded UTF-8")
    return name


def check_name(name: str) -> None:
    """Raise InvalidArgumentError for what can be no model's directory."""
    _check(name, len(name.encode()), f"{name[:80]}'", "UTF-8")


def _check(name: str, nbytes: int, shown: str, encoding: str) -> None:
    if name in {".", ".."} or "/" in name:
        raise InvalidArgumentError(
            f"invalid model name '{name}', model name must not contain path traversal characters"
        )
    if nbytes > MAX_NAME_BYTES or "\ufffd" in name or _CONTROL.search(name):
        raise InvalidArgumentError(
            f"invalid model name '{shown} ({nbytes} bytes): expected at most {MAX_NAME_BYTES} "
            f"bytes of {encoding} without control characters. Ask for the model by its directory's name"
        )
