"""Answers shared with other servers through a store: their names, equal on all servers, and their checked bytes.

A name is  shoal:1:<model>:<version>:<loaded>:<asked>  where <loaded> is a digest of what the version was loaded from
(`revision` in repository/plan.py), and <asked> is the request's digest (shoal/star/request_digest.py). A value, with
little-endian numbers:

    offset  size
      0       4  b"SRC1"
      4       4  u32  CRC-32 of all that follows
      8       4  u32  offset of the header from byte 16
     12       4  u32  0, reserved
     16          tensors, each where the header says, and the header, as in a block (request.py's pack_response)

The version number 1 in names and in the magic bytes must change when digests or values are made differently. Lives in
the batcher.
"""

import struct
from math import prod
from typing import NamedTuple, Protocol
from zlib import crc32

from shoal.batcher.response_cache import RequestIdentity
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.datatypes import BY_WIRE
from shoal.errors import InternalError
from shoal.request import unpack_response

#: Larger values are neither stored nor read (measured: for 1 MiB the batcher takes 0.4 ms to store, 0.7 to read).
MAX_VALUE_BYTES = 1 << 20

_PREFIX = "shoal:1:"
_MAGIC = b"SRC1"
_HEAD = struct.Struct("<4sIII")
_CHECKED_FROM = 8


class ValueStore(Protocol):
    """A store of values by name; redis_connection.py describes the methods."""

    @property
    def deadline_ns(self) -> int | None: ...
    def ask(self, key: int, name: bytes, now_ns: int, deadline_ns: int = 0) -> bool: ...
    def forget(self, key: int) -> bool: ...
    def keep(self, name: bytes, value: bytes, now_ns: int) -> None: ...
    def step(self, now_ns: int) -> list[tuple[int, bytes | None]]: ...


class DecodedValue(NamedTuple):
    """A valid value: a block's contents, and the header's offset in them, in bytes."""

    contents: memoryview
    header: int


class StoreLookUp(NamedTuple):
    """A request whose answer may be in the store."""

    identity: RequestIdentity
    began_ns: int


class SharedAnswers:
    """The requests that wait for the store, and the answers to be stored."""

    def __init__(self, store: ValueStore) -> None:
        self._store = store
        # Changed by name and unname: model id → first part of the names of its answers.
        self._names: dict[int, bytes] = {}
        # Changed by look_up, forget and step: requests that wait for the store, by key.
        self._pending: dict[int, StoreLookUp] = {}

    # --- models ---

    def name(self, model_id: int, revision: str) -> None:
        """Set the part of a version's name that is equal on all servers of that version."""
        self._names[model_id] = f"{_PREFIX}{revision}:".encode()

    def unname(self, model_id: int) -> None:
        """Forget a version that is gone: answers of its requests that still run are not stored."""
        self._names.pop(model_id, None)

    def drop(self, model_id: int) -> list[int]:
        """Forget all requests to this version that wait for the store, and return them."""
        keys = [key for key, look_up in self._pending.items() if look_up.identity.model_id == model_id]
        for key in keys:
            self.forget(key)
        return keys

    @property
    def in_use(self) -> set[int]:
        """Ids of models with requests that wait for the store."""
        return {look_up.identity.model_id for look_up in self._pending.values()}

    # --- answers ---

    def look_up(self, identity: RequestIdentity, queued: QueuedRequest, now_ns: int) -> bool:
        """Request an answer from the store. False if the request need not wait; otherwise `step` will return the
        answer, or None."""
        if not self._store.ask(queued.key, self._name(identity), now_ns, queued.deadline_ns):
            return False
        self._pending[queued.key] = StoreLookUp(identity, now_ns)
        return True

    def forget(self, key: int) -> bool:
        """Stop a request's wait for the store. False if the request did not wait."""
        self._store.forget(key)
        return self._pending.pop(key, None) is not None

    def keep(self, identity: RequestIdentity, contents: memoryview, header: int, now_ns: int) -> None:
        """Send an answer to the store, unless it is large."""
        if len(contents) + _HEAD.size > MAX_VALUE_BYTES or identity.model_id not in self._names:
            return
        self._store.keep(self._name(identity), pack_answer(contents, header), now_ns)

    @property
    def deadline_ns(self) -> int | None:
        """When `step` must run again though no bell rings, in monotonic ns; 0: at once; None: never."""
        return self._store.deadline_ns

    def step(self, now_ns: int) -> list[tuple[int, StoreLookUp, DecodedValue | None]]:
        """The requests whose lookup has ended (by key), each with the answer found or None."""
        found = self._store.step(now_ns)
        return [(key, self._pending.pop(key), unpack_answer(value) if value else None) for key, value in found]

    def _name(self, identity: RequestIdentity) -> bytes:
        return self._names[identity.model_id] + b"%016x%016x" % (identity.digest_high, identity.digest_low)


def pack_answer(contents: memoryview, header: int) -> bytes:
    """The value for a block's contents: tensors, and their header, which begins at offset `header`."""
    rest = struct.pack("<II", header, 0)
    return b"".join((_MAGIC, struct.pack("<I", crc32(contents, crc32(rest))), rest, contents))


def unpack_answer(value: bytes) -> DecodedValue | None:
    """The answer in a value; None if the value was not made by `pack_answer`."""
    if len(value) < _HEAD.size:
        return None
    magic, checksum, header, reserved = _HEAD.unpack_from(value)
    whole = memoryview(value)
    contents = whole[_HEAD.size :]
    if magic != _MAGIC or reserved or header > len(contents) or crc32(whole[_CHECKED_FROM:]) != checksum:
        return None
    try:
        outputs, _ = unpack_response(contents[header:], header)
    except InternalError:
        return None
    for _, wire, shape, _, nbytes in outputs:
        size = BY_WIRE[wire].itemsize
        if size and prod(shape) * size != nbytes:
            return None
    return DecodedValue(contents, header)
