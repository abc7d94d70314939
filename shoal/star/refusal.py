"""The response in a reply, or the error that the reply reports, in Triton's words. Pure; used by every client of the
star."""

from typing import NamedTuple

from shoal import errors, reasons
from shoal.errors import ShoalError
from shoal.reasons import OTHER_VERSION
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


def other_version(reply: Reply) -> int:
    """The number of the version that has answered, if that is not the version to which the request was submitted (in a
    split); else 0. Both versions have the same inputs and outputs."""
    return reply.detail if reply.reason == OTHER_VERSION else 0


class Answered(NamedTuple):
    """A model's response: its packed header, the header's contents, and the worker's block with the tensors."""

    header: bytes
    response: InferResponse
    block: memoryview


def answered(entry: ModelEntry, request_id: str, reply: Reply, correlation_id: int | str = 0) -> Answered:
    """The response in a reply. Raises the ShoalError of a reply without a response: the model's error, or the batcher's
    refusal."""
    if (reply.reason and reply.reason != OTHER_VERSION) or reply.block is None or reply.header is None:
        raise refusal(entry, request_id, reply, correlation_id)
    if reply.status:
        raise errors.from_wire(reply.status, str(reply.header, "utf-8", "replace"))
    return Answered(reply.header, unpack_response(reply.header, len(reply.block)), reply.block)
