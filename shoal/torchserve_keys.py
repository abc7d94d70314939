"""key_file.json: the tokens that requests to TorchServe's listeners must have.

Written when the server starts, and by a front end where a client renews a token. The lock of the file's directory is
held meanwhile: several processes, of several servers, too, may renew keys of one file.
"""

import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

FILE = "key_file.json"
#: The tokens that expire, which the token of the API renews.
RENEWED = ("management", "inference")
#: Bytes of a key: eight characters of URL-safe base64, as TorchServe's.
_KEY_BYTES = 6
_MAX_FILE_BYTES = 1 << 16
#: How long a renewal waits for other renewals, each of which takes less than a millisecond; seconds between two looks
#: (ours).
_LOCK_S, _LOOK_S = 5.0, 0.005


def write_keys(path: Path, now: datetime, expires_min: int) -> None:
    """Write fresh keys, for this user only. Raises OSError.

    The key of the API, with which clients renew the others, does not expire.
    """
    with _locked(path):
        _write(path, {**{kind: _entry(now, expires_min) for kind in RENEWED}, "API": {"key": _key()}})


def renew_key(path: Path, kind: str, now: datetime, expires_min: int) -> None:
    """Replace the key of one of RENEWED; the others stay. Raises OSError, ValueError for a file that is no JSON
    object."""
    with _locked(path):
        with open(path, "rb") as file:
            keys = json.loads(file.read(_MAX_FILE_BYTES))
        if not isinstance(keys, dict):
            raise ValueError(f"'{path}' is no JSON object")  # noqa: TRY004 - of a file's contents
        _write(path, {**keys, kind: _entry(now, expires_min)})


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of the file's directory, since the file itself is replaced. Raises OSError after _LOCK_S."""
    directory, end_s = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), time.monotonic() + _LOCK_S
    try:
        while not _is_taken(directory):
            if time.monotonic() > end_s:
                raise TimeoutError(errno.ETIMEDOUT, f"another process has been writing keys for {_LOCK_S:g} s")
            time.sleep(_LOOK_S)
        yield
    finally:
        os.close(directory)


def _is_taken(directory: int) -> bool:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(path: Path, keys: dict[str, Any]) -> None:
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(
            os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="utf-8"
        ) as file:
            json.dump(keys, file, indent=2)
        part.replace(path)  # publishes: all keys at once
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _entry(now: datetime, expires_min: int) -> dict[str, str]:
    return {"key": _key(), "expiration time": (now + timedelta(minutes=expires_min)).isoformat()}


def _key() -> str:
    return secrets.token_urlsafe(_KEY_BYTES)
