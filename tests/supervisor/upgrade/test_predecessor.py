"""predecessor.py: what a new server sends an old one, which may be of an earlier version."""

import json
import socket
from contextlib import suppress
from typing import Any

import pytest

from shoal import control
from shoal.control import Channel
from shoal.messages.message import Kinds, Message
from shoal.messages.to_client import RegionUnregistered
from shoal.messages.upgrade import ModelsCarried
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.upgrade import predecessor as predecessor_module
from shoal.supervisor.upgrade.launch import VARIABLE
from shoal.supervisor.upgrade.predecessor import Predecessor
from tests.supervisor.clock import ClockLoop

UNREGISTERED = RegionUnregistered("system", "r")


def receive_all(channel: Channel) -> list[Message]:
    received = list[Message]()
    with suppress(BlockingIOError):
        while True:
            received.append(channel.receive(Kinds(RegionUnregistered))[0])
    return received


@pytest.mark.parametrize(("facts", "sent"), [({}, []), ({"takes_regions": True}, [UNREGISTERED])])
def test_clients_changes_of_regions_are_sent_only_to_an_old_server_that_knows_them(
    clock: ClockLoop, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], sent: list[RegionUnregistered]
) -> None:
    """A version before these messages ends the upgrade at one that it does not know."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        Channel(theirs).send(ModelsCarried(None, [], [], [], None, [], 0))
        monkeypatch.setattr(control, "join", lambda _message, _address: Channel(ours))
        monkeypatch.setattr(predecessor_module, "die_with_parent", lambda _pid: None)
        loop = EventLoop(clock)
        new = Predecessor.take({VARIABLE: json.dumps({"address": "@old", "pid": 1, "names": [], **facts})})
        assert new is not None
        new.watch(loop, lambda _message: loop.future(), loop.future(), lambda: False)
        new.send_region(UNREGISTERED)
        loop.forget(ours.fileno())
        theirs.setblocking(False)
        assert receive_all(Channel(theirs)) == sent
