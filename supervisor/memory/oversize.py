"""Segments for single payloads that no slab takes: made on request, bounded together, closed after use.

    asked ─► made ─► mapped by its writer ─► sealed, announced to its readers ─► used ─► gone ─► let go by all, closed

The writer may keep a used segment for its next payload (shm/whole_slabs.py): as long as it is kept, it counts.

Runs in the supervisor. This file has the table and the bounds; star.py and payloads.py announce segments.
"""

import os
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.open_files import RAISE, explain
from shoal.shared_settings import MAX_OVERSIZE_BYTES
from shoal.shm import layout, segment
from shoal.shm.shares import may_take
from shoal.supervisor.memory.memory_plan import MAX_OVERSIZE_SEGMENTS, oversize_geometry

#: Values in place of a model id: RESULT, which clients read; ASKED_FOR, a payload for any process that asks for it
#: (loans.py).
RESULT, ASKED_FOR = 0, -1
#: Kept segments take at most a quarter of what all segments may take: a writer may keep none beyond that (ours).
KEPT_PART = 4


@dataclass(slots=True, eq=False)
class OversizeSegment:
    """The memory of one payload. References to its only block carry `owner`."""

    owner: int
    asker: int  # the owner id of the client or worker that writes it
    model_id: int  # a front end's request: the model whose workers read it; else RESULT or ASKED_FOR
    nbytes: int
    segment_fd: int
    read_only_fd: int
    is_guests: bool = False  # its writer is a guest
    may_be_kept: bool = False  # its writer may keep it for a while, once its readers have used it
    is_mapped: bool = False  # its writer has mapped it, so it may be announced


