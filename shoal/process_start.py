"""The start of a process that serves no requests: the repository's poller, the tracer, the recorder, the comparator.

Such a process is a child of the supervisor and takes orders from it alone, over one control connection.
"""

import faulthandler
from typing import Protocol, TypeVar, cast

from shoal import control, log
from shoal.control import GONE, Channel
from shoal.messages.message import Kinds, Message
from shoal.messages.shared import LogSettings
from shoal.process import die_with_parent, ignore_group_signals, set_title


class _Welcome(Protocol):
    """The supervisor's first message to a process that serves no requests."""

    @property
    def log(self) -> LogSettings: ...


_W = TypeVar("_W", bound=Message)


def join_supervisor(role: str, hello: Message, welcome: Kinds[_W]) -> tuple[Channel, _W] | None:
    """Connect this process to its supervisor, and configure its log as the supervisor's answer says.

    `role` is the process's title and its name in the log, `hello` its first message, `welcome` the kind of the answer.
    Returns the connection, the caller's to close, and the answer; None if the supervisor is gone, or has no need of the
    process any more. From this call on the process dies with its parent and ignores signals to its group.
    """
    die_with_parent()
    faulthandler.enable()
    set_title(role)
    ignore_group_signals()
    try:
        supervisor = control.join(hello)
        answer, _ = supervisor.receive(welcome)
    except GONE:
        return None
    log.describe(role)
    log.configure(**cast(_Welcome, answer).log)
    return supervisor, answer
