"""The digest of a request: 128 bits that are equal for requests with equal answers. Pure.

Requests are equal if their inputs (names, datatypes, shapes, bytes), requested outputs and parameters are, forwarded
headers included; Triton compares the inputs' names and bytes alone. The id does not matter. Requests of sequences are
never equal. All servers compute the same digest (names in the batcher's shared_answers.py have it). Front ends compute
it, and the batcher for steps of ensembles: no process that runs users' code decides which answers are shared.
"""

import struct
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import NamedTuple

import msgpack

from shoal.memo import memoized
from shoal.request import NO_SEQUENCE, InferRequest, unpack_lent_request, unpack_request
from shoal.shm.layout import NO_DIGEST, unpack_span

_WORDS = struct.Struct("<2Q")
#: The number of kept headers: headers repeat, and a lookup takes a hundredth of the time of parsing (0.2 of 20 us).
_MAX_KEPT = 256
_MAX_KEPT_BYTES = 4096


#: Most bytes of a step's tensors that are digested (ours: 1 ms, during which the batcher does nothing else).
MAX_LENT_NBYTES = 1 << 20


class _Described(NamedTuple):
    """A parsed header: everything that is digested except the tensors' bytes, and the tensors' places in the block."""

    words: bytes
    spans: tuple[tuple[int, int], ...]


def request_digest(memory: memoryview, header: int) -> tuple[int, int]:
    """The digest, two words, of a request in its block, with its header at the span `header`; NO_DIGEST for a request
    of a sequence."""
    offset, nbytes = unpack_span(header)
    describe = _describe if nbytes <= _MAX_KEPT_BYTES else _describe.__wrapped__
    described = describe(bytes(memory[offset : offset + nbytes]), len(memory))
    if described is None:
        return NO_DIGEST
    return _digest(described.words, [memory[start:end] for start, end in described.spans])


def lent_request_digest(header: bytes, open_block: Callable[[int], memoryview | None]) -> tuple[int, int]:
    """The digest of a step's request, whose inputs lie in other blocks that its header names; NO_DIGEST for more than
    MAX_LENT_NBYTES. Raises InternalError if one of these blocks is gone."""
    blocks: dict[int, memoryview] = {}

    def nbytes_of(ref: int) -> int:
        block = open_block(ref)
        if block is None:
            return 0
        blocks[ref] = block
        return len(block)

    request, refs = unpack_lent_request(header, nbytes_of)
    if request.sequence != NO_SEQUENCE or sum([each.nbytes for each in refs]) > MAX_LENT_NBYTES:
        return NO_DIGEST
    inputs = sorted(refs)
    words = _words(request, [(each.name, each.datatype, each.shape, each.nbytes) for each in inputs])
    return _digest(words, [blocks[each.ref][each.offset : each.offset + each.nbytes] for each in inputs])


def _digest(words: bytes, tensors: Iterable[memoryview]) -> tuple[int, int]:
    digest = blake2b(words, digest_size=_WORDS.size)
    for tensor in tensors:
        digest.update(tensor)
    low, high = _WORDS.unpack(digest.digest())
    return low, high


@memoized("request_digest", _MAX_KEPT)
def _describe(header: bytes, block_nbytes: int) -> _Described | None:
    request = unpack_request(memoryview(header), block_nbytes)
    if request.sequence != NO_SEQUENCE:
        return None
    inputs = sorted(request.inputs)  # by name; names are distinct
    words = _words(request, [(each.name, each.datatype, each.shape, each.nbytes) for each in inputs])
    return _Described(words, tuple([(each.offset, each.offset + each.nbytes) for each in inputs]))


def _words(request: InferRequest, inputs: list[tuple[str, int, tuple[int, ...], int]]) -> bytes:
    asked = inputs, sorted(request.requested_outputs), sorted(request.parameters.items())
    return msgpack.packb(asked)  # type: ignore[no-any-return]