class OversizeSegments:
    """All segments for single payloads. `available_nbytes` returns how much memory is free, `is_scarce` whether
    so few descriptors are left that none is given to a segment."""

    def __init__(
        self, limit_nbytes: int, available_nbytes: Callable[[], int], is_scarce: Callable[[], bool] = lambda: False
    ) -> None:
        self._limit_nbytes = limit_nbytes
        self._available_nbytes = available_nbytes
        self._is_scarce = is_scarce
        # Changed by create, remove and close.
        self._segments: dict[int, OversizeSegment] = {}
        self._leaving = Counter[int]()  # by asker: the number of removed segments that readers still map
        self._num_made = 0
        self._num_open = 0
        self._nbytes = 0

    def __contains__(self, owner: int) -> bool:
        return owner in self._segments

    @property
    def counts(self) -> dict[str, int]:
        """For the ledger: how many segments have been made, and how many of them every process has unmapped."""
        return {"oversize_acquired": self._num_made, "oversize_released": self._num_made - self._num_open}

    def create(
        self, owner: int, asker: int, model_id: int, payload_nbytes: int, *, is_guests: bool = False
    ) -> OversizeSegment:
        """A new segment for one payload; making it takes as long as clearing its memory does (30 ms for 100 MiB).

        Raises InvalidArgumentError where the payload can never fit, UnavailableError where there is no room now.
        """
        geometry = oversize_geometry(min(payload_nbytes, MAX_OVERSIZE_BYTES))
        nbytes = geometry.nbytes
        self._check_room(payload_nbytes, nbytes)
        if is_guests:
            self._check_guests_share(payload_nbytes, nbytes)
        elif model_id == RESULT:
            self._check_workers_share(asker, payload_nbytes, nbytes)
        else:
            self._check_askers_share(asker, model_id, payload_nbytes)
        is_little = self._nbytes + nbytes <= self._limit_nbytes // KEPT_PART
        may_be_kept = not is_guests and is_little and self._num_open < MAX_OVERSIZE_SEGMENTS // KEPT_PART
        try:
            with ExitStack() as undo:
                segment_fd = segment.create(layout.OVERSIZE, owner, geometry, sealed=True, for_guest=is_guests)
                undo.callback(os.close, segment_fd)
                read_only_fd = segment.read_only(segment_fd)
                undo.pop_all()
        except (OSError, segment.OutOfSharedMemoryError) as error:
            raise UnavailableError(
                f"no shared memory for a payload of {payload_nbytes} bytes: {explain(error)}"
            ) from error
        made = OversizeSegment(owner, asker, model_id, nbytes, segment_fd, read_only_fd, is_guests, may_be_kept)
        self._segments[owner] = made
        self._num_made += 1
        self._num_open += 1
        self._nbytes += nbytes
        return made

    def _check_room(self, payload_nbytes: int, nbytes: int) -> None:
        what = f"a payload of {payload_nbytes} bytes, its tensors' padding and header included,"
        if payload_nbytes > MAX_OVERSIZE_BYTES:
            raise InvalidArgumentError(
                f"{what} is larger than any block of shared memory, which has at most {MAX_OVERSIZE_BYTES} bytes. "
                "Send smaller batches"
            )
        if nbytes > self._limit_nbytes:
            raise InvalidArgumentError(
                f"{what} is too large for a slab, and all such payloads together may take {self._limit_nbytes} bytes. "
                "Send smaller batches, or raise --shm-oversize-mib"
            )
        if self._nbytes + nbytes > self._limit_nbytes:
            raise UnavailableError(
                f"{what} is too large for a slab, and others like it hold {self._nbytes} of the {self._limit_nbytes} "
                "bytes that they may take together. Try again, send smaller batches, or raise --shm-oversize-mib"
            )
        if self._num_open >= MAX_OVERSIZE_SEGMENTS:
            raise UnavailableError(
                f"{what} is too large for a slab, and there are {self._num_open} like it already, no more are taken. "
                "Try again, or send smaller batches"
            )
        if self._is_scarce():
            raise UnavailableError(
                f"{what} is too large for a slab, and the server keeps its last file descriptors for instances that "
                f"start again. Try again, or send smaller batches. {RAISE}"
            )
        available = self._available_nbytes()
        if nbytes > available:
            raise UnavailableError(
                f"{what} finds {available} bytes of memory available. Try again, send smaller batches, or give the "
                "server more memory; --shm-oversize-mib allows more than there is"
            )

    def _check_workers_share(self, asker: int, payload_nbytes: int, nbytes: int) -> None:
        """One worker's results take at most half of the limit, or one segment of any size: the rest is for other
        workers."""
        own = [each.nbytes for each in self.written_by(asker)]
        if own and (sum(own) + nbytes > self._limit_nbytes // 2 or len(own) >= MAX_OVERSIZE_SEGMENTS // 2):
            raise UnavailableError(
                f"a result of {payload_nbytes} bytes finds no room in the slab, and {len(own)} earlier ones hold "
                f"{sum(own)} of the {self._limit_nbytes // 2} bytes that one instance's may take beside it. Try again, "
                "send smaller batches, or raise --shm-oversize-mib"
            )

    def _check_askers_share(self, asker: int, model_id: int, payload_nbytes: int) -> None:
        """Requests of front ends to one model, and those of one model that calls others, may always have one segment,
        and get a further one only while they hold less than a multiple of what is free (shm/shares.py). A slow model
        holds the memory of its requests for long, and must leave some to other models."""
        if model_id == ASKED_FOR:
            own = [each.nbytes for each in self.written_by(asker)]
        else:
            own = [each.nbytes for each in self._segments.values() if each.model_id == model_id]
        free_nbytes, num_free = self._limit_nbytes - self._nbytes, MAX_OVERSIZE_SEGMENTS - self._num_open
        if own and not (may_take(sum(own), free_nbytes) and may_take(len(own), num_free)):
            of_whom = "the same model" if model_id != ASKED_FOR else "other models by the same one"
            raise UnavailableError(
                f"a payload of {payload_nbytes} bytes, its tensors' padding and header included, is too large for a "
                f"slab, and {len(own)} requests like it to {of_whom} hold {sum(own)} bytes, of {self._limit_nbytes} "
                f"that all may take together. The {free_nbytes} that are left are kept for "
                "others. Try again, send smaller batches, or raise --shm-oversize-mib"
            )

    def _check_guests_share(self, payload_nbytes: int, nbytes: int) -> None:
        """Guests' segments take at most half of the limit: a guest keeps a segment for as long as it likes."""
        guests = [each.nbytes for each in self._segments.values() if each.is_guests]
        what = f"a tensor of {payload_nbytes} bytes is too large for a client's slab, and"
        if nbytes > self._limit_nbytes // 2:
            raise InvalidArgumentError(
                f"{what} those of all clients together may take {self._limit_nbytes // 2} bytes. Send smaller batches, "
                "or raise --shm-oversize-mib"
            )
        if sum(guests) + nbytes > self._limit_nbytes // 2 or len(guests) >= MAX_OVERSIZE_SEGMENTS // 2:
            raise UnavailableError(
                f"{what} {len(guests)} like it hold {sum(guests)} of the {self._limit_nbytes // 2} bytes that those of "
                "all clients may take together. Try again, let go of arrays, or raise --shm-oversize-mib"
            )

    def find(self, owner: int, asker: int) -> OversizeSegment | None:
        """The segment `owner` that this client or worker asked for; None where it is gone or another's."""
        found = self._segments.get(owner)
        return found if found is not None and found.asker == asker else None

    def lendable(self, owner: int) -> OversizeSegment | None:
        """The segment `owner`, for any process that asks; None where it is gone or not mapped by its writer yet."""
        found = self._segments.get(owner)
        return found if found is not None and found.is_mapped else None

    def written_by(self, asker: int) -> list[OversizeSegment]:
        return [each for each in self._segments.values() if each.asker == asker]

    def read_by(self, model_id: int) -> list[OversizeSegment]:
        """The segments with requests to a model (or with results: RESULT) that may be announced."""
        return [each for each in self._segments.values() if each.model_id == model_id and each.is_mapped]

    def mapped(self) -> list[OversizeSegment]:
        return [each for each in self._segments.values() if each.is_mapped]

    def remove(self, gone: OversizeSegment) -> None:
        """Take a segment out of the table; its memory counts until `close`, since readers have it mapped."""
        del self._segments[gone.owner]
        self._leaving[gone.asker] += 1

    def has_leaving(self, asker: int) -> bool:
        """Whether a client or worker has released a segment that is still mapped, so that room will come back."""
        return self._leaving[asker] > 0

    def close(self, gone: OversizeSegment) -> None:
        """Close a removed segment: all readers have unmapped it."""
        os.close(gone.segment_fd)
        os.close(gone.read_only_fd)
        self._num_open -= 1
        self._leaving -= Counter((gone.asker,))
        self._nbytes -= gone.nbytes
