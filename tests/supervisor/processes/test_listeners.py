"""Sockets that are bound, not listening, and what is said where that does not work."""

import dataclasses
import errno
import fcntl
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from shoal.options import ServerOptions
from shoal.supervisor.processes.listeners import address_of, bind, passed_sockets, remove
from tests.certificates import Certificates, make_certificates
from tests.supervisor.star_rig import OPTIONS

FREE = dataclasses.replace(OPTIONS, http_port=0, grpc_port=0, metrics_port=0)
NONE = dataclasses.replace(FREE, allow_http=False, allow_grpc=False, allow_metrics=False)


def only(service: str, **flags: int) -> ServerOptions:
    """Options for one endpoint; `flags` have its name where theirs have `SERVICE`."""
    changes: dict[str, Any] = {name.replace("SERVICE", service): value for name, value in flags.items()}
    return dataclasses.replace(NONE, **{f"allow_{service}": True, **changes})


def test_each_endpoint_has_a_socket_that_refuses_connections() -> None:
    listeners = bind(FREE)
    assert list(listeners) == ["http", "grpc", "metrics"]
    for listener in listeners.values():
        with listener, pytest.raises(ConnectionRefusedError):
            socket.create_connection(listener.getsockname())


def test_sockets_that_systemd_has_passed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    first = fcntl.fcntl(listening[0], fcntl.F_DUPFD, 900)  # three in a row that nothing else has, and one is no socket
    os.dup2(listening[1].fileno(), first + 2)
    reader, writer = os.pipe()
    os.dup2(reader, first + 1)
    monkeypatch.setattr("shoal.supervisor.processes.listeners.FIRST_PASSED_FD", first)
    variables = {"LISTEN_PID": "77", "LISTEN_FDS": "3"}
    assert passed_sockets(variables, 78) == []
    assert passed_sockets({"LISTEN_PID": "77", "LISTEN_FDS": "many"}, 77) == []
    found = passed_sockets(variables, 77)
    assert [each.fileno() for each in found] == [first, first + 2]
    port = listening[0].getsockname()[1]
    listeners = bind(only("http", SERVICE_port=port), found)
    assert listeners["http"].getsockname()[1] == port
    with socket.create_connection(("127.0.0.1", port)):  # it waits, though no model has loaded
        assert "is for none of the server's endpoints" in caplog.text
    for each in (*listeners.values(), *found, *listening):
        each.close()
    for fd in (reader, writer, first + 1):
        os.close(fd)


