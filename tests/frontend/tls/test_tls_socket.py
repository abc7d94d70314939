"""frontend/tls/tls_socket.py against the standard library's client: handshakes, and bytes both ways."""

import select
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from shoal.frontend.tls.tls_socket import TlsSocket
from shoal.tls import server_context
from tests.certificates import Certificates, make_certificates
from tests.frontend.grpc.connection_pair import plain_ends, tls_ends

DATA = bytes(range(256)) * 2400  # 614,400 bytes
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


class Ends(NamedTuple):
    """A connection whose handshake is complete."""

    ours: TlsSocket
    client: ssl.SSLSocket


@pytest.fixture(params=VERSIONS, ids=lambda version: version.name)
def ends(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Ends]:
    opened = Ends(*tls_ends(certificates, request.param))
    with opened.ours, opened.client:
        yield opened


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def can(ours: TlsSocket, *, send: bool = False) -> None:
    """Wait until the socket can send, or has something to be received."""
    assert any(select.select([] if send else [ours], [ours] if send else [], [], 60))


def receive(ours: TlsSocket, nbytes: int, bufsize: int = 65536) -> bytes:
    received = bytearray()
    while len(received) < nbytes:
        can(ours)
        try:
            received += ours.recv(bufsize)
        except BlockingIOError:
            continue
    return bytes(received)


def read_exactly(client: ssl.SSLSocket, nbytes: int) -> bytes:
    received = bytearray()
    while len(received) < nbytes:
        received += client.recv(nbytes - len(received))
    return bytes(received)


@pytest.mark.parametrize("bufsize", [5, 1000, 65536, 512 * 1024])
def test_all_that_the_client_sends_arrives(ends: Ends, threads: ThreadPoolExecutor, bufsize: int) -> None:
    sent = DATA[: max(bufsize * 20, 1000)]
    sending = threads.submit(ends.client.sendall, sent)
    assert receive(ends.ours, len(sent), bufsize) == sent
    sending.result()


def test_what_is_received_is_spread_over_buffers_in_their_order(ends: Ends, threads: ThreadPoolExecutor) -> None:
    """Records, reads and buffers all end in different places; nothing is received that has no place."""
    sending = threads.submit(ends.client.sendall, DATA)
    arrived = bytearray()
    while len(arrived) < len(DATA):
        memory = bytearray(60_000)
        buffers = [memoryview(memory)[start : start + size] for start, size in ((0, 7), (7, 20_000), (20_007, 39_993))]
        can(ends.ours)
        try:
            arrived += memory[: ends.ours.recvmsg_into(buffers)[0]]
        except BlockingIOError:
            continue
    assert arrived == DATA
    sending.result()


def test_nothing_to_receive(ends: Ends) -> None:
    with pytest.raises(BlockingIOError):
        ends.ours.recv(65536)
    with pytest.raises(BlockingIOError):
        ends.ours.recvmsg_into([memoryview(bytearray(40_000))])


def test_what_the_socket_does_not_take_is_not_counted_as_sent(ends: Ends, threads: ThreadPoolExecutor) -> None:
    """The caller gives the same bytes again, in whatever pieces, as connection.py does; none is sent twice."""
    left, reading = memoryview(DATA * 40), None
    while left:
        try:
            pieces = [left] if reading is None else [left[:9], left[9:50_000], left[50_000:]]
            left = left[ends.ours.sendmsg(pieces) :]
        except BlockingIOError:
            reading = reading or threads.submit(read_exactly, ends.client, 40 * len(DATA))
            can(ends.ours, send=True)
    assert reading is not None, "the socket took more than 24 MB"
    assert reading.result(60) == DATA * 40


def test_a_short_piece_leaves_at_once(ends: Ends) -> None:
    assert ends.ours.send(b"settings") == 8
    assert ends.client.recv(100) == b"settings"
    assert not ends.ours.has_unsent


def test_the_end_of_the_connection_is_told_both_ways(ends: Ends, threads: ThreadPoolExecutor) -> None:
    ends.client.sendall(b"last words")
    unwrapping = threads.submit(ends.client.unwrap)  # close_notify, and waits for ours
    assert receive(ends.ours, 10) == b"last words"
    can(ends.ours)
    assert ends.ours.recv(65536) == b""
    ends.ours.shutdown(socket.SHUT_WR)
    unwrapping.result(60)


