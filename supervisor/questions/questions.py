"""Questions of front ends, guests and models: each names a verb, a coroutine whose result is the answer.

Runs in the supervisor. An answer to a process that has died meanwhile is dropped.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from shoal.errors import InternalError, ShoalError, UnavailableError
from shoal.messages.from_client import QuestionAsked
from shoal.messages.to_client import QuestionAnswered
from shoal.supervisor.event_loop import CancelledError, EventLoop
from shoal.supervisor.failure_domains import contained, own_error
from shoal.supervisor.processes.members import Member

#: A question's handler: takes its arguments, and returns what msgpack can carry. Raises ShoalError to refuse.
Verb = Callable[[dict[str, Any]], Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A question of a front end, a guest or a model. Exactly one of `answer` and `refuse` is called, once."""

    asker: Member
    number: int
    arguments: dict[str, Any]

    @property
    def title(self) -> str:
        return f"what process {self.asker.pid} has asked for"

    def contain(self, error: Exception) -> None:
        """Refuse the question after an unexpected error; a process takes only the first answer to a question."""
        self.refuse(own_error(error))

    def answer(self, result: Any = None) -> None:
        """Answer the question with a result that msgpack can carry."""
        self.asker.send(QuestionAnswered(self.number, result=result))

    def refuse(self, error: ShoalError) -> None:
        """Refuse the question: the client gets the error's sentence, with the status of its class."""
        self.asker.send(QuestionAnswered(self.number, error.wire, str(error)))


class Questions:
    """The verbs that processes may use, and the questions under way.

    When a process has the answer to `ping`, it has applied all messages that it was sent before.
    """

    def __init__(self, loop: EventLoop, verbs: dict[str, Verb]) -> None:
        self._loop = loop
        self._verbs: dict[str, Verb] = {"ping": _ping, **verbs}

    def take(self, asker: Member, message: QuestionAsked) -> None:
        question = Question(asker, message.question, message.arguments)
        self._loop.start(self._answer(question, message.verb))

    async def _answer(self, question: Question, verb: str) -> None:
        with contained(question):
            try:
                if verb not in self._verbs:
                    raise InternalError(f"the supervisor does not know the verb '{verb}'")
                question.answer(await self._verbs[verb](question.arguments))
            except ShoalError as error:
                question.refuse(error)
            except CancelledError:
                question.refuse(UnavailableError("the server is stopping"))
                raise


async def _ping(_arguments: dict[str, Any]) -> None:
    """Do nothing: the answer alone counts."""