@pytest.mark.parametrize("service", ["http", "grpc"])
def test_a_port_in_use_is_named_with_its_flag(service: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            OSError, match=f"^cannot listen on 127.0.0.1:{port}: .* Choose another --{service}-port or "
        ):
            bind(only(service, SERVICE_port=port))


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EADDRNOTAVAIL, "Choose another --grpc-address: no network interface of this machine, or container, has"),
        (errno.EACCES, "Choose a --grpc-port from 1024 on: lower ones are for root"),
        (errno.EADDRINUSE, "Choose another --grpc-port or --grpc-address, or stop what listens there"),
    ],
)
def test_what_to_do_follows_from_the_error(number: int, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(socket.socket):
        def bind(self, _address: object) -> None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(OSError, match=f"^cannot listen on 127.0.0.1:0: {os.strerror(number)}. {remedy}"):
        bind(only("grpc"))


@pytest.mark.parametrize("service", ["http", "grpc"])
def test_two_servers_share_a_port_where_both_are_told_to(service: str) -> None:
    with bind(only(service, reuse_SERVICE_port=True))[service] as one:
        one.listen()
        port = one.getsockname()[1]
        with bind(only(service, reuse_SERVICE_port=True, SERVICE_port=port))[service] as other:
            other.listen()
        with pytest.raises(OSError, match="Address already in use"):
            bind(only(service, SERVICE_port=port))


def with_tls(certificates: Certificates, **files: Path) -> ServerOptions:
    """Options for gRPC with mutual TLS and these files, but for `files`."""
    server_cert, server_key, root = (
        str(files.get(name, getattr(certificates, name))) for name in ("server_cert", "server_key", "root")
    )
    return dataclasses.replace(
        only("grpc", grpc_use_ssl_mutual=True),
        grpc_server_cert=server_cert,
        grpc_server_key=server_key,
        grpc_root_cert=root,
    )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_files_for_tls_are_tried_before_anything_is_started(certificates: Certificates, tmp_path: Path) -> None:
    bind(with_tls(certificates))["grpc"].close()
    bind(dataclasses.replace(with_tls(certificates, root=Path()), grpc_root_cert="", grpc_use_ssl=True))["grpc"].close()
    missing = with_tls(certificates, server_key=tmp_path / "key.pem")
    with pytest.raises(OSError, match=f"^cannot read '{tmp_path}/key.pem' for --grpc-server-key: No such file"):
        bind(missing)
    bind(dataclasses.replace(missing, grpc_use_ssl_mutual=False))["grpc"].close()  # nobody reads them
    assert bind(dataclasses.replace(missing, allow_grpc=False)) == {}


@pytest.mark.parametrize(
    ("file", "wrong", "sentence"),
    [
        ("server_key", "client_key", "no TLS with --grpc-server-cert=.* and --grpc-server-key=.*key values mismatch"),
        ("server_cert", "server_key", "no TLS with --grpc-server-cert=.* and --grpc-server-key=.*: "),
        ("root", "server_key", "no TLS with --grpc-root-cert=.*: .*no certificate or crl found"),
    ],
)  # fmt: skip
def test_files_for_tls_that_are_no_use_are_named(
    certificates: Certificates, file: str, wrong: str, sentence: str
) -> None:
    with pytest.raises(OSError, match=f"^{sentence}.* Files are in PEM format and without a password$"):
        bind(with_tls(certificates, **{file: getattr(certificates, wrong)}))


def unix_options(path: Path) -> ServerOptions:
    return dataclasses.replace(
        OPTIONS,
        allow_http=False,
        allow_grpc=False,
        allow_metrics=False,
        allow_torchserve=True,
        allow_torchserve_grpc=False,
        torchserve_inference_address=f"unix:{path}",
        torchserve_inference_port=0,
        torchserve_management_port=0,
        torchserve_metrics_port=0,
    )


def test_a_unix_socket_that_is_served_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(path))
        served.listen()
        with pytest.raises(OSError, match=f"cannot listen on unix:{path}: Address already in use"):
            bind(unix_options(path))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_a_unix_socket_that_is_left_is_replaced_and_another_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    listeners = bind(unix_options(path))
    assert address_of(listeners["torchserve-inference"]) == (f"unix:{path}", 0)
    for each in listeners.values():
        each.close()
    remove([str(path), str(tmp_path / "gone")])
    path.write_text("mine")
    with pytest.raises(OSError, match="Choose another --torchserve-inference-address"):
        bind(unix_options(path))
    assert path.read_text() == "mine"


def test_the_file_of_a_socket_stays_where_another_server_listens_on_it_and_only_there(tmp_path: Path) -> None:
    """After an upgrade the new server may listen elsewhere: the old server's files then go with the old server."""
    served, left = tmp_path / "served.sock", tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as new, socket.socket(socket.AF_UNIX) as closed:
        new.bind(str(served))
        new.listen()
        closed.bind(str(left))
        closed.close()
        remove([str(served), str(left)], keeps_served=True)
        assert (served.exists(), left.exists()) == (True, False)
        remove([str(served)])
        assert not served.exists()


@pytest.mark.parametrize("has_moved", [False, True])
def test_an_old_servers_unix_socket_is_kept_where_its_path_is(tmp_path: Path, has_moved: bool) -> None:
    old, new = bind(unix_options(tmp_path / "a.sock")), tmp_path / ("b.sock" if has_moved else "a.sock")
    inherited = {name: socket.socket(fileno=os.dup(each.fileno())) for name, each in old.items()}
    listeners = bind(unix_options(new), inherited=inherited)
    assert address_of(listeners["torchserve-inference"]) == (f"unix:{new}", 0)
    is_kept = listeners["torchserve-inference"] is inherited["torchserve-inference"]
    assert (is_kept, inherited["torchserve-inference"].fileno() == -1) == (not has_moved, has_moved)
    for each in (*old.values(), *listeners.values()):
        each.close()


@pytest.mark.parametrize("has_moved", [False, True])
def test_an_old_servers_port_is_kept_where_its_number_is(has_moved: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as old, socket.create_server(("127.0.0.1", 0)) as other:
        port = (other if has_moved else old).getsockname()[1]
        inherited = {"http": old}
        if has_moved:
            other.close()
        listeners = bind(only("http", SERVICE_port=port), inherited=inherited)
        assert (listeners["http"] is old, listeners["http"].getsockname()[1]) == (not has_moved, port)
        listeners["http"].close()
