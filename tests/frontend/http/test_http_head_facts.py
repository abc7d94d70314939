"""What else the lane reads in a head: that its method is HEAD, that its client accepts compression."""

from shoal.frontend.http.http_head import parse_head
from tests.frontend.heads import get, infer


def test_a_head_of_head_is_known_as_such_and_finds_what_get_finds() -> None:
    got, asked = parse_head(get()), parse_head(get().replace(b"GET", b"HEAD"))
    assert got is not None
    assert asked is not None
    assert (got.is_head, asked.is_head, asked.found) == (False, True, got.found)


def test_which_heads_accept_compression() -> None:
    fields = {b"gzip": True, b"br, deflate;q=0.5": True, b"GZIP": True, b"br": False, b"gzip;q=0": False, b"*": False}
    for value, accepts in fields.items():
        head = parse_head(infer(b"Accept-Encoding: " + value))
        assert head is not None
        assert head.accepts_compression is accepts
