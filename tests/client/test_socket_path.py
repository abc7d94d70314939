"""Where the server's socket is, as both sides work it out."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.client import socket_path
from shoal.client.socket_path import client_paths, directories, is_private, other_paths, server_path, sweep
from shoal.client.sync import connect
from shoal.control import Listener, connect_guest
from shoal.errors import ConnectionLostError
from shoal.messages.from_client import GuestConnected
from tests.messages import receive


@pytest.fixture
def runtime(tmp_path: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


def test_the_places_in_order() -> None:
    assert directories({}, 7) == [Path("/run/shoal"), Path("/tmp/shoal-7")]
    assert directories({"XDG_RUNTIME_DIR": "/run/user/7"}, 7)[0] == Path("/run/user/7/shoal")


def test_server_and_client_agree(runtime: dict[str, str], tmp_path: Path) -> None:
    path = server_path(runtime, 8000)
    assert path == str(tmp_path / "shoal" / "8000.sock")
    assert os.stat(tmp_path / "shoal").st_mode & 0o777 == 0o700
    assert client_paths(runtime)[0] == path
    assert client_paths({**runtime, "SHOAL_CLIENT_SOCKET": "/x"}) == ["/x"]


def test_servers_at_other_ports_are_found(runtime: dict[str, str], tmp_path: Path) -> None:
    server_path(runtime, 8000)
    for name in ("9000.sock", "8000.sock", "notes"):
        (tmp_path / "shoal" / name).touch()
    assert other_paths(runtime)[:1] == [str(tmp_path / "shoal" / "9000.sock")]
    assert other_paths({**runtime, "SHOAL_CLIENT_SOCKET": str(tmp_path / "shoal" / "1.sock")}) == []


def test_the_error_without_a_server_names_others(
    runtime: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_path, "directories", lambda _environ, _uid: [tmp_path / "shoal"])
    monkeypatch.delenv("SHOAL_CLIENT_SOCKET", raising=False)
    server_path(runtime, 8000)
    (tmp_path / "shoal" / "9000.sock").touch()
    with pytest.raises(ConnectionLostError, match=r"8000\.sock: .*give the path of another one: .*/shoal/9000\.sock$"):
        connect(None)


def test_a_directory_that_others_can_write_to_is_passed_over(
    runtime: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    monkeypatch.setattr(socket_path, "directories", lambda _environ, _uid: [tmp_path / "shoal", other])
    (tmp_path / "shoal").mkdir()
    (tmp_path / "shoal").chmod(0o777)
    assert not is_private(tmp_path / "shoal", os.geteuid())
    assert server_path(runtime, 1) == str(other / "1.sock")
    other.rmdir()
    other.symlink_to("/")
    with pytest.raises(PermissionError, match="Give --client-socket"):
        server_path(runtime, 1)


def test_what_killed_servers_left_is_swept(tmp_path: Path) -> None:
    left, living, file = tmp_path / "1.sock", tmp_path / "2.sock", tmp_path / "3.sock"
    Listener.at(str(left)).close()
    listener = Listener.at(str(living))
    file.write_text("not a socket")
    sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == [living, file]
    with pytest.raises(FileExistsError, match="another server listens there"):
        Listener.at(str(living))
    with pytest.raises(FileExistsError, match="not a socket"):
        Listener.at(str(file))
    listener.close()


def test_a_guest_is_known_by_its_user(tmp_path: Path) -> None:
    listener = Listener.at(str(tmp_path / "sock"))
    assert os.stat(tmp_path / "sock").st_mode & 0o777 == 0o600
    with connect_guest(str(tmp_path / "sock"), time.monotonic() + 60):
        accepted = listener.accept(is_guests=True)
        assert accepted is not None
        channel, pid = accepted
        assert pid == os.getpid()
        channel.setblocking(True)
        assert receive(channel) == (GuestConnected(), 0)
        channel.close()
    listener.close()


def test_descriptors_of_a_message_that_is_cut_short_are_closed(
    tmp_path: Path, num_descriptors: Callable[[], int]
) -> None:
    listener = Listener.at(str(tmp_path / "sock"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender:
        sender.connect(str(tmp_path / "sock"))
        accepted = listener.accept(is_guests=True)
        assert accepted is not None
        channel, _ = accepted
        channel.setblocking(True)
        before = num_descriptors()
        socket.send_fds(sender, [b"\x00\x80"], [0] * 20)
        with pytest.raises(EOFError, match="cut short"):
            receive(channel)
        assert num_descriptors() == before
        channel.close()
    listener.close()
