"""Checks of the model names that clients send, in paths and in messages. A model's name is its directory's name in the
repository; a name that would lead to another directory is refused. Pure; front-end processes.
"""

from urllib.parse import unquote_to_bytes

from shoal.errors import InvalidArgumentError
from shoal.repository.identifier import MAX_NAME_BYTES, is_model_name


def decode_name(raw: str) -> str:
    """The model name in a URL's path, percent-decoded once. Raises InvalidArgumentError for a name that no model's
    directory can have."""
    if raw.isalnum() and raw.isascii() and len(raw) <= MAX_NAME_BYTES:
        return raw
    decoded = unquote_to_bytes(raw.encode("latin-1", "replace"))  # HTTP servers decode paths as latin-1
    name = decoded.decode("utf-8", "surrogateescape")
    if name and not is_model_name(name):  # an empty name: the path names no model
        name = decoded.decode("utf-8", "replace")
        raise _refusal(name, len(decoded), f"'{raw[:80]}' in the path", "percent-encoded UTF-8")
    return name


def check_name(name: str) -> None:
    """Raise InvalidArgumentError for a name that no model's directory can have. An empty name passes, since the look-up
    of the model raises its error."""
    if name and not is_model_name(name):
        raise _refusal(name, len(name.encode()), f"'{name[:80]}'", "UTF-8")


def _refusal(name: str, nbytes: int, shown: str, encoding: str) -> InvalidArgumentError:
    if name in {".", ".."} or "/" in name:
        return InvalidArgumentError(
            f"invalid model name '{name}', model name must not contain path traversal characters"
        )
    return InvalidArgumentError(
        f"invalid model name {shown} ({nbytes} bytes): expected at most {MAX_NAME_BYTES} "
        f"bytes of {encoding} without control characters. Ask for the model by its directory's name"
    )
