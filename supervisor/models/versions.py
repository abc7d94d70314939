"""The versions of all models until they end: their ids and rows, how many may load at once, and their announcement.

Runs in the supervisor.
"""

import itertools
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import UnavailableError
from shoal.messages.message import Message
from shoal.messages.shared import Ping, PoisonFound
from shoal.model_config.ensemble import is_ensemble
from shoal.repository.found import FoundModel
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.lifecycle import NO_ROW, NO_VERSION, ModelVersion, VersionState
from shoal.repository.plan import source_of
from shoal.shm.counters import MAX_ROWS
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.event_loop import Future, gather, shared
from shoal.supervisor.failure_domains import contained
from shoal.supervisor.instance_context import InstanceContext
from shoal.supervisor.models.load_slots import LoadSlots
from shoal.supervisor.models.roster import Roster
from shoal.supervisor.models.served_ensemble import Find, ServedEnsemble
from shoal.supervisor.models.served_version import ServedVersion

if TYPE_CHECKING:
    from shoal.supervisor.models.rollouts import Rollouts


class Versions:
    """All versions of all models, from creation to end.

    `find` finds the models of ensembles' steps, `on_changed` is called after each announcement, `discard` removes a
    directory that was made for one load, `forget` removes copies of versions other than those given.
    """

    def __init__(
        self,
        context: InstanceContext,
        roster: Roster,
        find: Find,
        on_changed: Callable[[], None],
        discard: Callable[[Path], None],
        forget: Callable[[Collection[Path]], None],
    ) -> None:
        self.loop = context.loop
        #: The rollouts, which say what requests mean that name no version. Set once.
        self.traffic: Rollouts | None = None
        self._context = context
        self._roster = roster
        self._find = find
        self._on_changed = on_changed
        self._discard = discard
        self._forget = forget
        self._ids = itertools.count(1)
        self._slots = LoadSlots(context.loop, context.options.model_load_thread_count)
        # Changed as versions are created and end.
        self._served: dict[int, ServedVersion] = {}
        self._free_rows = deque(range(MAX_ROWS))
        self._borrowed: dict[Path, int] = {}
        self._is_stopping = False

    @property
    def num_retries(self) -> int:
        """The number of further attempts, at once, to load a version whose load has failed."""
        return self._context.options.model_load_retry_count

    def create(self, found: FoundModel, number: int) -> ServedVersion:
        """Make a version, not started and not public. Raises UnavailableError where there are too many, the server
        stops, or there is no memory for the version's statistics."""
        if self._is_stopping:
            raise UnavailableError("the server is stopping")
        if not self._free_rows:
            raise UnavailableError(
                f"model '{found.name}' is one too many: at most {MAX_ROWS} model versions can be loaded"
            )
        try:
            self._context.star.counter_memory.reserve(self._free_rows[0])
        except OutOfSharedMemoryError as error:
            raise UnavailableError(str(error)) from error
        row = self._free_rows.popleft()
        directory, config = found.versions[number].directory, found.config_of(number)
        version = ModelVersion(
            found.name, number, next(self._ids), row, directory, config, found.labels, found.namespace
        )
        if self.traffic is not None:
            self.traffic.mark(version)
        arguments = version, source_of(found, number), self._context, self._roster, self.announce
        served = ServedEnsemble(*arguments, self._find) if is_ensemble(config) else ServedVersion(*arguments)
        with contained(served):
            self.loop.after(served.ended, lambda: self._release(served))
        self._served[version.model_id] = served
        if directory.parent in self._borrowed:
            self._borrowed[directory.parent] += 1
        return served

    def create_problem(self, identifier: ModelIdentifier, reason: str, *, is_polled: bool = True) -> ModelVersion:
        """A placeholder version with a reason, for a model of which no version is known."""
        name, namespace = identifier
        ids = next(self._ids), NO_ROW
        version = ModelVersion(name, NO_VERSION, *ids, Path(), namespace=namespace, is_polled=is_polled)
        version.move(VersionState.UNAVAILABLE, reason)
        return version

    @property
    def is_stopping(self) -> bool:
        """Whether the server is ending all versions."""
        return self._is_stopping

    def take_id(self) -> int:
        """A model id that no version has or will have."""
        return next(self._ids)

    def slot_for(self, served: ServedVersion) -> AbstractAsyncContextManager[None]:
        """A place among the versions that load at once. An ensemble needs none: it waits for others, and must not keep
        them waiting."""
        return nullcontext() if isinstance(served, ServedEnsemble) else self._slots.taken(served.version.identifier)

    # --- messages to clients and batcher ---

    def announce(self, messages: Sequence[Message]) -> Future[None]:
        """Send messages to front ends; done when all have applied them, and the batcher its earlier messages."""
        for served in tuple(self._served.values()):
            if isinstance(served, ServedEnsemble):
                with contained(served):  # first: what follows may end a version that is one of the ensemble's steps
                    served.look()
        if self.traffic is not None:
            self.traffic.refresh()
        applied = self._context.star.announce_to_clients(messages)
        self._on_changed()
        return applied

    def settle(self) -> Future[None]:
        """A future that is done when clients and the batcher have applied everything sent so far."""
        return self._context.star.announce_to_clients([Ping()])

    async def settle_retired(self) -> None:
        """Return once all versions retired before that have no open request are ending. The batcher reports such
        versions after the message that it is handling: after its first acknowledgement, but before the second."""
        star = self._context.star
        for _ in range(2):
            await star.acknowledgements.announce(star.to_batcher(Ping()))

    def introduce(self) -> None:
        """Send a successor every version that has a queue."""
        for served in self._served.values():
            served.introduce()
        if self.traffic is not None:
            self.traffic.introduce()

    def introduce_retiring(self) -> None:
        """Send a successor, which has been sent the workers, the versions that retire."""
        for served in self._served.values():
            served.introduce_retiring()

    def on_drained(self, model_id: int) -> None:
        """End a retiring version: the batcher has no more requests of it."""
        if model_id in self._served:
            self._served[model_id].on_drained()

    def on_poison(self, message: PoisonFound) -> None:
        """Remember a request that ends a version's instances, for the batcher's successor."""
        if message.model_id in self._served:
            self._served[message.model_id].on_poison(message)

    # --- directories made for one load ---

    def lend(self, directory: Path) -> None:
        """Take over a directory made for one load; it is discarded when every version loaded from it has ended."""
        self._borrowed.setdefault(directory, 0)

    def is_lent(self, directory: Path) -> bool:
        """Whether a directory was made for one load, and is in use."""
        return directory in self._borrowed

    def disown(self, directory: Path) -> None:
        """Leave a directory to the process that made it: its load has failed."""
        self._borrowed.pop(directory, None)

    def _give_back(self, directory: Path) -> None:
        if directory in self._borrowed:
            self._borrowed[directory] -= 1
            if self._borrowed[directory] <= 0:
                del self._borrowed[directory]
                self._discard(directory)

    # --- the end ---

    def _release(self, served: ServedVersion) -> None:
        version = served.version
        self._served.pop(version.model_id, None)
        self._context.metrics.forget(version.model_id)
        self._context.star.payloads.ensembles.discard(version.model_id)
        self._free_rows.append(version.row)
        self._give_back(version.version_dir.parent)
        self._forget([each.version.version_dir for each in self._served.values()])

    async def stop(self) -> None:
        """End all instances; returns after the last has ended."""
        self._is_stopping = True
        leaving = tuple(self._served.values())
        for served in leaving:
            served.stop()
        await gather(*[shared(served.ended) for served in leaving])
