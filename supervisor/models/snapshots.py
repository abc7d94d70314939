"""Snapshots of TorchServe's registrations: one at the start, one after every change, one at the stop.

The poller writes the files (repository/torchserve/snapshots.py), one after the other; of several that wait, the last
one is written. Runs in the supervisor.
"""

import json
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal

from shoal.errors import ShoalError
from shoal.supervisor.event_loop import EventLoop, first
from shoal.supervisor.processes.repository import RepositoryPoller

_log = logging.getLogger(__name__)

#: Seconds that a stopping server waits for its last snapshot (ours).
LAST_WAIT_S = 5.0
Occasion = Literal["startup", "snapshot", "shutdown"]
#: The models of a snapshot: name → version → settings, by TorchServe's names.
ModelsSnapshot = Mapping[str, Mapping[str, Mapping[str, Any]]]


class Snapshots:
    """The snapshots of one server."""

    def __init__(
        self,
        loop: EventLoop,
        repository: RepositoryPoller,
        describe: Callable[[], ModelsSnapshot],
        *,
        are_written: bool,
    ) -> None:
        self._loop = loop
        self._repository = repository
        self._describe = describe
        self._are_written = are_written
        # Changed by save: whether the snapshot of the start was ordered; whether a snapshot is being written; the
        # occasion of the snapshot that follows, if any; the sentence of the last refusal, which is not logged again.
        self._has_begun = False
        self._is_writing = False
        self._next: Occasion | None = None
        self._complaint = ""

    def save(self, occasion: Occasion) -> None:
        """Have a snapshot of the present state written. While one is being written, only the last of further calls
        counts."""
        if not self._are_written:
            return
        self._has_begun, self._next = True, occasion
        if not self._is_writing:
            self._is_writing = True
            self._loop.start(self._write())

    async def save_last(self) -> None:
        """Have the snapshot of the stop written; returns when it is, or has taken too long. A server that stops while
        it starts leaves none: its models are not all there."""
        if self._has_begun:
            self._next = None
            await first(self._loop.begin(self._write_one("shutdown")), limit_s=LAST_WAIT_S)

    async def _write(self) -> None:
        try:
            while (occasion := self._next) is not None:
                self._next = None
                await self._write_one(occasion)
        finally:
            self._is_writing = False

    async def _write_one(self, occasion: Occasion) -> None:
        name = f"{datetime.now().strftime('%Y%m%d%H%M%S%f')[:17]}-{occasion}.cfg"
        try:
            await self._repository.save_snapshot(name, json.dumps(self._describe()))
        except ShoalError as error:
            complaint = str(error).replace(name, "")
            if complaint != self._complaint:
                self._complaint = complaint
                _log.warning("%s", error)
