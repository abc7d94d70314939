"""The parts of a model that most models lack, as the tables of requests see them: a cache, a recording, a mirror.

Each is implemented and described in a file of its own. Live in the batcher.
"""

from typing import TYPE_CHECKING, Protocol

from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.statistics import Compute

if TYPE_CHECKING:
    from shoal.batcher.peers import OpenRequest, RunningBatch, ScheduledModel


class CoalescingCache(Protocol):
    """A cache that answers several requests with one response; implemented and described in cached_responses.py."""

    def take(self, model: "ScheduledModel", queued: QueuedRequest, digest: tuple[int, int]) -> bool: ...
    def settle(self, model: "ScheduledModel", key: int, answer: tuple[int, int, int] | None, now_ns: int) -> None: ...
    def cancel(self, key: int) -> bool: ...
    def abandon(self, model: "ScheduledModel", key: int) -> None: ...
    def drain(self, model_id: int) -> list[int]: ...


class RequestRecording(Protocol):
    """The recording of a model's requests; implemented and described in recording.py."""

    def note(
        self, request: "OpenRequest", answer: tuple[int, int, int, int], compute: Compute, now_ns: int,
        running: "RunningBatch | None" = None, refusal: tuple[int, int] = (0, 0),
    ) -> None: ...  # fmt: skip
    def note_part(self, request: "OpenRequest", answer: tuple[int, int, int, int], now_ns: int) -> None: ...
    def note_death(
        self, request: "OpenRequest", running: "RunningBatch", refusal: tuple[int, int], now_ns: int
    ) -> None: ...


class RequestMirror(Protocol):
    """The mirroring of a model's requests to its shadow; implemented and described in mirror.py."""

    def note(
        self, request: "OpenRequest", answer: tuple[int, int, int, int], compute: Compute, now_ns: int,
        running: "RunningBatch | None",
    ) -> bool: ...  # fmt: skip
