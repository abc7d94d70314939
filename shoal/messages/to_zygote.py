"""Messages between the supervisor and a zygote, and each process that it forks (shoal/zygote.py).

    zygote ── ZygoteReady or ZygoteUnfit ──► supervisor ── Fork, Fork, … ──► zygote
    forked process ── Forked ──► supervisor ── Begin ──► forked process, on a connection of its own

No message is acknowledged.
"""

from shoal.messages.message import Fd, Kinds, Message


class ZygoteReady(Message):
    """Sent by a zygote: its imports are done, and it takes Fork."""


class ZygoteUnfit(Message):
    """Sent by a zygote that ends: its imports have failed or started threads, so no process of its kind is forked."""

    sentence: str


class Fork(Message):
    """Sent by the supervisor: fork a process that runs a module's main()."""

    module: str
    environment: dict[str, str]  # added to the zygote's own
    link: Fd  # the process's end of a connection to the supervisor
    stdout: Fd | None  # None: the zygote's stdout and stderr
    stderr: Fd | None


class Forked(Message):
    """Sent by a forked process, which then waits for Begin."""

    pid: int


class Begin(Message):
    """Sent by the supervisor, which watches the forked process from now on: run the module."""


FROM_ZYGOTE = Kinds[ZygoteReady | ZygoteUnfit](ZygoteReady, ZygoteUnfit)
TO_ZYGOTE = Kinds(Fork)
FROM_FORKED = Kinds(Forked)
TO_FORKED = Kinds(Begin)
