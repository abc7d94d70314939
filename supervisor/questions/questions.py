"""Questions of front ends: each names a verb and is answered once, now or when what it asks for is done.

Runs in the supervisor. A verb's handler is told the question and keeps it for as long as it takes; a front end that has
died meanwhile is answered into the void.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.errors import InternalError, ShoalError
from shoal.messages.from_client import QuestionAsked
from shoal.messages.to_client import QuestionAnswered
from shoal.supervisor.failure_domains import own_error, run_in
from shoal.supervisor.processes.members import Member


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What a front end wants to know, or done. Exactly one of `answer` and `refuse` is called, once."""

    asker: Member
    number: int
    arguments: dict[str, Any]

    @property
    def title(self) -> str:
        """For the log."""
        return f"what process {self.asker.pid} has asked for"

    def contain(self, error: Exception) -> None:
        """As a failure domain: refused, unless it has been answered; the asker takes the first answer."""
        self.refuse(own_error(error))

    def answer(self, result: Any = None) -> None:
        """Done: `result` is of what msgpack can carry."""
        self.asker.send(QuestionAnswered(self.number, result=result))

    def refuse(self, error: ShoalError) -> None:
        """Not done; the client gets this sentence, with the status of the error's class."""
        self.asker.send(QuestionAnswered(self.number, error.wire, str(error)))


Handler = Callable[[Question], None]


class Questions:
    """Which verbs there are. A handler that raises a ShoalError refuses by it.

    All that an asker was told before the answer to `ping` is in force there when that answer has come.
    """

    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._handlers = {"ping": Question.answer, **handlers}

    def take(self, asker: Member, message: QuestionAsked) -> None:
        """Hand a front end's message to whom it concerns."""
        question = Question(asker, message.question, message.arguments)
        run_in(question, self._take, question, message.verb)

    def _take(self, question: Question, verb: str) -> None:
        handler = self._handlers.get(verb)
        try:
            if handler is None:
                raise InternalError(f"the supervisor does not know the verb '{verb}'")
            handler(question)
        except ShoalError as error:
            question.refuse(error)
