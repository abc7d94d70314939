"""What a client sends the supervisor: a front end, a worker whose model calls others (clients.py), a guest (guests.py).

    FrontEndConnected, CallerConnected or GuestConnected first; then all others, at any time

A guest is no process of the server and may send anything. What is decoded has the fields that are declared here; what
they say is checked where it is used.
"""

from typing import Any

from shoal.messages.message import Message


class FrontEndConnected(Message):
    """A front end waits for ClientWelcomed."""


class CallerConnected(Message):
    """A worker, by a second connection, waits for ClientWelcomed: its model calls others."""


class GuestConnected(Message):
    """A process that is not of the server waits for GuestWelcomed."""


class QuestionAsked(Message):
    """A question (supervisor/questions/questions.py), which QuestionAnswered answers once."""

    question: int  # a number of the client's own
    verb: str
    arguments: dict[str, Any]
