"""Slots for versions that load: how many load at once, and which one is next.

A load runs users' code, which may hang until --model-load-timeout-secs. So a load counts against
--model-load-thread-count only while it is young, and a model with many versions has a share of its own:

- of young loads there are as many at once as that flag says, of all loads MOST_LOADS times as many;
- of one model as many load at once as that flag says, and next is the model with the fewest loads under way.

So N loads that hang, where N is the flag's number, keep the loads behind them waiting for YOUNG_S seconds, and 2 N for
twice as long. Where MOST_LOADS times N hang, a further load waits until one of them ends: each has a process.

Runs in the supervisor.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from shoal.repository.identifier import ModelIdentifier
from shoal.supervisor.event_loop import EventLoop, Future, resolve

#: Seconds for which a load is young (ours): few models take longer, and a load that hangs keeps others waiting for that
#: time only.
YOUNG_S = 30.0
#: The most loads under way, young or not, as a multiple of the most young ones (ours): each has a process that loads.
MOST_LOADS = 8


@dataclass(slots=True, eq=False)
class _Load:
    model: ModelIdentifier
    turn: Future[None]
    is_young: bool = True


class LoadSlots:
    """The loads of all versions, under way and waiting for their turn."""

    def __init__(self, loop: EventLoop, num_slots: int) -> None:
        self._loop = loop
        self._num_slots = num_slots
        # Changed as loads are asked for, grow old and end.
        self._waiting: list[_Load] = []
        self._under_way: list[_Load] = []

    @asynccontextmanager
    async def taken(self, model: ModelIdentifier) -> AsyncIterator[None]:
        """Wait for a slot, and keep it for the load of one version of this model."""
        load = _Load(model, self._loop.future())
        self._waiting.append(load)
        try:
            self._begin_next()
            await load.turn
            yield
        finally:
            (self._under_way if load in self._under_way else self._waiting).remove(load)
            self._begin_next()

    def _begin_next(self) -> None:
        """Give all free slots to loads that wait."""
        while (load := self._next()) is not None:
            self._waiting.remove(load)
            self._under_way.append(load)
            self._loop.call_after(YOUNG_S, partial(self._grow_old, load))
            resolve(load.turn, None)

    def _next(self) -> _Load | None:
        """The load whose turn it is; None where no slot is free for any that waits."""
        num_young = sum(load.is_young for load in self._under_way)
        if num_young >= self._num_slots or len(self._under_way) >= MOST_LOADS * self._num_slots:
            return None
        models = [load.model for load in self._under_way]
        load = min(self._waiting, key=lambda load: models.count(load.model), default=None)
        return None if load is None or models.count(load.model) >= self._num_slots else load

    def _grow_old(self, load: _Load) -> None:
        load.is_young = False
        self._begin_next()
