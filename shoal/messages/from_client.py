"""Messages from clients to the supervisor: front ends, workers whose models call others (clients.py), guests
(guests.py).

    FrontEndConnected, CallerConnected or GuestConnected first; then all others, at any time

A guest is a foreign process and may send anything. A decoded message has the declared fields with their types; their
values are checked where they are used.
"""

from typing import Any

from shoal.messages.message import Message


class FrontEndConnected(Message):
    """A front end has connected, and waits for ClientWelcomed."""


class CallerConnected(Message):
    """A worker whose model calls others has opened its second connection, and waits for ClientWelcomed."""


class GuestConnected(Message):
    """A foreign process has connected, and waits for GuestWelcomed."""


class QuestionAsked(Message):
    """A question (supervisor/questions/questions.py), which one QuestionAnswered answers. Its arguments are free in
    form: each verb has its own, and checks them."""

    question: int  # the client's own number of the question
    verb: str
    arguments: dict[str, Any]
