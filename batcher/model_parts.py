"""The parts of a model that most models lack, as the table of open requests sees them: a cache, a recording, a mirror.

Each part is implemented and described in a file of its own. ScheduledModel, OpenRequest and RunningBatch are `Any`
here: peers.py, which defines them, imports this file. Live in the batcher.
"""

from typing import Any, Protocol, TypeAlias

from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.statistics import Compute

_Model: TypeAlias = Any
_Request: TypeAlias = Any
_Batch: TypeAlias = Any


class CoalescingCache(Protocol):
    """A cache that answers several requests with one response; implemented and described in cached_responses.py."""

    def take(self, model: _Model, queued: QueuedRequest, digest: tuple[int, int]) -> bool: ...
    def settle(
        self, model: _Model, key: int, answer: tuple[int, int, int] | None, now_ns: int, *, is_executed: bool
    ) -> None: ...
    def cancel(self, key: int) -> bool: ...
    def abandon(self, model: _Model, key: int) -> None: ...
    def drain(self, model_id: int) -> list[int]: ...


class RequestRecording(Protocol):
    """The recording of a model's requests; implemented and described in recording.py."""

    def note(
        self, request: _Request, answer: tuple[int, int, int, int], compute: Compute, now_ns: int,
        running: _Batch | None = None, refusal: tuple[int, int] = (0, 0),
    ) -> None: ...  # fmt: skip
    def note_part(self, request: _Request, answer: tuple[int, int, int, int], now_ns: int) -> None: ...
    def note_death(self, request: _Request, running: _Batch, refusal: tuple[int, int], now_ns: int) -> None: ...


class RequestMirror(Protocol):
    """The mirroring of a model's requests to its shadow; implemented and described in mirror.py."""

    def note(
        self, request: _Request, answer: tuple[int, int, int, int], compute: Compute, now_ns: int,
        running: _Batch | None,
    ) -> bool: ...  # fmt: skip
