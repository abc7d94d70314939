"""The clients that are processes of the server's own: front ends, and workers whose models call others.

They join over the control socket, are told of every model, and ask what only the supervisor knows. Those that are not
ours are guests (guests.py). Runs in the supervisor.
"""

import logging
from collections.abc import Callable
from functools import partial

from shoal.errors import UnavailableError
from shoal.messages.from_client import QuestionAsked
from shoal.messages.message import Handlers, on, table
from shoal.messages.shared import PayloadMapped, PayloadReleased, PayloadWanted, Refused, SegmentWanted
from shoal.messages.to_client import ModelsKnown
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.memory.star import Star, Welcome
from shoal.supervisor.models.models import Models
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.restarts import backoff_s
from shoal.supervisor.questions.questions import Questions

_log = logging.getLogger(__name__)


class Clients:
    """All of them. `welcome` makes the first message of each; `on_front_end` gets each front end that has its memory;
    `gives_up` is asked whether the server ends for one that cannot have any."""

    def __init__(
        self,
        loop: EventLoop,
        star: Star,
        models: Models,
        questions: Questions,
        welcome: Callable[[], Welcome],
        on_front_end: Callable[[Participant], None],
        gives_up: Callable[[Exception], bool],
    ) -> None:
        self._loop = loop
        self._star = star
        self._models = models
        self._questions = questions
        self._welcome = welcome
        self._on_front_end = on_front_end
        self._gives_up = gives_up
        # Changed as front ends join.
        self._num_refused = 0  # one after the other

    def join_front_end(self, member: Member) -> None:
        """A front end is to have its memory; where there is none, it waits for it."""
        if not member.is_open:
            return
        try:
            client = self._star.join_client(member, self._welcome(), self._on_front_end)
        except (OutOfSharedMemoryError, OSError) as error:
            if self._gives_up(error):
                return
            self._num_refused += 1
            pause_s = backoff_s(self._num_refused)
            _log.error("a front end (pid %d) cannot join: %s; it is tried again in %g s", member.pid, error, pause_s)
            self._loop.call_after(pause_s, lambda: self.join_front_end(member))
        else:
            self._num_refused = 0
            self._listen_to(member, client)

    def join_caller(self, member: Member) -> None:
        """A model calls another for the first time. Where there is no room for that, the call fails, and no more."""
        try:
            caller = self._star.join_caller(member, self._welcome(), self.tell_models)
        except (OutOfSharedMemoryError, OSError) as error:
            _log.error("a model cannot call others: %s", error)
            member.send(Refused(UnavailableError.wire, str(error)))
            member.hang_up()
        else:
            self._listen_to(member, caller)

    def tell_models(self, client: Participant, then: Callable[[], None] = lambda: None) -> None:
        """Tell a client, a guest too, of all models, and that it may start; `then` when it has heard."""
        for message in self._models.messages():
            client.member.send(message)
        self._star.acknowledgements.announce([(client.member, ModelsKnown())], then)

    def _listen_to(self, member: Member, client: Participant) -> None:
        member.listen(client_handlers(self._star, self._questions, client))

        def gone() -> None:
            self._star.acknowledgements.gone(member)
            self._star.leave_client(client)

        member.on_gone = gone


def client_handlers(star: Star, questions: Questions, client: Participant) -> Handlers:
    """Of what a client may send, a guest too."""
    hear_payload = partial(star.payloads.hear, client)
    return table(
        on(QuestionAsked, partial(questions.take, client.member)),
        on(SegmentWanted, lambda message: star.lend_to_client(client, message.owner)),
        on(PayloadWanted, hear_payload),
        on(PayloadMapped, hear_payload),
        on(PayloadReleased, hear_payload),
    )
