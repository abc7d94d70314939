"""Dead workers whose last answers may still be read. Runs in the supervisor, part of the star (star.py).

The batcher passes them on. One that dies before it has is followed by one that must know these workers, too: which
requests they had begun, which may not be executed again, and which they had answered stands in their memory. So they
are announced to a successor like living workers, and their death once clients have sent their open requests again.

Then clients read them, some of which ask for a worker's segment only when they meet an answer that lies there
(loans.py). So a dead worker's segment can be had until they all have acknowledged that it goes.
"""

from collections.abc import Callable, Sequence

from shoal.messages.message import Message
from shoal.messages.to_batcher import RetireWorker, WorkerDied, WorkerReady
from shoal.reasons import Reason
from shoal.supervisor.event_loop import Future
from shoal.supervisor.memory.joined import Participants
from shoal.supervisor.memory.participant import Participant, worker_joined
from shoal.supervisor.processes.members import Member


class DeadWorkers:
    """The dead workers of a star, by owner id; `release` lets go of the payloads that one had written."""

    def __init__(self, star: Participants, release: Callable[[Participant], None]) -> None:
        self._star = star
        self._release = release
        # Changed by add and as the batcher and clients let go: the message for a batcher; the batcher that serves, None
        # while its place is taken.
        self._dead: dict[int, tuple[Participant, WorkerDied]] = {}
        self._passed_on: dict[int, Participant] = {}
        self._batcher: Member | None = None

    def __contains__(self, owner: int) -> bool:
        return owner in self._dead or owner in self._passed_on

    def find(self, owner: int) -> Participant | None:
        """The dead worker that has this id; None where there is none."""
        return self._dead[owner][0] if owner in self._dead else self._passed_on.get(owner)

    def add(self, worker: Participant, reason: Reason, detail: int) -> None:
        """Announce a worker's death to the batcher, or to the next one."""
        gone = WorkerDied(worker.owner, int(reason), detail)
        self._dead[worker.owner] = worker, gone
        if self._batcher is not None:
            self._report(worker.owner, self._batcher)

    def report_to(self, batcher: Member | None) -> None:
        """Announce all to the batcher that serves from now on; None: none does."""
        self._batcher = batcher
        if batcher is not None:
            for owner in tuple(self._dead):
                self._report(owner, batcher)

    def introductions(self, results_of: Callable[[Participant], Sequence[Message]]) -> list[Message]:
        """What a successor is told before it serves, of workers that may have been given requests: that they get
        nothing more. `results_of` is what it must know of a worker's segments for single payloads."""
        messages: list[Message] = []
        for worker, _ in self._dead.values():
            if worker.is_ready:
                messages += [worker_joined(worker), WorkerReady(worker.owner), RetireWorker(worker.owner)]
                messages += results_of(worker)
        return messages

    def _report(self, owner: int, batcher: Member) -> None:
        worker, gone = self._dead[owner]
        passed_on = self._star.acknowledgements.announce([(batcher, gone)])
        self._star.loop.start(self._let_go(worker, batcher, passed_on))

    async def _let_go(self, worker: Participant, batcher: Member, passed_on: Future[None]) -> None:
        """The batcher passes on what the worker has answered, clients read that, and then the memory goes."""
        await passed_on
        if self._batcher is not batcher:
            return  # it has died before it had
        del self._dead[worker.owner]
        self._passed_on[worker.owner] = worker
        loans = self._star.loans
        await loans.end_when_read(worker.owner, self._star.joined, self._star.acknowledgements)
        loans.send_end(worker.owner)
        self._release(worker)
        del self._passed_on[worker.owner]
        worker.close()
