"""shoal/reasons.py: a number in a record becomes the sentence a client reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import errors
from shoal.errors import ShoalError
from shoal.reasons import (
    MAX_FIGURE,
    DeathDetail,
    ModelGoneError,
    PoisonRefusedError,
    QueueFullError,
    Reason,
    WorkerDiedError,
    describe_exit,
    describe_time,
    error_for,
    pack_sizes,
    pack_times,
    unpack_sizes,
)

#: pid 4242, instance 3 of the second group.
WHO = 4242 << 42 | 1 << 34 | 3 << 26
#: Signal 11; 8100 and 8192 MiB, as 9 bits shifted by 4 and by 5; 1500 ms; 2.5 s and 0.2 s in us.
DETAILS = {
    9: WHO | (506 << 4 | 4) << 13 | 256 << 4 | 5,
    10: WHO | 1500,
    13: 2_500_000 << 32 | 200_000,
    18: 3 << 42 | 59_500_000,
}
DETAIL = WHO | 0xFFF5
_NOT_HEALTHY = (
    "[request id: r7] Failed to process the request(s) for model instance 'cpu_3', message: Stub process 'cpu_3' is "
    "not healthy. The worker of model 'simple' (pid 4242) "
)
_RESTARTED = "The server's log says more; the instance is being restarted"

SENTENCES: list[tuple[int, type[ShoalError], str]] = [
    (1, QueueFullError, "[request id: r7] Exceeds maximum queue size"),
    (
        2,
        errors.UnavailableError,
        "[request id: r7] Server is stopping, scheduler for model has stopped accepting new inference requests",
    ),
    (3, ModelGoneError, "Request for unknown model: 'simple' version 3 is not at ready state"),
    (4, errors.CancelledError, "[request id: r7] Request was cancelled"),
    (
        5,
        WorkerDiedError,
        f"{_NOT_HEALTHY}was killed by signal 11 (SIGSEGV) while executing them. {_RESTARTED}",
    ),
    (
        6,
        errors.InternalError,
        "[request id: r7] Failed to process the request(s) for model 'simple': "
        "the model instance sent an answer that cannot be read",
    ),
    (7, errors.UnavailableError, "Request timeout expired"),
    (
        8,
        errors.UnavailableError,
        "[request id: r7] the instances of model 'simple' have no shared memory left for results: clients read "
        "slower than it answers. Read faster, or raise --shm-worker-slab-mib",
    ),
    (
        9,
        WorkerDiedError,
        f"{_NOT_HEALTHY}was killed by the kernel's OOM killer while executing them: its memory had peaked at 7.9 GiB, "
        f"the limit is 8.0 GiB. {_RESTARTED}",
    ),
    (
        10,
        WorkerDiedError,
        f"{_NOT_HEALTHY}was ended because the execution took longer than the limit of 1500 ms. If the model needs it, "
        f"raise the parameter 'execution_timeout_ms', or --model-execution-timeout-secs. {_RESTARTED}",
    ),
    (
        11,
        errors.UnavailableError,
        "Model 'simple' version 3 is unavailable: all its instances died again and again. The server's log says how; "
        "they are tried again from time to time",
    ),
    (
        12,
        errors.UnavailableError,
        "[request id: r7] another batcher has taken the place of the one that passed on the answers of model 'simple' "
        "to this request, which may have been executed in part. Try again",
    ),
    (
        13,
        errors.UnavailableError,
        "[request id: r7] model 'simple' is overloaded: it needs about 2.5 s to answer this request, which has 200 ms "
        "left",
    ),
    (
        14,
        errors.InvalidArgumentError,
        "inference request for sequence call-7 to model 'simple' must specify the START flag on the first request of "
        "the sequence",
    ),
    (
        15,
        errors.InvalidArgumentError,
        "inference request to model 'simple' must specify a non-zero or non-empty correlation ID",
    ),
    (16, errors.UnavailableError, "timeout of the corresponding sequence has been expired"),
    (
        17,
        errors.UnavailableError,
        "[request id: r7] the sequence call-7 of model 'simple' has ended with the instance that had its state. Begin "
        "it again with the START flag",
    ),
    (
        18,
        PoisonRefusedError,
        "[request id: r7] model 'simple' version 3 does not execute this request: equal ones have ended 3 of its "
        "instances. It is refused for another 59.5 s. The server's log has its shapes; change the request, or mend the "
        "model and load it again",
    ),
    (
        19,
        errors.InvalidArgumentError,
        "[request id: r7] model 'simple' batches sequences, whose requests cannot be 'deterministic': leave that "
        "parameter out",
    ),
    (
        20,
        errors.UnavailableError,
        "[request id: r7] no memory is left for a request to ensemble 'simple': requests to ensembles under way, and "
        "responses of ensembles that clients hold, take all that there is for them together. Try again; a client in "
        "shared memory that keeps such results should copy them",
    ),
]


@pytest.mark.parametrize(("reason", "kind", "sentence"), SENTENCES, ids=[str(row[0]) for row in SENTENCES])
def test_each_reason_has_its_sentence(reason: int, kind: type[ShoalError], sentence: str) -> None:
    detail = DETAILS.get(reason, DETAIL)
    error = error_for(
        reason, detail, model="simple", version=3, request_id="r7", groups=["gpu", "cpu"], correlation_id="call-7"
    )
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
        "[request id: {model}%s] Failed to process the request(s) for model instance '{pid}_0', message: Stub process "
        "'{pid}_0' is not healthy. The worker of model '{id}{0}' (pid 0) exited"
    )


@pytest.mark.parametrize("reason", [0, 99, 2**64 - 1])
def test_an_unknown_reason_is_an_internal_error_that_says_its_number(reason: int) -> None:
    error = error_for(reason, model="{simple}", version=3, request_id="r7")
    assert type(error) is errors.InternalError
    assert str(error) == f"the batcher refused the request for a reason this front end does not know: {reason}"


@given(st.integers(0, 2**22 - 1), st.integers(0, 255), st.integers(0, 255), st.integers(-64, 255))
def test_a_death_fits_into_a_word(pid: int, group: int, number: int, code: int) -> None:
    word = DeathDetail(pid, group, number, code & 0xFFFF).pack()
    assert 0 <= word < 2**64
    read = DeathDetail.unpack(word)
    assert (read.pid, read.group, read.number, read.code) == (pid, group, number, code)


@given(st.integers(0, 17 << 20), st.integers(0, 17 << 20))
def test_two_sizes_fit_into_a_figure_to_three_digits(first: int, second: int) -> None:
    figure = pack_sizes(first, second)
    assert 0 <= figure <= MAX_FIGURE
    for said, meant in zip(unpack_sizes(figure), (first, second), strict=True):
        assert min(meant, 511 << 15) * 0.996 <= said <= meant


@given(st.sampled_from([5, 9, 10]), st.integers(0, 2**64 - 1))
def test_any_word_can_be_read(reason: int, word: int) -> None:
    assert "model instance '" in str(error_for(reason, word, model="m", version=1, request_id=""))


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


@pytest.mark.parametrize(
    ("needed_ns", "left_ns", "seconds"), [(250_000_000, 200_000_000, 1), (10**10, 0, 10), (10**30, 10**30, 1)]
)
def test_who_would_be_late_is_told_when_to_try_again(needed_ns: int, left_ns: int, seconds: int) -> None:
    detail = pack_times(needed_ns, left_ns)
    assert detail < 1 << 64
    assert error_for(Reason.TOO_LATE, detail, model="m", version=1, request_id="").retry_after_s == seconds


@pytest.mark.parametrize(
    ("time_s", "text"), [(0.00025, "0.25 ms"), (0.0099, "9.9 ms"), (0.212, "212 ms"), (7.94, "7.9 s")]
)
def test_times_in_words(time_s: float, text: str) -> None:
    assert describe_time(time_s) == text
