"""The clients that are the server's own processes: front ends, and workers whose models call others.

They join over the control socket, are sent every model, and ask the supervisor's questions. Users' processes are guests
(guests.py). Runs in the supervisor.
"""

import logging
from collections.abc import Callable
from functools import partial

from shoal.errors import UnavailableError
from shoal.messages.from_client import QuestionAsked
from shoal.messages.message import Handlers, Message, on, table
from shoal.messages.shared import PayloadMapped, PayloadReleased, PayloadWanted, Refused, SegmentWanted
from shoal.messages.to_client import ModelsKnown
from shoal.open_files import explain
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.event_loop import Future, sleep
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.memory.star import Star
from shoal.supervisor.models.models import Models
from shoal.supervisor.processes.front_ends import FrontEnds
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.restarts import backoff_s
from shoal.supervisor.questions.questions import Questions

_log = logging.getLogger(__name__)

#: The longest pause before a front end is given its memory that was refused (ours): it answers no request meanwhile.
MAX_PAUSE_S = 2.0


class Clients:
    """The joins of all clients that are the server's own. `send_settings` sends a front end what only front ends need;
    `gives_up` decides whether the server ends for a client that cannot have its memory."""

    def __init__(
        self,
        star: Star,
        models: Models,
        questions: Questions,
        front_ends: FrontEnds,
        send_settings: Callable[[Participant], None],
        gives_up: Callable[[Exception], bool],
    ) -> None:
        self._star = star
        self._models = models
        self._questions = questions
        self._front_ends = front_ends
        self._send_settings = send_settings
        self._gives_up = gives_up
        self._endings = list[Message]()  # about the server's end, for front ends. Changed by announce_ending

    async def join_front_end(self, member: Member) -> None:
        """Take in a front end: send it its memory and all models. Where there is no memory now, try again later."""
        num_refused = 0
        while member.is_open:
            try:
                client = await self._welcome(*self._star.join_client(member))
            except (OutOfSharedMemoryError, OSError) as error:
                if not member.is_open:
                    return  # the front end has ended, which has closed its memory: the server does not lack descriptors
                if self._gives_up(error):
                    return
                num_refused += 1
                pause_s = min(backoff_s(num_refused), MAX_PAUSE_S)
                _log.error(
                    "a front end (pid %d) cannot join: %s; it is tried again in %g s",
                    member.pid, explain(error), pause_s,
                )  # fmt: skip
                await sleep(pause_s)
            else:
                self._send_settings(client)
                for ending in self._endings:
                    member.send(ending)
                await self.send_models(client)
                if member.is_open:
                    self._front_ends.on_client_started()
                return

    def announce_ending(self, *messages: Message) -> None:
        """Send messages about the server's end to all front ends, also to those that join later."""
        self._endings += messages
        for front_end in self._star.front_ends:
            for message in messages:
                front_end.member.send(message)

    async def join_caller(self, member: Member) -> None:
        """Take in a worker whose model calls another for the first time; without memory, only the call fails."""
        try:
            caller = await self._welcome(*self._star.join_caller(member))
        except (OutOfSharedMemoryError, OSError) as error:
            sentence = explain(error)
            _log.error("a model cannot call others: %s", sentence)
            member.send(Refused(UnavailableError.wire, sentence))
            member.hang_up()
        else:
            self.send_models(caller)

    async def _welcome(self, client: Participant, known: Future[None]) -> Participant:
        """Give a client its memory, once the batcher knows it; returns when the client has mapped that, or is dead."""
        member = client.member
        member.listen(client_handlers(self._star, self._questions, client))

        def gone() -> None:
            self._star.acknowledgements.gone(member)
            self._star.leave_client(client)

        member.on_gone = gone
        await self._star.await_batcher(known)
        if member.is_open:
            try:
                await self._star.welcome(client, self._front_ends.welcome(is_caller=client.is_caller))
            except OSError:
                self._star.leave_client(client)
                raise
        return client

    def send_models(self, client: Participant) -> Future[None]:
        """Send a client or a guest all models, and that it may start; the future is done when it has applied them."""
        for message in self._models.messages():
            client.member.send(message)
        return self._star.acknowledgements.announce([(client.member, ModelsKnown())])


def client_handlers(star: Star, questions: Questions, client: Participant) -> Handlers:
    """The handlers of all messages that a client or a guest may send."""
    receive_payload = partial(star.payloads.receive, client)
    return table(
        on(QuestionAsked, partial(questions.take, client.member)),
        on(SegmentWanted, lambda message: star.lend_to_client(client, message.owner)),
        on(PayloadWanted, receive_payload),
        on(PayloadMapped, receive_payload),
        on(PayloadReleased, receive_payload),
    )
