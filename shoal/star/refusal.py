"""The response in a reply, or the error instead of one, in Triton's words. Pure; used by every client of the star."""

from typing import NamedTuple

from shoal import errors, reasons
from shoal.errors import ShoalError
from shoal.request import InferResponse, unpack_response
from shoal.shm.port import Reply
from shoal.star.models import ModelEntry


def refusal(entry: ModelEntry, request_id: str, reply: Reply, correlation_id: int | str = 0) -> ShoalError:
    """The error for a reply with a reason, or without a readable block."""
    return reasons.error_for(
        reply.reason or reasons.without_memory(reply.status),
        reply.detail,
        model=entry.name,
        version=entry.version,
        request_id=request_id,
        correlation_id=correlation_id,
        groups=entry.groups,
    )


class Answered(NamedTuple):
    """A model's response: its packed header, the header's contents, and the worker's block with the tensors."""

    header: bytes
    response: InferResponse
    block: memoryview


def answered(entry: ModelEntry, request_id: str, reply: Reply, correlation_id: int | str = 0) -> Answered:
    """The response in a reply. Raises the ShoalError that the reply has instead: the model's, or a refusal."""
    if reply.reason or reply.block is None or reply.header is None:
        raise refusal(entry, request_id, reply, correlation_id)
    if reply.status:
        raise errors.from_wire(reply.status, str(reply.header, "utf-8", "replace"))
    return Answered(reply.header, unpack_response(reply.header, len(reply.block)), reply.block)
