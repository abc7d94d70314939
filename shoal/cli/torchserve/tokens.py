"""key_file.json: the tokens that requests to TorchServe's listeners must have. Written when the server starts."""

import json
import os
import secrets
from datetime import datetime, timedelta
from pathlib import Path

FILE = "key_file.json"
#: Bytes of a key: eight characters of URL-safe base64, as TorchServe's.
_KEY_BYTES = 6


def write_keys(path: Path, now: datetime, expires_min: int) -> None:
    """Write fresh keys, for this user only. Raises OSError.

    The key of the API, by which others are made, does not expire.
    """
    expires = (now + timedelta(minutes=expires_min)).isoformat()
    keys = {
        "management": {"key": _key(), "expiration time": expires},
        "inference": {"key": _key(), "expiration time": expires},
        "API": {"key": _key()},
    }
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump(keys, file, indent=2)
    part.replace(path)  # publishes: all keys at once


def _key() -> str:
    return secrets.token_urlsafe(_KEY_BYTES)
