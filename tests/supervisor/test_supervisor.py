"""What the supervisor does with who joins; the test is the process that does, at a real connection."""

import os
import socket

from shoal.control import Channel
from shoal.messages.from_client import CallerConnected, FrontEndConnected
from shoal.messages.message import Message, descriptors
from shoal.messages.shared import Refused
from shoal.messages.to_client import ClientWelcomed, ConnectionsEnding, ModelsKnown, ServerStopping
from shoal.placement import Machine
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.processes.members import Member
from shoal.supervisor.service import Notifier
from shoal.supervisor.supervisor import Supervisor
from tests.messages import receive
from tests.scarcity import files_of_at_most_a_page
from tests.supervisor.star_rig import OPTIONS


def test_a_caller_for_whom_there_is_no_memory_is_told_so_and_the_server_goes_on() -> None:
    supervisor = Supervisor(OPTIONS, {}, {}, Notifier.take({}, os.getpid()), {}, Machine((0,)))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    member, caller = Member(EventLoop(), Channel(ours), 1, supervisor._star.acknowledgements), Channel(theirs)
    with files_of_at_most_a_page():
        supervisor.join_handlers(member)[CallerConnected](CallerConnected())
        supervisor._loop.call_after(0.0, supervisor._loop.stop)
        supervisor._loop.run()
    message, _ = receive(caller)
    assert (type(message), message.wire) == (Refused, 5)
    assert message.sentence.startswith("no shared memory for a client segment of ")
    assert not member.is_open
    assert not supervisor._failed.done()
    caller.close()
    supervisor._control.close()
    supervisor._front_ends.close()


def test_a_front_end_that_joins_while_the_server_stops_is_sent_that() -> None:
    """It answered that the server is ready, and kept its connections."""
    supervisor = Supervisor(OPTIONS, {}, {}, Notifier.take({}, os.getpid()), {}, Machine((0,)))
    loop, star = supervisor._loop, supervisor._star
    star.counter_memory.make(star.take_owner(), has_windows=False)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for each in (ours, theirs):
        each.setblocking(False)
    member, front_end = Member(loop, Channel(ours), 1, star.acknowledgements), Channel(theirs)
    received = list[type[Message]]()

    def read() -> None:
        message, seq = receive(front_end)
        received.append(type(message))
        for fd in descriptors(message):
            os.close(fd)
        front_end.acknowledge(seq)
        if isinstance(message, ModelsKnown):
            loop.stop()

    loop.on_readable(theirs.fileno(), read)
    loop.start(supervisor._stop())
    supervisor.join_handlers(member)[FrontEndConnected](FrontEndConnected())
    member.start()
    loop.run()
    assert received[0] is ClientWelcomed
    assert received[-3:] == [ServerStopping, ConnectionsEnding, ModelsKnown]
    front_end.close()
    member.hang_up()
    loop.call_after(0.0, loop.stop)
    loop.run()
    supervisor._control.close()
    supervisor._front_ends.close()
