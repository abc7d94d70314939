"""Redaction: tensors, parameters and ids that never reach a file. Pure.

A redacted tensor keeps its name, datatype and shape, and loses its bytes: they are zeros. A BYTES tensor of zeros has
as many empty elements as fit into its bytes, so that it can be told from one that was sent. A redacted parameter is
gone, a redacted id is empty.
"""

from collections.abc import Sequence

from shoal.errors import InternalError
from shoal.recorder.entry import INPUT_HEADER_OFFSET, REQUEST_WORDS, Entry, EntryError
from shoal.request import (
    PLACED,
    TensorRef,
    pack_options,
    split_header,
    unpack_options,
    unpack_placed_response,
    unpack_request,
)
from shoal.shm.byte_ring import padded
from shoal.shm.layout import WORD, pack_span, unpack_span

PARAMETERS, ID = "parameters.", "id"


def redacted(memory: memoryview, entry: Entry, redact: Sequence[str]) -> bytes:
    """The bytes of an entry without the parts that `redact` names: tensors, `parameters.NAME`, `id`. Raises EntryError
    for an entry whose headers cannot be read, so that these parts cannot be found."""
    copied = bytearray(memory)
    at = len(memory) - sum([padded(len(each)) for each in (*entry.inputs, entry.output)])
    heads = at - len(entry.requests) * REQUEST_WORDS.size
    try:
        for number, (request, data) in enumerate(zip(entry.requests, entry.inputs, strict=True)):
            if data:
                offset, nbytes = unpack_span(request.input_header)
                header = data[offset : offset + nbytes]
                _blank(copied, at, unpack_request(header, len(data)).inputs, redact)
                shorter = _without_options(bytes(header), redact)
                copied[at + offset : at + offset + nbytes] = shorter + bytes(nbytes - len(shorter))
                word = heads + number * REQUEST_WORDS.size + INPUT_HEADER_OFFSET
                copied[word : word + WORD] = pack_span(offset, len(shorter)).to_bytes(WORD, "little")
            at += padded(len(data))
        for request in entry.requests:
            if request.output_header and not request.status:
                offset, nbytes = unpack_span(request.output_header)
                header, base = entry.output[offset : offset + nbytes], request.output_base
                outputs = unpack_placed_response(header, len(entry.output) - base).outputs
                _blank(copied, at + base, [each for each in outputs if not each.datatype & PLACED], redact)
    except InternalError as error:
        raise EntryError(f"a request that cannot be redacted is not recorded: {error}") from error
    return bytes(copied)


def _blank(copied: bytearray, at: int, tensors: Sequence[TensorRef], redact: Sequence[str]) -> None:
    for tensor in tensors:
        if tensor.name in redact:
            start = at + tensor.offset
            copied[start : start + tensor.nbytes] = bytes(tensor.nbytes)


def _without_options(header: bytes, redact: Sequence[str]) -> bytes:
    """The header of a request without redacted options."""
    layout, packed = split_header(header)
    options = unpack_options(packed)
    kept = {name: value for name, value in options.parameters.items() if PARAMETERS + name not in redact}
    id_ = "" if ID in redact else options.id
    if id_ == options.id and len(kept) == len(options.parameters):
        return header
    return layout + pack_options(id_, kept, options.sequence, options.headers)
