"""Answers that other servers can find: names that mean the same to all of them, and bytes that are not taken on trust.

A name is  shoal:1:<model>:<version>:<loaded>:<asked>  where <loaded> says what the version was loaded from (`revision`
in repository/plan.py), <asked> what was asked (shoal/star/request_digest.py). A value, with little-endian numbers:

    offset  size
      0       4  b"SRC1"
      4       4  u32  CRC-32 of all that follows
      8       4  u32  where the header begins, in what follows at 16
     12       4  u32  nothing yet: 0
     16          tensors, each where its header says, and the header, as in a block (request.py's pack_response)

The 1 of both is to be another where digests or values are made otherwise. Lives in the batcher.
"""

import struct
from math import prod
from typing import NamedTuple, Protocol
from zlib import crc32

from shoal.batcher.response_cache import Identity
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.datatypes import BY_WIRE
from shoal.errors import InternalError
from shoal.request import unpack_response

#: A larger value is neither kept nor looked at (measured: one of a MiB takes the batcher 0.4 ms to keep, 0.7 to find).
MAX_VALUE_BYTES = 1 << 20

_PREFIX = "shoal:1:"
_MAGIC = b"SRC1"
_HEAD = struct.Struct("<4sIII")
_CHECKED_FROM = 8


class Store(Protocol):
    """Values by name, somewhere (redis_connection.py says what is promised)."""

    @property
    def deadline_ns(self) -> int | None: ...
    def ask(self, key: int, name: bytes, now_ns: int, deadline_ns: int = 0) -> bool: ...
    def forget(self, key: int) -> bool: ...
    def keep(self, name: bytes, value: bytes, now_ns: int) -> None: ...
    def step(self, now_ns: int) -> list[tuple[int, bytes | None]]: ...


class Answer(NamedTuple):
    """A value that makes sense: what goes into a block, and where the header is in it."""

    contents: memoryview
    header: int


class LookUp(NamedTuple):
    """A request whose answer may be there."""

    identity: Identity
    began_ns: int


class SharedAnswers:
    """Who waits for the store, and what is told to it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # Changed by name and unname: how the names of a model version's answers begin, by its id.
        self._names: dict[int, bytes] = {}
        # Changed by look_up, forget and step.
        self._pending: dict[int, LookUp] = {}

    # --- models ---

    def name(self, model_id: int, revision: str) -> None:
        """What a model version is called wherever it is served."""
        self._names[model_id] = f"{_PREFIX}{revision}:".encode()

    def unname(self, model_id: int) -> None:
        """It is gone: what is still executed of it is not kept."""
        self._names.pop(model_id, None)

    def drop(self, model_id: int) -> list[int]:
        """Whoever waits for an answer of this version does no more."""
        keys = [key for key, look_up in self._pending.items() if look_up.identity.model_id == model_id]
        for key in keys:
            self.forget(key)
        return keys

    @property
    def in_use(self) -> set[int]:
        """The models whose answers are waited for."""
        return {look_up.identity.model_id for look_up in self._pending.values()}

    # --- answers ---

    def look_up(self, identity: Identity, queued: QueuedRequest, now_ns: int) -> bool:
        """Whether the request waits now: `step` says for what."""
        if not self._store.ask(queued.key, self._name(identity), now_ns, queued.deadline_ns):
            return False
        self._pending[queued.key] = LookUp(identity, now_ns)
        return True

    def forget(self, key: int) -> bool:
        """Whether the request waited; it does no more."""
        self._store.forget(key)
        return self._pending.pop(key, None) is not None

    def keep(self, identity: Identity, contents: memoryview, header: int, now_ns: int) -> None:
        """Let others find an answer, unless it is large."""
        if len(contents) + _HEAD.size > MAX_VALUE_BYTES or identity.model_id not in self._names:
            return
        self._store.keep(self._name(identity), pack_answer(contents, header), now_ns)

    @property
    def deadline_ns(self) -> int | None:
        """When `step` must run again though nobody rings; 0: at once."""
        return self._store.deadline_ns

    def step(self, now_ns: int) -> list[tuple[int, LookUp, Answer | None]]:
        """Who has waited for what, and what was found."""
        found = self._store.step(now_ns)
        return [(key, self._pending.pop(key), unpack_answer(value) if value else None) for key, value in found]

    def _name(self, identity: Identity) -> bytes:
        return self._names[identity.model_id] + b"%016x%016x" % (identity.digest_high, identity.digest_low)


def pack_answer(contents: memoryview, header: int) -> bytes:
    """A value of what lies in a block: tensors, and from `header` on how they are to be read."""
    rest = struct.pack("<II", header, 0)
    return b"".join((_MAGIC, struct.pack("<I", crc32(contents, crc32(rest))), rest, contents))


def unpack_answer(value: bytes) -> Answer | None:
    """What `pack_answer` made, None for anything else."""
    if len(value) < _HEAD.size:
        return None
    magic, checksum, header, nothing = _HEAD.unpack_from(value)
    whole = memoryview(value)
    contents = whole[_HEAD.size :]
    if magic != _MAGIC or nothing or header > len(contents) or crc32(whole[_CHECKED_FROM:]) != checksum:
        return None
    try:
        outputs, _ = unpack_response(contents[header:], header)
    except InternalError:
        return None
    for _, wire, shape, _, nbytes in outputs:
        size = BY_WIRE[wire].itemsize
        if size and prod(shape) * size != nbytes:
            return None
    return Answer(contents, header)
