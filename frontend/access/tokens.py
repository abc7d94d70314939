"""The tokens that requests to TorchServe's listeners must have: `Authorization: Bearer KEY`, by key_file.json.

The file is read again when it has changed. While the file cannot be read, no request that needs a key is admitted.
Front-end processes.
"""

import os
from collections.abc import Mapping
from datetime import datetime
from hmac import compare_digest
from typing import Any

import orjson

from shoal.frontend.torchserve.errors import refused

#: Group of a route → the key that requests to the route must have; requests for metrics need none.
_KEYS = {"inference": "inference", "health": "inference", "model-repository": "management", "token": "API"}
_BEARER = "bearer "
REFUSAL, TOKEN_REFUSAL = (
    refused(
        400, "InvalidKeyException", f"Token {what} failed. Token either incorrect, expired, or not provided correctly"
    )
    for what in ("Authorization", "Authentication")  # requests that renew a token have the field Authentication
)


class Tokens:
    """The keys in key_file.json, read again when the file changes; without a path every request is admitted."""

    def __init__(self, path: str) -> None:
        self._path = path
        # Changed by admits: the file's identity when it was read, and its keys.
        self._seen: tuple[int, int, int] | None = None
        self._keys: dict[str, Any] = {}

    def admits(self, group: str, headers: Mapping[str, str], now: datetime) -> bool:
        """Whether a request to a route of this group has the group's key, not expired, or the group needs none;
        `headers` have names in lower case."""
        kind = _KEYS.get(group)
        if not self._path or kind is None:
            return True
        sent = headers.get("authorization", "")
        if sent[: len(_BEARER)].lower() != _BEARER:
            return False
        entry: Any = self._read().get(kind)
        try:
            is_known = compare_digest(
                sent[len(_BEARER) :].strip().encode("latin-1", "replace"), str(entry["key"]).encode()
            )
            if kind == "API":  # a key of this kind does not expire
                return is_known
            expires = datetime.fromisoformat(entry["expiration time"])
            return is_known and now.astimezone() < expires.astimezone()
        except (KeyError, TypeError, ValueError):
            return False

    def _read(self) -> dict[str, Any]:
        try:
            found = os.stat(self._path)
            seen = found.st_ino, found.st_mtime_ns, found.st_size
            if seen != self._seen:
                with open(self._path, "rb") as file:
                    read = orjson.loads(file.read(1 << 16))
                self._keys = read if isinstance(read, dict) else {}
                self._seen = seen
        except (OSError, ValueError):
            self._keys, self._seen = {}, None
        return self._keys
