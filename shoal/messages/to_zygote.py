"""Messages between the supervisor and a zygote, and each process that it forks (shoal/zygote.py).

    zygote ── ZygoteReady or ZygoteUnfit ──► supervisor ── Fork, Fork, … ──► zygote
    forked process ── Forked ──► supervisor ── Descriptor, …, Begin ──► forked process, on a connection of its own

No message is acknowledged.
"""

from shoal.messages.message import Fd, Kinds, Message

#: The variables that give a zygote's end of the connection for its orders, and the supervisor's pid.
ORDERS_VARIABLE, SUPERVISOR_VARIABLE = "SHOAL_ZYGOTE_FD", "SHOAL_SUPERVISOR_PID"


class ZygoteReady(Message):
    """Sent by a zygote: its imports are done, and it takes Fork."""


class ZygoteUnfit(Message):
    """Sent by a zygote that ends: its imports have failed or started threads, so no process of its kind is forked."""

    sentence: str


class Fork(Message):
    """Sent by the supervisor: fork a process that runs a module's main(). `program` is the module and its arguments."""

    program: list[str]
    environment: dict[str, str]  # added to the zygote's own
    link: Fd  # the process's end of a connection to the supervisor
    stdout: Fd | None  # None: the zygote's stdout and stderr
    stderr: Fd | None


class Forked(Message):
    """Sent by a forked process, which then waits for Begin."""

    pid: int


class Descriptor(Message):
    """Sent by the supervisor before Begin: a descriptor whose number is added to those that a variable has."""

    variable: str
    fd: Fd


class Begin(Message):
    """Sent by the supervisor, which watches the forked process from now on: run the module."""


FROM_ZYGOTE = Kinds[ZygoteReady | ZygoteUnfit](ZygoteReady, ZygoteUnfit)
TO_ZYGOTE = Kinds(Fork)
FROM_FORKED = Kinds(Forked)
TO_FORKED = Kinds[Descriptor | Begin](Descriptor, Begin)
