"""shoal/reasons.py: a number in a record becomes the sentence a client reads."""

import pytest

from shoal import errors
from shoal.errors import ShoalError
from shoal.reasons import Reason, error_for

SENTENCES: list[tuple[int, type[ShoalError], str]] = [
    (1, errors.UnavailableError, "[request id: r7] Exceeds maximum queue size"),
    (
        2,
        errors.UnavailableError,
        "[request id: r7] Server is stopping, scheduler for model has stopped accepting new inference requests",
    ),
    (3, errors.UnavailableError, "Request for unknown model: 'simple' version 3 is not at ready state"),
    (4, errors.CancelledError, "[request id: r7] Request was cancelled"),
    (
        5,
        errors.InternalError,
        "[request id: r7] Failed to process the request(s) for model 'simple': the model instance died while "
        "executing them. The server's log says how; the instance is being restarted",
    ),
    (
        6,
        errors.InternalError,
        "[request id: r7] Failed to process the request(s) for model 'simple': "
        "the model instance sent an answer that cannot be read",
    ),
    (7, errors.UnavailableError, "[request id: r7] Request timeout expired"),
    (
        8,
        errors.UnavailableError,
        "[request id: r7] the instances of model 'simple' have no shared memory left for results: clients read "
        "slower than it answers. Read faster, or raise --shm-worker-slab-mib",
    ),
]


@pytest.mark.parametrize(("reason", "kind", "sentence"), SENTENCES, ids=[str(row[0]) for row in SENTENCES])
def test_each_reason_has_its_sentence(reason: int, kind: type[ShoalError], sentence: str) -> None:
    error = error_for(reason, model="simple", version=3, request_id="r7")
    assert type(error) is kind
    assert str(error) == sentence


def test_every_reason_is_tried_above() -> None:
    assert {row[0] for row in SENTENCES} == {reason.value for reason in Reason} - {0}


def test_a_request_without_an_id_is_named_as_triton_names_it() -> None:
    error = error_for(1, model="simple", version=3, request_id="")
    assert str(error) == "[request id: <id_unknown>] Exceeds maximum queue size"


def test_names_are_not_read_as_formats() -> None:
    error = error_for(5, model="{id}{0}", version=1, request_id="{model}%s")
    assert str(error).startswith(
        "[request id: {model}%s] Failed to process the request(s) for model '{id}{0}': the model instance died"
    )


@pytest.mark.parametrize("reason", [0, 9, 2**64 - 1])
def test_an_unknown_reason_is_an_internal_error_that_says_its_number(reason: int) -> None:
    error = error_for(reason, model="{simple}", version=3, request_id="r7")
    assert type(error) is errors.InternalError
    assert str(error) == f"the batcher refused the request for a reason this front end does not know: {reason}"
