"""Why a reply has no answer in it, in the words its client gets. Pure; used by every client of the star."""

from shoal import reasons
from shoal.client.models import ModelEntry
from shoal.errors import ShoalError
from shoal.shm.port import Reply


def refusal(entry: ModelEntry, request_id: str, reply: Reply) -> ShoalError:
    """The error that stands for a reply with a reason, or without a block that can be read."""
    return reasons.error_for(
        reply.reason or reasons.without_memory(reply.status),
        reply.detail,
        model=entry.name,
        version=entry.version,
        request_id=request_id,
        groups=[group["name"] for group in entry.config.get("instance_group", ())],
    )
