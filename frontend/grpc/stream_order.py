"""A stream's responses in order: those of ordinary models as their requests came, all others at once. Pure.

As in Triton's ModelStreamInfer. Requests that may have several answers take no part in the order.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class StreamOrder(Generic[T]):
    """The answers of a stream's ordinary requests, by their tickets."""

    __slots__ = ("_answers", "_next_ticket", "_tickets")

    def __init__(self) -> None:
        # Changed by every method.
        self._next_ticket = 0
        self._tickets: deque[int] = deque()  # of requests whose answer has not gone out
        self._answers: dict[int, T] = {}  # answers that must wait for an earlier one

    def __len__(self) -> int:
        return len(self._tickets)

    def enter(self) -> int:
        """The ticket of a request that has come, for its answer."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self._tickets.append(ticket)
        return ticket

    def answer(self, ticket: int, answer: T) -> list[T]:
        """The answers that may go out now that this one has come, in order."""
        tickets, answers = self._tickets, self._answers
        if len(tickets) == 1:
            tickets.clear()
            return [answer]
        answers[ticket] = answer
        ready = []
        while tickets and tickets[0] in answers:
            ready.append(answers.pop(tickets.popleft()))
        return ready

    def change(self, changed: Callable[[T], T]) -> None:
        """Replace each waiting answer by `changed` of it."""
        for ticket, answer in self._answers.items():
            self._answers[ticket] = changed(answer)

    def drain(self) -> list[T]:
        """End the stream. Returns waiting responses, whose blocks the caller is to release."""
        waiting = list(self._answers.values())
        self._tickets.clear()
        self._answers.clear()
        return waiting
