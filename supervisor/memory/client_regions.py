"""The verbs `register_region`, `register_cuda_region` and `unregister_region`: clients' own shared memory, and when
front ends learn of it.

    register ─► the object is opened, once ─► every front end has acknowledged its descriptor ─► answer
    register on a GPU ─► the handle gets a number ─► every front end has acknowledged it ─► answer
    unregister ─► every front end has forgotten it ─► workers have closed it on a GPU, or are busy ─► answer

So a client that has its answer finds the region, or finds it gone, at every front end. A front end that joins later is
sent all regions. A worker that executes meanwhile closes a region on a GPU after its batch. Runs in the supervisor,
which neither reads nor writes regions.
"""

import resource
from collections.abc import Callable, Collection
from typing import Any

from shoal.errors import AlreadyExistsError, InvalidArgumentError, UnavailableError
from shoal.messages.to_client import CudaRegionRegistered, RegionChange, RegionRegistered, RegionUnregistered
from shoal.messages.to_worker import CudaRegionGone
from shoal.shm.client_regions import ClientRegion, open_region
from shoal.shm.cuda_regions import CudaRegion
from shoal.supervisor.event_loop import Future
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.members import Member
from shoal.supervisor.questions.questions import Verb

#: Regions take at most a quarter of the descriptors that a process may have: the rest is for connections (ours).
_DESCRIPTORS_PER_REGION = 4


class ClientRegions:
    """All registered regions, and their announcement to front ends."""

    def __init__(self, star: Star, gpus: Collection[int] = ()) -> None:
        """`gpus` are the numbers of the server's GPUs."""
        self._star = star
        self._gpus = gpus
        #: Sends the old server what clients change here, as long as the old server may still end this one and go on.
        #: Set once.
        self.report: Callable[[RegionChange], None] = lambda _message: None
        self._max_regions = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _DESCRIPTORS_PER_REGION
        self.verbs: dict[str, Verb] = {
            "register_region": self._register,
            "register_cuda_region": self._register_cuda,
            "unregister_region": self._unregister,
        }
        # Changed by questions.
        self._regions: dict[str, ClientRegion | CudaRegion] = {}
        self._num_registrations = 0  # of regions on GPUs so far; the last one's number
        self._follower: Member | None = None  # a new server, which is sent every change; changed by follow

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

    def restore(self, message: RegionChange) -> Future[None]:
        """Apply a change that the other server of an upgrade has sent; the future is done when all front ends have."""
        if isinstance(message, RegionUnregistered):
            self._close(self._forget(message.kind, message.name))
            return self._announce(message)
        region: ClientRegion | CudaRegion
        if isinstance(message, CudaRegionRegistered):  # each server numbers regions on GPUs for its own workers
            self._num_registrations += 1
            region = CudaRegion(
                message.name, self._num_registrations, message.device_id, message.handle, message.byte_size
            )
        else:  # the region owns the message's descriptor
            region = ClientRegion(message.name, message.key, message.offset, message.byte_size, message.memory)
        self._regions[message.name] = region
        return self._announce(_message(region))

    # --- clients' requests ---

    async def _register(self, arguments: dict[str, Any]) -> None:
        await self._add(arguments["name"], lambda: open_region(**arguments))

    async def _register_cuda(self, arguments: dict[str, Any]) -> None:
        name, device_id = arguments["name"], arguments["device_id"]
        if device_id not in self._gpus:
            known = ", ".join(map(str, self._gpus)) or "none"
            raise InvalidArgumentError(
                f"failed to register CUDA shared memory region '{name}': invalid device_id {device_id}, the server's "
                f"GPUs are: {known}"
            )
        self._num_registrations += 1
        number = self._num_registrations
        await self._add(name, lambda: CudaRegion(name, number, device_id, arguments["handle"], arguments["byte_size"]))

    async def _add(self, name: str, opened: Callable[[], ClientRegion | CudaRegion]) -> None:
        if name in self._regions:
            raise AlreadyExistsError(f"shared memory region '{name}' already in manager")
        if len(self._regions) >= self._max_regions:
            raise UnavailableError(
                f"{self._max_regions} shared memory regions are registered, as many as there may be; unregister some, "
                "or raise the limit of open files (ulimit -n)"
            )
        self._regions[name] = region = opened()
        await self._change(_message(region))

    async def _unregister(self, arguments: dict[str, Any]) -> None:
        """Unregister one region of a kind, or all of the kind where the name is empty."""
        kind, name = arguments["kind"], arguments["name"]
        gone = self._forget(kind, name)
        await self._change(RegionUnregistered(kind, name))
        await self._close(gone)

    def _forget(self, kind: str, name: str) -> list[CudaRegionGone]:
        """Remove a region of a kind, or all of the kind; returns the messages to workers about regions on GPUs."""
        wanted = CudaRegion if kind == "cuda" else ClientRegion
        gone = [
            self._regions.pop(each)
            for each in ([name] if name else list(self._regions))
            if type(self._regions.get(each)) is wanted
        ]
        return [CudaRegionGone(each.number) for each in gone if isinstance(each, CudaRegion)]

    def _close(self, gone: list[CudaRegionGone]) -> Future[None]:
        """Have workers close handles; the future is done when all have done so, but for those that execute."""
        workers = [worker.member for worker in self._star.workers.values() if worker.is_joined]
        recipients = [(member, message) for member in workers for message in gone]
        return self._star.acknowledgements.announce([], briefly=recipients)

    def _change(self, message: RegionChange) -> Future[None]:
        """Announce a client's change to front ends, and to the other server of an upgrade."""
        self.report(message)
        return self._announce(message, *([] if self._follower is None else [self._follower]))

    def _announce(self, message: RegionChange, *others: Member) -> Future[None]:
        recipients = [*self._star.to_front_ends(message), *[(member, message) for member in others]]
        return self._star.acknowledgements.announce(recipients)


def _message(region: ClientRegion | CudaRegion) -> RegionRegistered | CudaRegionRegistered:
    if isinstance(region, CudaRegion):
        return CudaRegionRegistered(region.name, region.number, region.device_id, region.handle, region.byte_size)
    return RegionRegistered(region.name, region.key, region.offset, region.byte_size, region.fd)
