"""The verbs `register_region` and `unregister_region`: clients' own shared memory, and when front ends learn of it.

    register ─► the object is opened, once ─► every front end has its descriptor, and says so ─► answer

So a client that has its answer finds the region, or finds it gone, at every front end. A front end that joins later is
sent all regions. Runs in the supervisor, which neither reads nor writes regions.
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
from shoal.supervisor.processes.members import Member
from shoal.supervisor.questions.questions import Verb

#: Regions take at most a quarter of the descriptors that a process may have: the rest is for connections (ours).
_DESCRIPTORS_PER_REGION = 4


class ClientRegions:
    """All registered regions, and their announcement to front ends."""

    def __init__(self, star: Star) -> None:
        self._star = star
        self._max_regions = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _DESCRIPTORS_PER_REGION
        # Changed by questions.
        self._regions: dict[str, ClientRegion] = {}
        self._follower: Member | None = None  # a new server, which is sent every change; changed by follow

    @property
    def verbs(self) -> dict[str, Verb]:
        """The verbs by which front ends register and unregister regions."""
        return {"register_region": self._register, "unregister_region": self._unregister}

    def send_to(self, client: Participant) -> None:
        """Send all registered regions to a front end that has joined."""
        for region in self._regions.values():
            client.member.send(_message(region))

    # --- upgrades ---

    def follow(self, member: Member | None) -> None:
        """Send a new server all regions, and every change from now on: a client that has its answer finds the region
        there, too. None ends that."""
        self._follower = member
        if member is not None:
            for region in self._regions.values():
                member.send(_message(region))

    def restore(self, message: RegionRegistered | RegionUnregistered) -> Future[None]:
        """Apply a change that the old server has sent; the future is done when all front ends have."""
        if isinstance(message, RegionUnregistered):
            self._forget(message.name)
        else:
            region = ClientRegion(message.name, message.key, message.offset, message.byte_size, message.memory)
            self._regions[message.name] = region  # which owns the descriptor
        return self._announce(message)

    # --- what clients ask ---

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
        """Unregister one region, or all where the name is empty."""
        self._forget(arguments["name"])
        await self._announce(RegionUnregistered(arguments["name"]))

    def _forget(self, name: str) -> None:
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def _announce(self, message: Message) -> Future[None]:
        members = [client.member for client in self._star.front_ends]
        if self._follower is not None:
            members.append(self._follower)
        return self._star.acknowledgements.announce([(member, message) for member in members])


def _message(region: ClientRegion) -> RegionRegistered:
    return RegionRegistered(region.name, region.key, region.offset, region.byte_size, region.fd)
