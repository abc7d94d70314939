"""The state that a new server takes over from the old one: changes by requests since the old one's start.

Carried are models that were loaded and unloaded by request, with configurations and files that came with a load; the
numbers of instances; registrations; log and trace settings; clients' regions of shared memory. Not carried are
counters, the response cache, sequences under way, and models' own state (docs/operations.md). Runs in both
supervisors.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from shoal.messages import upgrade as messages
from shoal.messages.to_client import RegionChange
from shoal.supervisor.event_loop import EventLoop, Future, first, gather
from shoal.supervisor.memory.client_regions import ClientRegions
from shoal.supervisor.memory.star import Star
from shoal.supervisor.models.model import Model
from shoal.supervisor.parts import Administration, Observation
from shoal.supervisor.processes.members import Member
from shoal.supervisor.upgrade.predecessor import Predecessor


class OpenChanges:
    """Counts the changes by requests that are under way in the old server."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        # Changed by counted: the verb of each change, by a future that is done when the change has ended.
        self._open: dict[Future[None], str] = {}

    @property
    def verbs(self) -> list[str]:
        return list(self._open.values())

    @contextmanager
    def counted(self, verb: str) -> Iterator[None]:
        """Count a change while this context is open."""
        done = self._loop.future()
        self._open[done] = verb
        try:
            yield
        finally:
            del self._open[done]
            done.set_result(None)

    async def ended(self) -> None:
        """Return once no change is under way."""
        while self._open:
            await first(*self._open)


class CarriedState:
    """The parts of a server that requests change; `changes` counts such requests while they are under way."""

    def __init__(self, star: Star, admin: Administration, observation: Observation, regions: ClientRegions) -> None:
        self._star = star
        self._admin = admin
        self._observation = observation
        self._regions = regions
        self.changes = OpenChanges(star.loop)

    # --- the old server ---

    def under_way(self) -> list[str]:
        """The changes by requests and the loads of models that are under way."""
        return [*self.changes.verbs, *[model.title for model in self._loading()]]

    async def changes_ended(self) -> None:
        """Return once the changes and loads that `under_way` lists have ended."""
        await self.changes.ended()
        await gather(*[model.settled() for model in self._loading()])

    def _loading(self) -> list[Model]:
        return [model for model in self._admin.models.models.values() if model.is_loading]

    def serving(self) -> list[tuple[str, int]]:
        """The versions that serve, by name of the model and number."""
        models = self._admin.models.models.values()
        return [(model.identifier.name, number) for model in models for number in model.serving]

    def models(self) -> messages.ModelsCarried:
        """The changes of models by requests."""
        names, given, repositories = self._admin.model_control.carried()
        return messages.ModelsCarried(
            names,
            given,
            repositories,
            self._admin.scaling.carried(),
            self._admin.registrations.carried(),
            self._admin.workflows.carried(),
            self._star.promised_nbytes,
        )

    def settings(self) -> messages.SettingsCarried:
        return messages.SettingsCarried(
            self._observation.log_control.settings, self._observation.tracing.settings.layers
        )

    def follow(self, member: Member) -> None:
        """Send a new server all regions, and each change from now on."""
        self._regions.follow(member)

    def restore_region(self, message: RegionChange) -> None:
        """Apply a change of regions that a client has made at a new server: this server needs it if the new one fails
        to take over."""
        self._regions.restore(message)

    def discard(self) -> None:
        """Remove the copies made for a new server that has not taken over."""
        self._regions.follow(None)
        self._admin.model_control.discard_copies()

    # --- the new server ---

    def registered(self, predecessor: Predecessor | None) -> Sequence[Mapping[str, Any]] | None:
        """The models that the old server had registered from TorchServe's store; None without an old server."""
        return None if predecessor is None else predecessor.models.registered

    async def load_models(self, predecessor: Predecessor | None) -> None:
        """Load the models that the old server, if any, had loaded by request, after those that every start loads.
        Returns when each has loaded or failed; the log says which."""
        if predecessor is None:
            return
        carried = predecessor.models
        self._star.promised_elsewhere_nbytes = carried.promised_nbytes
        await self._admin.model_control.restore(predecessor.given, carried.repositories)
        predecessor.release()
        await self._admin.workflows.restore(carried.workflows)
        await self._admin.scaling.restore(carried.scaled)

    async def settle(self, predecessor: Predecessor | None) -> None:
        """Tell the old server, if there is one, which versions serve in this one. Returns when the old server has found
        all of its own among them, and its log and trace settings are in force here."""
        if predecessor is None:
            return
        carried = await predecessor.settle(self.serving())
        await self._observation.log_control.change({"changes": carried.log})
        await self._observation.tracing.restore(carried.traces)
