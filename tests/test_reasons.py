"""shoal/reasons.py: a number in a record becomes the sentence a client reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import errors
from shoal.errors import ShoalError
from shoal.reasons import DeathDetail, ModelGoneError, Reason, describe_exit, error_for

#: pid 4242, instance 3 of the second group, signal 11.
DETAIL = 0x00001092_01_03_FFF5

SENTENCES: list[tuple[int, type[ShoalError], str]] = [
    (1, errors.UnavailableError, "[request id: r7] Exceeds maximum queue size"),
    (
        2,
        errors.UnavailableError,
        "[request id: r7] Server is stopping, scheduler for model has stopped accepting new inference requests",
    ),
    (3, ModelGoneError, "Request for unknown model: 'simple' version 3 is not at ready state"),
    (4, errors.CancelledError, "[request id: r7] Request was cancelled"),
    (
        5,
        errors.InternalError,
        "[request id: r7] Failed to process the request(s) for model 'simple': the model instance 'cpu_3' (pid 4242) "
        "was killed by signal 11 (SIGSEGV) while executing them. The server's log says more; the instance is being "
        "restarted",
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
    (
        9,
        errors.InternalError,
        "[request id: r7] Failed to process the request(s) for model 'simple': the system ran out of memory and killed "
        "the model instance 'cpu_3' (pid 4242) while it was executing them. The server's log says more; the instance "
        "is being restarted",
    ),
    (
        10,
        errors.InternalError,
        "[request id: r7] Failed to process the request(s) for model 'simple': the model instance 'cpu_3' (pid 4242) "
        "exceeded the execution limit of the model and was ended. If the model needs longer, raise its parameter "
        "'execution_timeout_ms', or --model-execution-timeout-secs. The server's log says more; the instance is being "
        "restarted",
    ),
    (
        11,
        errors.UnavailableError,
        "[request id: r7] Model 'simple' version 3 is unavailable: all its instances died again and again. The "
        "server's log says how; they are tried again from time to time",
    ),
    (
        12,
        errors.UnavailableError,
        "[request id: r7] another batcher has taken the place of the one that passed on the answers of model 'simple' "
        "to this request, which may have been executed in part. Try again",
    ),
]


@pytest.mark.parametrize(("reason", "kind", "sentence"), SENTENCES, ids=[str(row[0]) for row in SENTENCES])
def test_each_reason_has_its_sentence(reason: int, kind: type[ShoalError], sentence: str) -> None:
    error = error_for(reason, DETAIL, model="simple", version=3, request_id="r7", groups=["gpu", "cpu"])
    assert type(error) is kind
    assert str(error) == sentence


def test_every_reason_is_tried_above() -> None:
    assert {row[0] for row in SENTENCES} == {reason.value for reason in Reason} - {0}


def test_a_request_without_an_id_is_named_as_triton_names_it() -> None:
    error = error_for(1, model="simple", version=3, request_id="")
    assert str(error) == "[request id: <id_unknown>] Exceeds maximum queue size"


def test_names_are_not_read_as_formats() -> None:
    error = error_for(5, model="{id}{0}", version=1, request_id="{model}%s", groups=["{pid}"])
    assert str(error).startswith(
        "[request id: {model}%s] Failed to process the request(s) for model '{id}{0}': the model instance "
        "'{pid}_0' (pid 0)"
    )


@pytest.mark.parametrize("reason", [0, 99, 2**64 - 1])
def test_an_unknown_reason_is_an_internal_error_that_says_its_number(reason: int) -> None:
    error = error_for(reason, model="{simple}", version=3, request_id="r7")
    assert type(error) is errors.InternalError
    assert str(error) == f"the batcher refused the request for a reason this front end does not know: {reason}"


@given(st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 255), st.integers(-64, 255))
def test_a_death_fits_into_a_word(pid: int, group: int, number: int, code: int) -> None:
    word = DeathDetail(pid, group, number, code).pack()
    assert 0 <= word < 2**64
    assert DeathDetail.unpack(word) == (pid, group, number, code)


@given(st.integers(0, 2**64 - 1))
def test_any_word_can_be_read(word: int) -> None:
    assert "model instance '" in str(error_for(5, word, model="m", version=1, request_id=""))


def test_an_instance_of_an_unknown_group_keeps_its_number() -> None:
    assert DeathDetail(1, 2, 3, 0).instance_name(["a", "b"]) == "?_3"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-9, "was killed by signal 9 (SIGKILL)"),
        (-11, "was killed by signal 11 (SIGSEGV)"),
        (-99, "was killed by signal 99 (unknown)"),
    ],
)
def test_ends_are_told_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words
