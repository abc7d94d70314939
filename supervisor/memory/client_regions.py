"""The verbs `register_region` and `unregister_region`: clients' shared memory, and who hears of it when.

    register ─► the object is opened, once ─► every front end has its descriptor, and says so ─► answer

So a client that has its answer finds the region, or finds it gone, at whichever front end it asks. A front end that
joins later is handed all there are. Runs in the supervisor, which reads and writes none of them.
"""

import resource
from typing import Any

from shoal.errors import AlreadyExistsError, UnavailableError
from shoal.messages.message import Message
from shoal.messages.to_client import RegionRegistered, RegionUnregistered
from shoal.shm.client_regions import ClientRegion, open_region
from shoal.supervisor.event_loop import Future
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.memory.star import Star
from shoal.supervisor.questions.questions import Verb

#: Of the descriptors that a process may have, regions take at most one in so many: the rest is for connections (ours).
_DESCRIPTORS_PER_REGION = 4


class ClientRegions:
    """All that are registered."""

    def __init__(self, star: Star) -> None:
        self._star = star
        self._max_regions = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _DESCRIPTORS_PER_REGION
        # Changed by questions.
        self._regions: dict[str, ClientRegion] = {}

    @property
    def verbs(self) -> dict[str, Verb]:
        """What front ends ask."""
        return {"register_region": self._register, "unregister_region": self._unregister}

    def send_to(self, client: Participant) -> None:
        """Send a front end that has joined every registered region."""
        for region in self._regions.values():
            client.member.send(_message(region))

    async def _register(self, arguments: dict[str, Any]) -> None:
        name = arguments["name"]
        if name in self._regions:
            raise AlreadyExistsError(f"shared memory region '{name}' already in manager")
        if len(self._regions) >= self._max_regions:
            raise UnavailableError(
                f"{self._max_regions} shared memory regions are registered, as many as there may be; unregister some, "
                "or raise the limit of open files (ulimit -n)"
            )
        self._regions[name] = opened = open_region(**arguments)
        await self._announce(_message(opened))

    async def _unregister(self, arguments: dict[str, Any]) -> None:
        """All of them where the name is ""."""
        name = arguments["name"]
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()
        await self._announce(RegionUnregistered(name))

    def _announce(self, message: Message) -> Future[None]:
        return self._star.acknowledgements.announce([(client.member, message) for client in self._star.front_ends])


def _message(region: ClientRegion) -> RegionRegistered:
    return RegionRegistered(region.name, region.key, region.offset, region.byte_size, region.fd)
