"""The time that guests have, after a batcher's death, to send its successor what they hold; and the file of guests'
socket."""

import os
import socket
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import pytest

from shoal.control import Listener
from shoal.supervisor.processes.guests import RESEND_S, Guests
from tests.supervisor.star_rig import StarRig


def test_guests_have_half_a_second_from_when_a_successor_serves(rig: StarRig) -> None:
    guests = Guests(rig.star, *cast(Any, (None, None)))
    rig.client_a.is_guest = True
    for _ in range(2):  # the first one dies, too, before that time is over
        rig.star.leave_batcher(rig.batcher.member)
        rig.batcher = rig.start()
        rig.star.join_batcher(rig.batcher.member)
        rig.loop.start(guests.disconnect_late(rig.batcher.member, rig.star.introduce()))
        rig.clock.pass_time(1.0)  # it does not serve yet
        rig.acknowledge(rig.batcher)
        rig.clock.pass_time(RESEND_S - 0.1)
    assert rig.a.member.is_open
    rig.clock.pass_time(0.2)
    assert not rig.a.member.is_open
    assert rig.b.member.is_open


@pytest.mark.parametrize("is_inherited", [True, False], ids=["inherited", "its own"])
def test_the_socket_s_file_stays_where_the_other_server_of_an_upgrade_listens(
    rig: StarRig, tmp_path: Path, is_inherited: bool
) -> None:
    """A new server that ends before it has taken over leaves the file of the socket that it inherited, on which the old
    server listens, and removes the file of a socket of its own."""
    path = tmp_path / "sock"
    guests = Guests(rig.star, *cast(Any, (None, None)))
    with ExitStack() as opened:
        if is_inherited:
            old = opened.enter_context(closing(Listener.at(str(path))))
            guests.open(str(path), socket.socket(fileno=os.dup(old.fileno())))
        else:
            guests.open(str(path))
        guests.close(has_sibling=True)
        assert path.exists() is is_inherited


def test_the_socket_s_file_goes_with_a_server_that_is_no_part_of_an_upgrade(rig: StarRig, tmp_path: Path) -> None:
    guests = Guests(rig.star, *cast(Any, (None, None)))
    guests.open(str(tmp_path / "sock"))
    guests.close()
    assert not (tmp_path / "sock").exists()


def test_a_guest_that_the_other_server_of_an_upgrade_has_accepted_is_no_failure(
    rig: StarRig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning said that the client cannot connect, and this server accepted none for half a second."""
    path = str(tmp_path / "sock")
    guests = Guests(rig.star, *cast(Any, (None, None)))
    with closing(Listener.at(path)) as old, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as guest:
        guests.open(path, socket.socket(fileno=os.dup(old.fileno())))
        guest.connect(path)
        accepted = old.accept(is_guests=True)
        assert accepted is not None
        accepted[0].close()
        guests._accept()
        guests.close(has_sibling=True)
    assert "cannot connect" not in caplog.text
