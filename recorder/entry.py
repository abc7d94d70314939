"""An entry: finished requests as the batcher leaves them for the recorder, and as they lie in a file. Pure.

An entry has the requests of one batch that one process has answered into one block, or one request alone. Tensors are
where they were in shared memory, between the headers that describe them (shoal/request.py): the recorder copies, and
the reader of a file unpacks. All words are little-endian u64; each part is padded to a multiple of 8 bytes.

    0        48       head: number of requests, bytes of the description, bytes of the output, flags, wall clock minus
                      monotonic clock in ns, 0
    48       n        description of the model, msgpack: name, version, names of its instance groups
    …        240 × r  one RequestWords for each request
    …                 input of each request: its tensors and its header
    …                 output: tensors of all requests' responses, and their headers

Entries come from memory that users' code may write, and from files: `unpack` checks what it returns.
"""

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

import msgpack

from shoal.shm.byte_ring import padded

ENTRY_HEAD = Struct("<4QqQ")
REQUEST_WORDS = Struct("<30Q")
#: The head of a pair of entries in the comparator's ring, a request and its execution by a shadow: the number of bytes
#: of the first entry.
PAIR_HEAD = Struct("<Q")
#: Flags of an entry: it belongs to the sample that is written; otherwise it is kept for a death that may follow.
SAMPLED = 1
_PADDING = bytes(8)
#: Descriptions of models that are kept unpacked (ours).
_MAX_DESCRIPTIONS = 256


class Outcome(IntEnum):
    """How a request ended."""

    OK = 0
    FAILED = 1  # with the error of its instance
    REFUSED = 2  # by the batcher, before or in place of an execution
    DIED = 3  # its instance died while executing it; it may have been executed again, and recorded again
    PART = 4  # it has not ended: the entry has one of several responses


#: The kinds of clients that make requests; RequestWords.asker is a position in this list.
ASKERS = ("front end", "client", "model", "ensemble", "shadow")


class RequestWords(NamedTuple):
    """The words of one request in an entry. Times are monotonic ns, 0 for a point that was not reached; spans are
    offset << 32 | size in bytes, from the start of the request's input, or of the entry's output."""

    key: int
    outcome: int
    status: int  # the wire number of an error
    reason: int  # the batcher's (shoal/reasons.py), with a detail
    detail: int
    asker: int  # of ASKERS
    rows: int
    priority: int
    timeout_us: int
    deadline_ns: int
    correlation: int
    flags: int
    start_ns: int
    queue_ns: int
    compute_start_ns: int
    input_end_ns: int
    output_start_ns: int
    compute_end_ns: int
    end_ns: int
    formed_ns: int  # its batch was formed
    instance: int  # DeathDetail: pid, group, number; 0: it was not executed
    worker: int  # owner id of the instance's segment
    batch: int  # number of the batch that the instance executed
    position: int  # in the batch, from 0
    num_requests: int  # of the batch
    batch_rows: int
    input_nbytes: int
    input_header: int  # span of the request's header
    output_header: int  # span of the response's header
    output_base: int  # where the offsets in the response's header count from


#: Where `input_header` is in the words of a request, in bytes.
INPUT_HEADER_OFFSET = 8 * RequestWords._fields.index("input_header")


class EntryError(ValueError):
    """Bytes that are no entry."""


class Entry(NamedTuple):
    """An unpacked entry; `inputs` and `output` are views of the memory that it was unpacked from."""

    is_sampled: bool
    wall_offset_ns: int
    model: str
    version: int
    groups: tuple[str, ...]
    requests: tuple[RequestWords, ...]
    inputs: tuple[memoryview, ...]
    output: memoryview


def describe_model(name: str, version: int, groups: Sequence[str]) -> bytes:
    """The description of a model in its entries, padded; a multiple of 8 bytes."""
    packed: bytes = msgpack.packb((name, version, list(groups)), use_bin_type=True) or b""
    return packed + _PADDING[: padded(len(packed)) - len(packed)]


def unpack(memory: memoryview) -> Entry:
    """The entry in `memory`, a view of bytes. Raises EntryError."""
    try:
        num_requests, num_described, num_output, flags, wall_offset_ns, _ = ENTRY_HEAD.unpack_from(memory)
        at = ENTRY_HEAD.size
        if num_requests > len(memory) // REQUEST_WORDS.size or num_described > len(memory):
            raise EntryError(f"{num_requests} requests and a description of {num_described} bytes")
        name, version, groups = _description(bytes(memory[at : at + num_described]))
        at += num_described
        heads = at + num_requests * REQUEST_WORDS.size
        requests = tuple(map(RequestWords._make, REQUEST_WORDS.iter_unpack(memory[at:heads])))
        inputs, at = [], heads
        for request in requests:
            inputs.append(memory[at : at + request.input_nbytes])
            at += padded(request.input_nbytes)
        output = memory[at : at + num_output]
        if len(requests) != num_requests or at + num_output > len(memory):
            raise EntryError(f"{len(memory)} bytes are too few")
    except EntryError:
        raise
    except (StructError, ValueError, TypeError, msgpack.UnpackException) as error:
        raise EntryError(f"no entry of a recording: {error}") from error
    return Entry(bool(flags & SAMPLED), wall_offset_ns, name, version, groups, requests, tuple(inputs), output)


@lru_cache(_MAX_DESCRIPTIONS)
def _description(packed: bytes) -> tuple[str, int, tuple[str, ...]]:
    unpacker = msgpack.Unpacker(raw=False, use_list=False)
    unpacker.feed(packed)
    described: Any = unpacker.unpack()
    name, version, groups = described
    if type(name) is not str or type(version) is not int or not all(type(each) is str for each in groups):
        raise EntryError("the description of the model is damaged")
    return name, version, groups


def pack(
    description: bytes,
    requests: Sequence[Sequence[int]],
    inputs: Sequence[bytes | memoryview],
    output: Sequence[bytes | memoryview],
    *,
    is_sampled: bool,
    wall_offset_ns: int,
) -> tuple[list[bytes | memoryview], int]:
    """The parts of an entry in their order, and their bytes together, a multiple of 8. `requests` are RequestWords;
    `output` are parts that lie one after another."""
    num_output = sum([len(each) for each in output])
    head = ENTRY_HEAD.pack(len(requests), len(description), num_output, SAMPLED if is_sampled else 0, wall_offset_ns, 0)
    parts: list[bytes | memoryview] = [head, description, *[REQUEST_WORDS.pack(*words) for words in requests]]
    nbytes = len(head) + len(description) + len(requests) * REQUEST_WORDS.size
    for each in inputs:
        parts.append(each)
        nbytes += padded(len(each))
        if rest := -len(each) % 8:
            parts.append(_PADDING[:rest])
    parts += output
    nbytes += padded(num_output)
    if rest := -num_output % 8:
        parts.append(_PADDING[:rest])
    return parts, nbytes
