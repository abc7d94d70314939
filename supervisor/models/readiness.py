"""Which models say that they are ready: all instances of a version are asked, once for everybody who wants to know at a
time.

Runs in the supervisor. An instance has one question open at most, however long it executes and however many probes come
meanwhile: its answer says how things are when it is given, and counts for whoever waits then.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from shoal.messages.to_worker import CheckReady
from shoal.supervisor.event_loop import Callback
from shoal.supervisor.ledger import title_of
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.questions.questions import Question

_log = logging.getLogger(__name__)

#: Who has not answered by then is not ready (Triton's).
LIMIT_S = 5.0


@dataclass(slots=True, eq=False)
class _Round:
    """The instances that have not answered, by owner, and the questions that wait for them."""

    missing: set[int]
    questions: list[Question] = field(default_factory=list)


class Readiness:
    """Of all versions. `workers` are those in the star by owner, `call_after` calls back after some seconds."""

    def __init__(self, workers: Mapping[int, Participant], call_after: Callable[[float, Callback], None]) -> None:
        self._workers = workers
        self._call_after = call_after
        # Changed by take, hear and timers: by model id, who is being asked; by owner, the model whose worker owes an
        # answer, perhaps to a round that is over.
        self._rounds: dict[int, _Round] = {}
        self._owing: dict[int, int] = {}

    def take(self, question: Question) -> None:
        """Answer whether all instances of a version that batches may go to say that they are ready."""
        model_id: int = question.arguments["model"]
        current = self._rounds.get(model_id) or self._begin(model_id)
        if current.missing:
            current.questions.append(question)
        else:
            question.answer(False)

    def hear(self, owner: int, *, is_ready: bool) -> None:
        """A worker has answered; one that has gone is not ready."""
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
        begun = _Round({worker.owner for worker in asked})
        if asked:
            self._rounds[model_id] = begun
            self._call_after(LIMIT_S, lambda: self._expire(model_id, begun))
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
        for question in self._rounds.pop(model_id).questions:
            question.answer(is_ready)
