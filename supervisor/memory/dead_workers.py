"""Dead workers whose last answers may still be read. Runs in the supervisor, part of the star (star.py).

The batcher forwards a dead worker's last answers. A batcher that dies before that is followed by a successor, which
must know these workers, too: their memory says which requests they had begun, and so must not be executed again, and
which requests they had answered. So dead workers are announced to a successor like living ones, and their deaths are
announced once clients have sent their open requests again.

Then clients read these answers. Some clients ask for a worker's segment only when an answer names it (loans.py). So a
dead worker's segment is lent until all clients have acknowledged SegmentGone.
"""

from collections.abc import Callable, Sequence

from shoal.messages.message import Message
from shoal.messages.to_batcher import RetireWorker, WorkerDied, WorkerReady
from shoal.reasons import Reason
from shoal.supervisor.event_loop import Future
from shoal.supervisor.memory.participant import Participant, worker_joined
from shoal.supervisor.memory.participants import Participants
from shoal.supervisor.processes.members import Member


class DeadWorkers:
    """The dead workers of a star, by owner id. `on_gone` is called with each whose answers all clients have read."""

    def __init__(self, star: Participants, on_gone: Callable[[Participant], None]) -> None:
        self._star = star
        self._on_gone = on_gone
        # Changed by add, by report_to, and when readers have acknowledged. `_dead`: workers whose answers no batcher
        # has forwarded yet, each with its message for batchers. `_passed_on`: workers whose answers clients may still
        # read.
        self._dead: dict[int, tuple[Participant, WorkerDied]] = {}
        self._passed_on: dict[int, Participant] = {}
        self._batcher: Member | None = None

    def __contains__(self, owner: int) -> bool:
        return owner in self._dead or owner in self._passed_on

    def find(self, owner: int) -> Participant | None:
        """The dead worker with this owner id; None where there is none."""
        return self._dead[owner][0] if owner in self._dead else self._passed_on.get(owner)

    def add(self, worker: Participant, reason: Reason, detail: int) -> None:
        """Announce a worker's death to the batcher, or to its successor where none serves now."""
        gone = WorkerDied(worker.owner, int(reason), detail, is_repeated=False)
        self._dead[worker.owner] = worker, gone
        if self._batcher is not None:
            self._report(worker.owner, self._batcher)

    def report_to(self, batcher: Member | None) -> None:
        """Announce all dead workers to the batcher that serves from now on; None: no batcher serves."""
        self._batcher = batcher
        if batcher is not None:
            for owner in tuple(self._dead):
                self._report(owner, batcher)

    def introductions(self, results_of: Callable[[Participant], Sequence[Message]]) -> list[Message]:
        """The messages that introduce dead workers to a successor before it serves, as workers that get nothing more.
        `results_of` returns the messages about a worker's segments for single payloads."""
        messages: list[Message] = []
        for worker, _ in self._dead.values():
            if worker.is_ready:
                messages += [worker_joined(worker), WorkerReady(worker.owner), RetireWorker(worker.owner)]
                messages += results_of(worker)
        return messages

    def _report(self, owner: int, batcher: Member) -> None:
        worker, gone = self._dead[owner]
        passed_on = self._star.acknowledgements.announce([(batcher, gone)])
        self._dead[owner] = worker, WorkerDied(owner, gone.reason, gone.detail, is_repeated=True)
        self._star.loop.start(self._close_when_read(worker, batcher, passed_on))

    async def _close_when_read(self, worker: Participant, batcher: Member, passed_on: Future[None]) -> None:
        """Close a dead worker's segment once the batcher has forwarded its answers and clients have read them."""
        await passed_on
        if self._batcher is not batcher or not batcher.is_open:
            return  # this batcher has died, perhaps before it had forwarded the worker's answers
        del self._dead[worker.owner]
        self._passed_on[worker.owner] = worker
        loans = self._star.loans
        await loans.end_when_read(worker.owner, self._star.joined, self._star.acknowledgements)
        loans.send_end(worker.owner)
        self._on_gone(worker)
        del self._passed_on[worker.owner]
        worker.close()
