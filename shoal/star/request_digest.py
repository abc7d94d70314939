"""The digest of a request: 128 bits that are equal for requests with equal answers. Pure.

Requests are equal if their inputs (names, datatypes, shapes, bytes), requested outputs and parameters are equal,
forwarded header fields included; Triton compares the inputs' names and bytes alone. The id does not matter. Requests of
sequences are never equal. All servers compute the same digest, which is part of the names in batcher/shared_answers.py.
Digests are computed by front ends and, for steps of ensembles, by the batcher, so that no process that runs users' code
decides which answers are shared.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import msgpack

from shoal.datatypes import BY_WIRE
from shoal.memo import memoized
from shoal.request import (
    NO_SEQUENCE,
    ON_GPU,
    PLACED,
    InferRequest,
    LentTensorRef,
    open_lent_request,
    unpack_request,
)
from shoal.shm.layout import NO_DIGEST, unpack_span

_WORDS = struct.Struct("<2Q")
#: Most parsed headers that are kept: headers repeat, and a lookup takes a hundredth of the time of parsing (0.2 us
#: instead of 20).
_MAX_KEPT = 256
_MAX_KEPT_BYTES = 4096


#: Most bytes of a step's tensors that are digested (ours: 1 ms, during which the batcher does nothing else).
MAX_LENT_NBYTES = 1 << 20


#: The number of pieces in a tensor's sample, and the bytes of each; a tensor that is no larger than all pieces together
#: is read whole (ours).
_NUM_PIECES, _PIECE_NBYTES = 16, 256
#: Most bytes that `RequestContent.digest` reads (ours: 60 ms, during which the batcher does nothing else).
MAX_CONTENT_NBYTES = 1 << 26


class RequestContent(NamedTuple):
    """The part of a request that its digest covers. `words`: everything beside the inputs' bytes; `tensors`: these."""

    inputs: tuple[LentTensorRef, ...]
    words: bytes
    tensors: tuple[memoryview, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum([len(each) for each in self.tensors])

    @property
    def sample(self) -> tuple[int, int]:
        """The digest of a part of the bytes: small tensors whole, large ones in pieces."""
        return _digest(self.words, [piece for each in self.tensors for piece in _pieces(each)])

    def digest(self) -> tuple[int, int] | None:
        """The digest of all bytes; None for more than MAX_CONTENT_NBYTES."""
        return None if self.nbytes > MAX_CONTENT_NBYTES else _digest(self.words, self.tensors)

    def describe(self) -> str:
        """The inputs without their bytes: `INPUT0 FP32 [1,16], INPUT1 FP32 [1,16]`."""
        names = [each.name if each.name.isprintable() else ascii(each.name) for each in self.inputs]
        return ", ".join([f"{name} {_form(each)}" for name, each in zip(names, self.inputs, strict=True)])


def _form(tensor: LentTensorRef) -> str:
    datatype = BY_WIRE.get(tensor.datatype)
    return f"{'?' if datatype is None else datatype.name} [{','.join(map(str, tensor.shape))}]"


def _pieces(tensor: memoryview) -> Iterable[memoryview]:
    if len(tensor) <= _NUM_PIECES * _PIECE_NBYTES:
        return (tensor,)
    distance = (len(tensor) - _PIECE_NBYTES) // (_NUM_PIECES - 1)
    return [tensor[start : start + _PIECE_NBYTES] for start in range(0, _NUM_PIECES * distance, distance)]


class _Described(NamedTuple):
    """A parsed header: everything that is digested except the tensors' bytes, and the tensors' places in the block."""

    words: bytes
    spans: tuple[tuple[int, int], ...]


def request_digest(memory: memoryview, header: int) -> tuple[int, int]:
    """The digest (two words) of a request in the block `memory`, whose header is at the span `header`; NO_DIGEST for a
    request of a sequence."""
    offset, nbytes = unpack_span(header)
    describe = _describe if nbytes <= _MAX_KEPT_BYTES else _describe.__wrapped__
    described = describe(bytes(memory[offset : offset + nbytes]), len(memory))
    if described is None:
        return NO_DIGEST
    return _digest(described.words, [memory[start:end] for start, end in described.spans])


def lent_request_digest(header: bytes, open_block: Callable[[int], memoryview | None]) -> tuple[int, int]:
    """The digest of a step's request, whose header names the blocks that its inputs lie in; NO_DIGEST for a request
    of a sequence, for tensors on a GPU, or of more than MAX_LENT_NBYTES together. Raises InternalError if one of the
    blocks is gone."""
    content = request_content(header, open_block)
    if content is None or content.nbytes > MAX_LENT_NBYTES:
        return NO_DIGEST
    return _digest(content.words, content.tensors)


def request_content(
    header: bytes,
    open_block: Callable[[int], memoryview | None],
    sender: bytes = b"",
    compared: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> RequestContent | None:
    """The content of a request by its header; None for a request of a sequence, and for one with tensors on a GPU. Only
    contents with the same `sender` are equal. `compared` selects the parameters that are compared.

    `open_block` returns the memory of a block that the header names, None if the block is gone; reference 0 is the
    block that the header lies in. Raises InternalError for a header that is damaged, or a block that is gone.
    """
    request, refs, blocks = open_lent_request(header, open_block)
    if request.sequence != NO_SEQUENCE or any(each.ref == ON_GPU or each.datatype & PLACED for each in refs):
        return None
    if compared is not None:
        request = request._replace(parameters=dict(compared(request.parameters)))
    inputs = tuple(sorted(refs))
    words = sender + _words(request, [(each.name, each.datatype, each.shape, each.nbytes) for each in inputs])
    tensors = [blocks[each.ref][each.offset : each.offset + each.nbytes] for each in inputs if each.nbytes]
    return RequestContent(inputs, words, tuple(tensors))


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
