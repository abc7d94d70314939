"""Questions to the supervisor: requests of clients that only the supervisor can answer.

Runs in any client with threads: a thread that asks waits, and the thread that listens to the supervisor passes on the
answer. Never used on the path of an inference request.
"""

import itertools
import queue
import threading
from collections.abc import Callable
from typing import Any

from shoal import errors
from shoal.errors import ShoalError, UnavailableError
from shoal.messages.from_client import QuestionAsked
from shoal.messages.message import Message
from shoal.messages.to_client import QuestionAnswered

#: A function that asks the supervisor: a verb and its arguments, of types that msgpack packs. Returns the answer.
Ask = Callable[[str, dict[str, Any]], Any]


class NoAnswerError(UnavailableError):
    """The supervisor has not answered in time: the requested change may still happen."""


class OpenQuestions:
    """The open questions of one client. `send` sends the supervisor a message, from any thread."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        # Changed under the lock: number of a question → queue of the thread that waits, which gets None if no answer
        # can come any more; the error that says why.
        self._waiting: dict[int, queue.SimpleQueue[QuestionAnswered | None]] = {}
        self._lost: ShoalError | None = None

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float) -> Any:
        """Ask, and return the supervisor's answer, of types that msgpack packs.

        Raises the ShoalError of a refusal, NoAnswerError after `timeout_s` seconds, and the error of `lose`.
        """
        answers: queue.SimpleQueue[QuestionAnswered | None] = queue.SimpleQueue()
        with self._lock:
            if self._lost is not None:
                raise _again(self._lost)
            number = next(self._numbers)
            self._waiting[number] = answers
        try:
            self._send(QuestionAsked(number, verb, arguments))
            answer = answers.get(timeout=timeout_s)
        except queue.Empty:
            raise NoAnswerError(f"no answer from the supervisor within {timeout_s:g} s; it may still come") from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if answer is None:
            assert self._lost is not None
            raise _again(self._lost)
        if answer.wire:
            raise errors.from_wire(answer.wire, answer.sentence)
        return answer.result

    def lose(self, why: ShoalError) -> None:
        """Fail all open and later questions with this error: the supervisor is gone, or the server ends."""
        with self._lock:
            waiting, self._waiting, self._lost = self._waiting, {}, why
        for waiter in waiting.values():
            waiter.put(None)

    def receive(self, answer: QuestionAnswered) -> None:
        """Pass on an answer. The answer is dropped if the thread that asked has given up."""
        with self._lock:
            waiter = self._waiting.pop(answer.question, None)
        if waiter is not None:
            waiter.put(answer)


def _again(error: ShoalError) -> ShoalError:
    """An equal error, for another thread to raise."""
    return type(error)(str(error))
