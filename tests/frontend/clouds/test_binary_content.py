"""Binary tensors whose JSON's length is told by the content type, in and out."""

import pytest

from shoal.errors import InvalidArgumentError
from shoal.frontend.call import HandlerCall
from shoal.frontend.clouds.binary_content import answered_by_content_type
from shoal.frontend.response import Response
from shoal.frontend.state import ServerState

MIME = "application/x+json;size="
PLAIN = Response(200, (("Content-Type", "application/json"),), (b"{}",))
GZIP = ("Content-Encoding", "gzip")
BINARY = Response(
    200, (("Content-Type", "application/octet-stream"), ("Inference-Header-Content-Length", "12"), GZIP), (b"...",)
)


def asked(headers: dict[str, str], answer: Response = PLAIN) -> tuple[dict[str, str], Response]:
    """The headers that the handler saw, and what became of its answer."""
    seen: dict[str, str] = {}

    def handler(call: HandlerCall) -> Response:
        seen.update(call.headers)
        return answer

    call = HandlerCall(ServerState(), None, headers, memoryview(b""), "m", None, "")
    return seen, answered_by_content_type(handler, MIME)(call)


@pytest.mark.parametrize(
    ("headers", "length"),
    [
        ({}, None),
        ({"content-type": "application/json"}, None),
        ({"content-type": "application/x+json"}, None),
        ({"content-type": MIME + "146"}, "146"),
        ({"content-type": MIME + "0"}, "0"),
        ({"content-type": MIME}, ""),  # which is refused where the length is read
        # Triton's own header means nothing to these endpoints.
        ({"inference-header-content-length": "7"}, None),
        ({"inference-header-content-length": "7", "content-type": MIME + "8"}, "8"),
    ],
)
def test_requests(headers: dict[str, str], length: str | None) -> None:
    seen, response = asked(headers)
    assert seen.get("inference-header-content-length") == length
    assert response is PLAIN


def test_what_stands_before_the_content_type() -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        asked({"content-type": f"text/plain,{MIME}1"})
    assert str(refusal.value) == (f"expect MIME type for binary data starts with '{MIME}', got: text/plain,{MIME}1")


def test_responses() -> None:
    _, response = asked({}, BINARY)
    assert response == BINARY._replace(headers=(("Content-Type", MIME + "12"), GZIP))
