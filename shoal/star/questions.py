"""Questions to the supervisor: what a request wants to know, or done, that only the supervisor can.

Runs in any client with threads: those that ask wait, the thread that listens to the supervisor passes on what
it answers. Never on the way of an inference request.
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

#: How handlers ask: a verb and its arguments, of what msgpack can carry, become the answer.
Ask = Callable[[str, dict[str, Any]], Any]


class NoAnswerError(UnavailableError):
    """The supervisor has said nothing in time: what was asked for may still happen."""


class Questions:
    """This process's. `send` sends the supervisor a message, from any thread."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        # Changed under the lock: who waits for the answer to which question.
        self._waiting: dict[int, queue.SimpleQueue[QuestionAnswered]] = {}

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float) -> Any:
        """The supervisor's answer, of what msgpack can carry.

        Raises the ShoalError it refuses with, NoAnswerError where it says nothing in time.
        """
        answers: queue.SimpleQueue[QuestionAnswered] = queue.SimpleQueue()
        with self._lock:
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
        if answer.wire:
            raise errors.from_wire(answer.wire, answer.sentence)
        return answer.result

    def lose(self, why: ShoalError) -> None:
        """There will be no answers: that is the answer to all that are waited for."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for number, waiter in waiting.items():
            waiter.put(QuestionAnswered(number, why.wire, str(why)))

    def hear(self, answer: QuestionAnswered) -> None:
        """Pass on an answer; one that nobody waits for any more is dropped."""
        with self._lock:
            waiter = self._waiting.pop(answer.question, None)
        if waiter is not None:
            waiter.put(answer)
