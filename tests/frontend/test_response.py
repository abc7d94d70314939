"""frontend/response.py: the two shapes of an answer."""

from shoal.errors import InternalError, UnavailableError, UnsupportedError
from shoal.frontend.response import CLOSE, Response, error_json, error_response, json_response


def test_json_is_compact_and_says_its_type() -> None:
    assert json_response(200, {"a": [1, "é"]}) == Response(
        200, (("Content-Type", "application/json"),), (b'{"a":[1,"\xc3\xa9"]}',)
    )


def test_an_error_is_one_member_and_the_status_of_its_class() -> None:
    response = error_response(UnavailableError('Server "x" exiting'))
    assert response.status == 503
    assert response.chunks == (b'{"error":"Server \\"x\\" exiting"}',)
    assert error_response(InternalError("")).status == 500
    assert error_response(UnsupportedError("")).chunks == (b'{"error":""}',)


def test_further_headers_follow_the_content_type() -> None:
    response = error_json(405, "Method Not Allowed", (("Allow", "GET"), *CLOSE))
    assert response.headers == (("Content-Type", "application/json"), ("Allow", "GET"), ("Connection", "close"))


def test_a_sentence_that_has_no_utf8_is_escaped() -> None:
    assert error_json(400, "name \udcff").chunks == (b'{"error":"name \\\\udcff"}',)


def test_who_may_try_again_is_told_when() -> None:
    error = UnavailableError("no")
    error.retry_after_s = 3
    assert error_response(error, CLOSE).headers[1:] == (*CLOSE, ("Retry-After", "3"))
