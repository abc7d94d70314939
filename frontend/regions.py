"""The registered regions of clients' shared memory, the same in every front end.

The supervisor opens a region once, and sends every front end its descriptor before it confirms to the client that the
region is registered; likewise every front end has removed a region before the client gets the answer that it is
unregistered. A request keeps the regions it names until it has been answered: after a region is unregistered no request
can name it any more, but those that did still use it.
"""

from collections.abc import Hashable
from typing import Any

from shoal.datatypes import BYTES, Datatype
from shoal.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from shoal.memo import Memo
from shoal.messages.to_client import RegionRegistered
from shoal.shm.client_regions import ClientRegion, RegionSlice

_MAX_KEPT = 512


class Regions:
    """The regions by name. The one thread that handles the supervisor's messages changes them; any thread may read
    them."""

    def __init__(self, *, are_allowed: bool = False, max_string_bytes: int = 0) -> None:
        self.are_allowed = are_allowed
        self._max_string_bytes = max_string_bytes
        # Changed by add and remove.
        self._regions: dict[str, ClientRegion] = {}
        #: What a lane keeps of requests that name regions, for those like them; emptied with each change of regions.
        self.kept = Memo[Hashable, Any]("region_requests", _MAX_KEPT)

    def add(self, message: RegionRegistered) -> None:
        """Add a registered region; takes over the descriptor."""
        self.kept.entries.clear()
        self._regions[message.name] = ClientRegion(*message.values)

    def remove(self, name: str) -> None:
        """Remove an unregistered region; all of them if `name` is ""."""
        self.kept.entries.clear()
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def require_allowed(self) -> None:
        """Raise UnsupportedError if the server does not accept clients' shared memory."""
        if not self.are_allowed:
            raise UnsupportedError(
                "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
            )

    def slice(self, name: str, offset: int, nbytes: int) -> RegionSlice:
        """A part of a region, for one tensor. Raises ShoalErrors with Triton's sentences."""
        self.require_allowed()
        region = self._regions.get(name)
        if region is None:
            raise NotFoundError(f"Unable to find shared memory region: '{name}'")
        return region.slice(offset, nbytes)

    def tensor(self, datatype: Datatype | None, name: str, offset: int, nbytes: int) -> memoryview | RegionSlice:
        """The data of an input. Strings are copied, since the lengths in them must not change after they are
        checked. Raises ShoalError."""
        found = self.slice(name, offset, nbytes)
        if datatype is not BYTES:
            return found
        if nbytes > self._max_string_bytes:  # the client's object may be long without having any memory
            raise InvalidArgumentError(
                f"{nbytes} bytes of strings in shared memory region '{name}' exceed the maximum allowed input size of "
                f"{self._max_string_bytes} bytes. Use --http-max-input-size to increase the limit."
            )
        return memoryview(bytes(found))

    def status(self, kind: str, name: str) -> list[dict[str, Any]]:
        """The regions of a kind ("system" or "cuda"; of the latter there are never any), or only the one of this name
        unless `name` is "".

        Raises NotFoundError if there is no region of this name and kind.
        """
        region = self._regions.get(name)
        if kind == "cuda" and region is not None:
            raise NotFoundError(
                f"The region named '{name}' is registered as system shared memory, not CUDA shared memory"
            )
        if name and region is None:
            raise NotFoundError(f"Unable to find {kind} shared memory region: '{name}'")
        if kind == "cuda":
            return []
        found = sorted(self._regions.items()) if region is None else [(name, region)]
        return [
            {"name": name, "key": each.key, "offset": each.offset, "byte_size": each.byte_size} for name, each in found
        ]


#: The regions of a server that does not accept clients' shared memory.
NO_REGIONS = Regions()
