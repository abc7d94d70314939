"""Poison: requests that end the instances which execute them. Such requests are noted when an instance dies, tried
alone, then refused.

The policy is in scheduling/suspects.py and scheduling/trials.py; this file reads requests' contents and decides which
deaths count. Contents are read when an instance dies, and of a model's arriving requests while the model has suspects;
a model without suspects pays nothing. Lives in the batcher.
"""

import logging
import signal
from collections.abc import Mapping

from shoal.batcher.blocks import Blocks
from shoal.batcher.compared_parameters import compared_parameters
from shoal.batcher.peers import OpenRequest, ScheduledModel, WorkerPeer
from shoal.batcher.scheduling.suspects import Content, Suspect, Suspects
from shoal.batcher.scheduling.trials import TrialScheduler
from shoal.errors import InternalError
from shoal.messages.message import Message
from shoal.messages.shared import PoisonFound
from shoal.reasons import DeathDetail, Reason, has_died_with_others
from shoal.shm.counters import CELL
from shoal.shm.layout import unpack_span
from shoal.star.request_digest import RequestContent, request_content

_log = logging.getLogger(__name__)

_FOUND = CELL["poison_found"]
#: Signals that come from outside the worker: from an operator, or from the kernel when memory is short and nothing
#: shows that the worker used it up. A death by such a signal says nothing about the requests.
_FROM_OUTSIDE = frozenset(
    {
        -signal.SIGKILL,
        -signal.SIGTERM,
        -signal.SIGINT,
        -signal.SIGHUP,
        -signal.SIGQUIT,
        -signal.SIGUSR1,
        -signal.SIGUSR2,
    }
)
_COUNTED = frozenset({Reason.INSTANCE_DIED, Reason.OUT_OF_MEMORY, Reason.EXECUTION_LIMIT})
#: Contents from clients other than front ends are compared only with each other: a guest or a caller can change its
#: block after a worker has read it, so that the batcher reads other contents than those that ended the instance.
_FOREIGN = b"foreign"
#: Most open requests of a model that are compared with the requests of a dead instance (ours: that takes 30 ms);
#: further ones are executed without a trial.
_MAX_COMPARED = 4096


class Poison:
    """Notes the contents of requests when an instance dies, and puts trials in front of the model's scheduler."""

    def __init__(
        self,
        requests: Mapping[int, OpenRequest],
        workers: Mapping[int, WorkerPeer],
        blocks: Blocks,
        tried: dict[int, TrialScheduler | None],
        refusal_ns: int,
        reports: list[Message],
    ) -> None:
        """`tried` gets the key of each request on trial, with the scheduler that is to learn how the trial ends; None
        once the request is back in the queue. `refusal_ns` is how long a content is refused the first time, and how
        long a suspect is remembered. `reports` gets PoisonFound messages."""
        self._requests = requests
        self._workers = workers
        self._blocks = blocks
        self._tried = tried
        self._refusal_ns = refusal_ns
        self._reports = reports
        # Changed by note_death: workers that died with another instance of their process; the requests that they were
        # executing were noted with that instance's death.
        self._noted: set[int] = set()

    def read(self, key: int) -> RequestContent | None:
        """The content of an open request; None for a request of a sequence, with tensors on a GPU, or with memory that
        the batcher cannot read."""
        request = self._requests.get(key)
        if request is None:
            return None
        client, _, _, block, span, _, _, _ = request
        own = self._blocks.open(block)
        if own is None:
            return None
        offset, nbytes = unpack_span(span)
        try:
            header = own[offset : offset + nbytes].tobytes()
            sender = b"" if client.is_front_end else _FOREIGN
            return request_content(header, self._blocks.opener(client, own), sender, compared_parameters)
        except InternalError:
            return None

    def note_death(self, worker: WorkerPeer, begun: int, reason: Reason, detail: int, now_ns: int) -> None:
        """Note that an instance died, which had begun its batches up to the number `begun`.

        If the death counts, the requests that other instances of the process were executing are noted, too, and those
        instances' deaths are not noted again. A death that does not count only delays trials. If several instances
        shared the process, the death that counts may be noted later: that of the instance whose batch was over the
        execution limit, for which the process was killed.
        """
        if worker.owner in self._noted:
            self._noted.discard(worker.owner)
            return
        model = worker.model
        if model.trials is not None:
            model.trials.died()
        if reason not in _COUNTED or (
            reason is Reason.INSTANCE_DIED and DeathDetail.unpack(detail).code in _FROM_OUTSIDE
        ):
            return
        keys = [key for key, running in worker.missing.items() if running.number <= begun]
        if has_died_with_others(reason, detail):
            for each in self._sharing(worker):
                self._noted.add(each.owner)
                keys += [key for key, running in each.missing.items() if running.number == each.batch_executing]
        contents = [content for key in keys if (content := self.read(key)) is not None]
        if not contents:
            return
        trials = self._trials(model)
        trials.died()
        for convicted, suspect in trials.suspects.died(contents, len(keys), now_ns):
            model.row.cells[_FOUND] += 1
            self._report(model, convicted, suspect, now_ns)
        self._hold_back(model, trials)

    def _sharing(self, dead: WorkerPeer) -> list[WorkerPeer]:
        """The other instances of a dead process that are not removed yet."""
        pid = DeathDetail.unpack(dead.instance).pid
        workers = [each for each in self._workers.values() if each.model is dead.model and each is not dead]
        return [each for each in workers if pid and DeathDetail.unpack(each.instance).pid == pid]

    def _trials(self, model: ScheduledModel) -> TrialScheduler:
        if model.trials is None:
            model.trials = TrialScheduler(model.scheduler, Suspects(self._refusal_ns), self.read, self._tried)
            model.scheduler = model.trials
        return model.trials

    def _hold_back(self, model: ScheduledModel, trials: TrialScheduler) -> None:
        """Have queued requests whose contents are suspects wait for a trial."""
        if not trials.behind.pending:
            return
        queued = [key for key, request in self._requests.items() if request[1] is model][:_MAX_COMPARED]
        for key in reversed(queued):  # the last first: each is queued in front of all others
            content = self.read(key)
            if content is not None and trials.suspects.is_suspect(content.sample) and trials.behind.cancel(key):
                trials.add_first(self._requests[key][-1])

    def _report(self, model: ScheduledModel, content: Content, suspect: Suspect, now_ns: int) -> None:
        assert suspect.convicted is not None
        _log.warning(
            "model '%s' version %d: a request has ended %d instances (%s; digest %016x%016x). Requests equal to it are "
            "refused with status 422 for %d s; loading the model again admits them",
            model.signature.name,
            model.version,
            suspect.num_deaths,
            content.describe(),
            *reversed(suspect.convicted),  # the high word first, as in keys of the shared cache
            (suspect.refused_until_ns - now_ns) // 1_000_000_000,
        )
        sample, digest = content.sample, suspect.convicted
        self._reports.append(
            PoisonFound(
                model.id, *sample, *digest, suspect.num_deaths, suspect.num_refusals, suspect.refused_until_ns,
                suspect.until_ns,
            )
        )  # fmt: skip

    def restore(self, model: ScheduledModel, known: PoisonFound) -> None:
        """Refuse requests that a dead batcher refused, until the time that it had set; `known` is what the supervisor
        remembers."""
        suspect = Suspect()
        suspect.convicted = known.digest_low, known.digest_high
        suspect.num_deaths, suspect.num_refusals = known.num_deaths, known.num_refusals
        suspect.refused_until_ns, suspect.until_ns = known.refused_until_ns, known.until_ns
        self._trials(model).suspects.restore((known.sample_low, known.sample_high), suspect)
