"""shoal/errors.py: Triton's codes, and the HTTP status that Triton's http_server.cc gives each."""

import pytest

from shoal import errors
from shoal.errors import ShoalError

TABLE: list[tuple[type[ShoalError], str, int, int, str]] = [
    (errors.UnknownError, "UNKNOWN", 1, 400, "Unknown"),
    (errors.InternalError, "INTERNAL", 2, 500, "Internal"),
    (errors.NotFoundError, "NOT_FOUND", 3, 404, "Not found"),
    (errors.InvalidArgumentError, "INVALID_ARG", 4, 400, "Invalid argument"),
    (errors.UnavailableError, "UNAVAILABLE", 5, 503, "Unavailable"),
    (errors.UnsupportedError, "UNSUPPORTED", 6, 501, "Unsupported"),
    (errors.AlreadyExistsError, "ALREADY_EXISTS", 7, 400, "Already exists"),
    (errors.CancelledError, "CANCELLED", 8, 400, "Cancelled"),
]
EACH = pytest.mark.parametrize(("kind", "code", "wire", "http_status", "words"), TABLE, ids=[row[1] for row in TABLE])


@EACH
def test_an_error_knows_its_code_and_status(
    kind: type[ShoalError], code: str, wire: int, http_status: int, words: str
) -> None:
    error = kind("no such thing")
    assert isinstance(error, ShoalError)
    assert (error.code, error.wire, error.http_status) == (code, wire, http_status)
    assert str(error) == "no such thing"


@EACH
def test_an_error_crosses_a_ring_as_its_number(
    kind: type[ShoalError], code: str, wire: int, http_status: int, words: str
) -> None:
    error = errors.from_wire(wire, "a sentence with {braces} and % signs")
    assert type(error) is kind
    assert str(error) == "a sentence with {braces} and % signs"


@EACH
def test_the_repository_index_prints_the_code_in_words(
    kind: type[ShoalError], code: str, wire: int, http_status: int, words: str
) -> None:
    assert errors.index_reason(kind("failed to load 'simple'")) == f"{words}: failed to load 'simple'"


@pytest.mark.parametrize("wire", [0, 9, -1, 2**64 - 1])
def test_an_unknown_number_is_an_internal_error(wire: int) -> None:
    error = errors.from_wire(wire, "what")
    assert type(error) is errors.InternalError
    assert str(error) == "what"


def test_every_class_is_in_the_table() -> None:
    assert set(ShoalError.__subclasses__()) == {row[0] for row in TABLE}
