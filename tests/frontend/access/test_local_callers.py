"""frontend/access/authorisation.py: who counts as a caller on this machine."""

import pytest

from shoal.frontend.access.authorisation import is_local, may_administer
from shoal.frontend.state import ServerState


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_this_machine(address: str) -> None:
    assert is_local(address, {"host": "anything", "user-agent": "curl"})


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "192.0.2.2", "fd00::2", "::ffff:10.0.0.1", "0.0.0.0", "", "localhost", "127.0.0.1:80"]
)
def test_whatever_else_is_not(address: str) -> None:
    assert not is_local(address, {})


@pytest.mark.parametrize("name", ["forwarded", "x-forwarded-for", "via", "origin"])
def test_a_proxy_is_no_local_caller(name: str) -> None:
    assert not is_local("127.0.0.1", {name: ""})


def test_others_are_let_in_where_the_operator_says_so() -> None:
    assert may_administer(ServerState(), "127.0.0.1", {})
    assert not may_administer(ServerState(), "192.0.2.1", {})
    assert may_administer(ServerState(allow_remote_admin=True), "192.0.2.1", {"via": "1.1 proxy"})


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1:8000", "[::1]:8000", "localhost"])
def test_the_server_s_own_page_is_this_machine_s(host: str) -> None:
    assert is_local("127.0.0.1", {"origin": f"http://{host}", "host": host})


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost:3000", "localhost:8000"),  # a page of another program here
        ("http://evil.example", "localhost:8000"),
        ("http://evil.example:8000", "evil.example:8000"),  # whose name its owner has let mean this machine
        ("http://localhost.evil.example:8000", "localhost.evil.example:8000"),
        ("http://127.0.0.1.evil.example:8000", "127.0.0.1.evil.example:8000"),
        ("null", "localhost:8000"),
        ("", ""),
    ],
)
def test_a_page_from_elsewhere_is_not(origin: str, host: str) -> None:
    assert not is_local("127.0.0.1", {"origin": origin, "host": host})
