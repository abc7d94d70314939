"""Questions of front ends, guests and models: each names a verb, a coroutine whose result is the answer.

Runs in the supervisor. The answer to a process that has died meanwhile goes nowhere.
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

#: What is done for a question: it is given the arguments, and returns what msgpack can carry. A ShoalError refuses.
Verb = Callable[[dict[str, Any]], Coroutine[Any, Any, Any]]


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


class Questions:
    """Which verbs there are.

    All that an asker was told before the answer to `ping` is in force there when that answer has come.
    """

    def __init__(self, loop: EventLoop, verbs: dict[str, Verb]) -> None:
        self._loop = loop
        self._verbs: dict[str, Verb] = {"ping": _ping, **verbs}

    def take(self, asker: Member, message: QuestionAsked) -> None:
        """Begin to answer a client's message."""
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
    """Nothing is done."""
