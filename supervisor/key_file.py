"""The file of --api-keys, which only the supervisor reads; it sends the digests in it to the front ends."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from shoal.api_keys import MAX_FILE_BYTES, ApiKey, parse_keys
from shoal.errors import InvalidArgumentError
from shoal.messages.to_client import ApiKeysChanged
from shoal.model_config.files import read
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.memory.star import Star

_log = logging.getLogger(__name__)


def read_keys(path: str) -> tuple[ApiKey, ...]:
    """The keys in the file. Raises InvalidArgumentError, which says what is wrong with the file."""
    try:
        return parse_keys(read(Path(path), MAX_FILE_BYTES + 1))
    except OSError as error:
        raise InvalidArgumentError(f"cannot read '{path}' for --api-keys: {error.strerror}") from error
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"--api-keys={path}: {error}") from error


class KeyFile:
    """The keys that the server admits now; `keys` is None where no request needs one."""

    def __init__(self, path: str, star: Star, keys: tuple[ApiKey, ...] | None) -> None:
        self._path = path
        self._star = star
        # Changed by _admit.
        self.keys = keys

    @property
    def rows(self) -> list[Any] | None:
        return None if self.keys is None else [list(key) for key in self.keys]

    def read(self) -> Callable[[], None]:
        """Read the file again; returns a function for the event loop to call, which puts the keys in force or logs why
        they cannot be. Any thread may read."""
        try:
            return partial(self._admit, read_keys(self._path))
        except InvalidArgumentError as error:
            return partial(_log.error, "%s. The keys that were read before stay in force", error)

    def _admit(self, keys: tuple[ApiKey, ...]) -> None:
        self.keys = keys
        _log.info("%d API keys are in force, read from '%s'", len(keys), self._path)
        self._star.acknowledgements.announce(self._star.to_front_ends(self._message()))

    def send_to(self, client: Participant) -> None:
        """Send the present keys to a front end that has joined: the keys in its welcome may be older."""
        if self.keys is not None:
            client.member.send(self._message())

    def _message(self) -> ApiKeysChanged:
        return ApiKeysChanged(self.rows or [])