def test_a_client_that_hangs_up_without_a_word(ends: Ends) -> None:
    ends.client.close()
    can(ends.ours)
    assert ends.ours.recv(65536) == b""
    assert ends.ours.recvmsg_into([memoryview(bytearray(40_000))])[0] == 0


def test_bytes_that_are_no_record_are_an_error(certificates: Certificates) -> None:
    ours, client = tls_ends(certificates)
    with ours, socket.socket(fileno=client.detach()) as bare:
        bare.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        can(ours)
        with pytest.raises(ssl.SSLError):
            ours.recv(65536)


class KeyUpdates:
    """Records of TLS 1.3 that only update the client's keys (RFC 8446, section 4.6.3), made by hand: Python's ssl makes
    none."""

    def __init__(self, client: ssl.SSLSocket, secrets: Path) -> None:
        """`secrets` is the log of the client's secrets; the client has sent no data yet."""
        lines = (line.split() for line in secrets.read_text().splitlines())
        self._secret = next(bytes.fromhex(line[2]) for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0")
        suite = client.cipher()
        assert suite is not None
        assert suite[0] == "TLS_AES_256_GCM_SHA384"

    def _derived(self, label: bytes, nbytes: int) -> bytes:
        label = b"tls13 " + label
        info = nbytes.to_bytes(2, "big") + bytes((len(label),)) + label + b"\0"
        return HKDFExpand(hashes.SHA384(), nbytes, info).derive(self._secret)

    def make(self, asks_for_another: int) -> bytes:
        """The next record; with 1, the server must update its keys, too."""
        head, update = b"\x17\3\3\0\x16", b"\x18\0\0\1" + bytes((asks_for_another,)) + b"\x16"
        record = head + AESGCM(self._derived(b"key", 32)).encrypt(self._derived(b"iv", 12), update, head)
        self._secret = self._derived(b"traffic upd", 48)
        return record


@pytest.mark.parametrize("asks_for_another", [0, 1])
def test_a_client_may_update_its_keys_but_not_all_the_time(
    certificates: Certificates, threads: ThreadPoolExecutor, tmp_path: Path, asks_for_another: int
) -> None:
    accepted, client = plain_ends()
    context = client_of(certificates)
    context.keylog_filename = str(tmp_path / "secrets")
    wrapping = threads.submit(partial(context.wrap_socket, client, server_hostname="localhost"))
    with shaken(accepted, server(certificates)) as ours, wrapping.result(60) as wrapped:
        updates = KeyUpdates(wrapped, tmp_path / "secrets")
        with socket.socket(fileno=wrapped.detach()) as bare:
            bare.sendall(b"".join(updates.make(asks_for_another) for _ in range(1000)))  # of 27 bytes each
            can(ours)
            with pytest.raises(BlockingIOError):
                ours.recv(27_000)
            bare.sendall(b"".join(updates.make(asks_for_another) for _ in range(1000)))
            with pytest.raises(ConnectionAbortedError, match="no data"):
                receive(ours, 1)


# --- handshakes ---


def shake(ours: TlsSocket) -> None:
    while not ours.shake_hands():
        can(ours)


def shaken(accepted: socket.socket, context: ssl.SSLContext) -> TlsSocket:
    """The server's end, after its part of a handshake. Raises what the lane sees."""
    ours = TlsSocket(accepted, context, 0.0, "h2")
    try:
        shake(ours)
    except OSError:
        ours.close()
        raise
    return ours


def server(certificates: Certificates, *, must_verify: bool = False) -> ssl.SSLContext:
    root = str(certificates.root) if must_verify else ""
    return server_context(str(certificates.server_cert), str(certificates.server_key), root, must_verify)


def client_of(certificates: Certificates, *protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.root)
    context.set_alpn_protocols(protocols or ("h2",))
    return context


def first_word(context: ssl.SSLContext, client: socket.socket) -> bytes:
    with context.wrap_socket(client, server_hostname="localhost") as wrapped:
        return wrapped.recv(100)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_a_client_must_show_a_certificate_that_the_authority_has_signed(
    certificates: Certificates, threads: ThreadPoolExecutor, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    others = make_certificates(tmp_path)
    shown = {"ours": certificates, "others": others, "none": None}
    outcomes: dict[str, object] = {}
    for name, files in shown.items():
        accepted, client = plain_ends()
        context = client_of(certificates)
        context.maximum_version = version
        if files is not None:
            context.load_cert_chain(files.client_cert, files.client_key)
        hearing = threads.submit(first_word, context, client)
        try:
            with shaken(accepted, server(certificates, must_verify=True)) as ours:
                assert ours.send(b"welcome") == 7
            outcomes[name] = hearing.result(60)
        except ssl.SSLError as error:
            outcomes[name] = error.reason
            with pytest.raises(ssl.SSLError):  # an alert says why, in TLS 1.3 with the first byte
                hearing.result(60)
    refused = {"others": "CERTIFICATE_VERIFY_FAILED", "none": "PEER_DID_NOT_RETURN_A_CERTIFICATE"}
    assert outcomes == {"ours": b"welcome", **refused}


def test_older_versions_and_renegotiation_are_refused(certificates: Certificates) -> None:
    accepted, client = plain_ends()
    random, session, ciphers, compression = bytes(32), b"\0", bytes.fromhex("0004c013c014"), bytes.fromhex("0100")
    hello = b"\3\1" + random + session + ciphers + compression  # TLS 1.0
    client.sendall(b"\x16\3\1" + (len(hello) + 4).to_bytes(2, "big") + b"\1" + len(hello).to_bytes(3, "big") + hello)
    with client, pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        shaken(accepted, server(certificates))
    assert server(certificates).options & ssl.OP_NO_RENEGOTIATION


@pytest.mark.parametrize(
    ("protocols", "accepted"), [(("h2",), True), (("http/1.1", "h2"), True), (("http/1.1",), False)]
)
def test_clients_ask_for_http2(
    certificates: Certificates, threads: ThreadPoolExecutor, protocols: tuple[str, ...], accepted: bool
) -> None:
    theirs, client = plain_ends()
    wrapping = threads.submit(
        partial(client_of(certificates, *protocols).wrap_socket, client, server_hostname="localhost")
    )
    if accepted:
        with shaken(theirs, server(certificates)), wrapping.result(60) as wrapped:
            assert wrapped.selected_alpn_protocol() == "h2"
    else:
        with pytest.raises(ConnectionRefusedError, match="HTTP/2"):
            shaken(theirs, server(certificates))
        wrapping.result(60).close()


@pytest.mark.parametrize(
    "sent", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\xff" * 70_000]
)
def test_bytes_that_are_no_handshake(certificates: Certificates, sent: bytes) -> None:
    accepted, client = plain_ends()
    with client:
        client.sendall(sent)
        with pytest.raises(ssl.SSLError):
            shaken(accepted, server(certificates))


def test_a_client_that_hangs_up_in_its_handshake(certificates: Certificates) -> None:
    for sent in (b"", b"\x16\x03"):
        accepted, client = plain_ends()
        client.sendall(sent)
        client.close()
        ours = TlsSocket(accepted, server(certificates), 0.0)
        with ours, pytest.raises(ConnectionResetError, match="hung up"):
            shake(ours)
        assert ours.has_spoken is bool(sent)


@pytest.mark.parametrize("is_over", [False, True], ids=["goes on", "is over"])
def test_bytes_that_come_with_the_end_of_the_handshake_are_received(
    certificates: Certificates, *, is_over: bool
) -> None:
    """As a client of TLS 1.3 sends its preface: there is no event for them. Here the handshake comes byte by byte."""
    accepted, client = plain_ends()
    ours = TlsSocket(accepted, server(certificates), 0.0)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = client_of(certificates).wrap_bio(incoming, outgoing, server_hostname="localhost")
    is_complete = False
    with ours, client:
        with pytest.raises(ssl.SSLWantReadError):
            theirs.do_handshake()
        for byte in outgoing.read():
            client.sendall(bytes((byte,)))
            can(ours)
            assert not ours.shake_hands()
        while not is_complete:
            incoming.write(client.recv(65536))
            try:
                theirs.do_handshake()
                is_complete = True
            except ssl.SSLWantReadError:
                continue
        theirs.write(b"preface")
        client.sendall(outgoing.read())
        can(ours)
        assert ours.shake_hands()
        assert ours.has_received
        if is_over:
            client.shutdown(socket.SHUT_WR)
            can(ours)
        assert ours.recv(65536) == b"preface"
        assert not ours.has_received
        if is_over:
            assert ours.recv(65536) == b""
