"""Why a reply has no answer in it, in the words its client gets. Pure; used by the lane and the road."""

from shoal import reasons
from shoal.errors import ShoalError
from shoal.frontend.v2.infer import PreparedRequest
from shoal.shm.port import Reply


def refusal(prepared: PreparedRequest, reply: Reply) -> ShoalError:
    """The error that stands for a reply with a reason, or without a block that can be read."""
    entry = prepared.entry
    return reasons.error_for(
        reply.reason or reasons.without_memory(reply.status),
        reply.detail,
        model=entry.name,
        version=entry.version,
        request_id=prepared.id,
        groups=[group["name"] for group in entry.config.get("instance_group", ())],
    )
