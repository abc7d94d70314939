"""Every type of control message, for tests that receive what any process sends."""

import importlib
import os
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgpack

from shoal import messages
from shoal.control import Channel
from shoal.messages.message import Kinds, Message, _fd_positions

for _module in pkgutil.iter_modules(messages.__path__):
    importlib.import_module(f"shoal.messages.{_module.name}")


def _types(base: type[Message]) -> Iterator[type[Message]]:
    yield from (each for each in base.__subclasses__() if each.__module__.startswith("shoal.messages."))


EVERY_KIND = Kinds[Message](*_types(Message))


def receive(channel: Channel) -> tuple[Message, int]:
    """The next message, of whatever type, and its sequence number."""
    return channel.receive(EVERY_KIND)


#: In the place of a descriptor in messages that a test compares.
FD = -1


def receive_any(channel: Channel) -> tuple[Any, int, list[int]]:
    """The next message, its sequence number, and its descriptors, in whose places it has FD."""
    data, fds = channel._receive()
    if not data:
        raise EOFError
    body = memoryview(data)[1:]
    if data[0] == 1:
        body = memoryview(os.pread(fds.pop(), 1 << 26, 0))
    legacy = msgpack.unpackb(body)
    if isinstance(legacy, dict):
        return legacy, legacy.pop("seq", 0), fds
    message, seq = EVERY_KIND.decode(body, fds)
    return without_descriptors(message), seq, fds


def without_descriptors(message: Message) -> Message:
    """The message with FD in the places of its descriptors."""
    values = message.values
    for position in _fd_positions(type(message)):
        if values[position] is not None:
            values[position] = FD
    return type(message)(*values)
