"""Every type of control message, for tests that receive what any process sends."""

import importlib
import pkgutil
from typing import Any, get_args

from shoal import messages
from shoal.control import Channel
from shoal.messages.message import Fd, Kinds, Message
from shoal.messages.to_client import ModelChanged

for _module in pkgutil.iter_modules(messages.__path__):
    importlib.import_module(f"shoal.messages.{_module.name}")

_declared = [each for each in Message.__subclasses__() if each.__module__.startswith("shoal.messages.")]
EVERY_KIND = Kinds[Message](*_declared)


def receive(channel: Channel) -> tuple[Any, int]:
    """The next message, of whatever type, and its sequence number."""
    return channel.receive(EVERY_KIND)


#: In the place of a descriptor in messages that a test compares.
FD = -1


def without_descriptors(message: Message) -> Message:
    """The message with FD in the places of its descriptors."""
    kinds = zip(type(message).__annotations__.values(), message.values, strict=True)
    is_fd = [value is not None and (kind == Fd or Fd in get_args(kind)) for kind, value in kinds]
    return type(message)(*[FD if each else value for each, value in zip(is_fd, message.values, strict=True)])


def model_message(name: str, version: int, model: int, config: dict[str, Any] | None, **more: Any) -> ModelChanged:
    """What the supervisor sends about a model version that is READY, or as `more` says."""
    fields: dict[str, Any] = {
        "name": name,
        "namespace": "",
        "version": version,
        "model_id": model,
        "row": model,
        "state": "READY",
        "reason": "",
        "is_failed": False,
        "is_polled": True,
        "num_instances": 2,
        "num_instances_up": 2,
        "config": config,
        "groups": [],
        "labels": {},
        "load_seconds": 0.25,
        "has_ready_check": False,
        "is_cached": False,
    }
    return ModelChanged(**fields | more)


class Nonsense(Message):
    """A message that no receiver knows."""
