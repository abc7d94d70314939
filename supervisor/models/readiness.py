"""Readiness methods of models: all instances of a version are asked, once for all questions that arrive at a time.

Runs in the supervisor. An instance has at most one question open, however long it executes and however many probes come
meanwhile: its answer describes the instance at that moment, and counts for all questions that wait then.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.messages.to_worker import CheckReady
from shoal.supervisor.event_loop import EventLoop, Future, shared
from shoal.supervisor.ledger import title_of
from shoal.supervisor.memory.participant import Participant

_log = logging.getLogger(__name__)

#: Seconds after which an instance that has not answered is not ready (Triton's).
LIMIT_S = 5.0


@dataclass(slots=True, eq=False)
class _Round:
    """One question to all instances of a version: the owner ids that have not answered, and the result, a future."""

    missing: set[int]
    is_ready: Future[bool]


class Readiness:
    """The readiness of all versions. `workers` are the star's workers by owner id."""

    def __init__(self, workers: Mapping[int, Participant], loop: EventLoop) -> None:
        self._workers = workers
        self._loop = loop
        # Changed by is_ready, receive and timers: by model id, the round under way; by owner id, the model whose worker
        # owes an answer, perhaps to a round that is over.
        self._rounds: dict[int, _Round] = {}
        self._owing: dict[int, int] = {}

    async def is_ready(self, arguments: dict[str, Any]) -> bool:
        """Whether all instances of a version that take batches report that they are ready; False if it has none."""
        model_id: int = arguments["model"]
        current = self._rounds.get(model_id) or self._begin(model_id)
        return bool(current.missing) and await shared(current.is_ready)

    def receive(self, owner: int, *, is_ready: bool) -> None:
        """Handle a worker's answer; a worker that has ended counts as not ready."""
        model_id = self._owing.pop(owner, 0)
        current = self._rounds.get(model_id)
        if current is None or owner not in current.missing:
            return
        current.missing.remove(owner)
        if not is_ready or not current.missing:
            self._end(model_id, is_ready=is_ready)

    def _begin(self, model_id: int) -> _Round:
        asked = [
            worker
            for worker in self._workers.values()
            if worker.model_id == model_id and worker.is_ready and not worker.is_retiring
        ]
        begun = _Round({worker.owner for worker in asked}, self._loop.future())
        if asked:
            self._rounds[model_id] = begun
            self._loop.call_after(LIMIT_S, lambda: self._expire(model_id, begun))
        for worker in asked:
            if worker.owner not in self._owing:
                self._owing[worker.owner] = model_id
                worker.member.send(CheckReady())
        return begun

    def _expire(self, model_id: int, begun: _Round) -> None:
        if self._rounds.get(model_id) is not begun:
            return
        late = [title_of(self._workers[owner].member.pid) for owner in begun.missing]
        _log.warning("not ready, since they have not answered within %g s: %s", LIMIT_S, ", ".join(sorted(late)))
        self._end(model_id, is_ready=False)

    def _end(self, model_id: int, *, is_ready: bool) -> None:
        self._rounds.pop(model_id).is_ready.set_result(is_ready)
