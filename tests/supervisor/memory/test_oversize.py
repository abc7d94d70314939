"""Segments for single payloads: the bound, and that a refusal takes nothing."""

import os
from collections.abc import Callable

import pytest

from shoal.errors import InvalidArgumentError, ShoalError, UnavailableError
from shoal.supervisor.memory.oversize import OversizeSegment, OversizeSegments

MIB = 1 << 20
CLIENT, MODEL = 5, 3


def segments(limit_nbytes: int = 4 * MIB, available_nbytes: int = 64 * MIB) -> OversizeSegments:
    return OversizeSegments(limit_nbytes, lambda: available_nbytes)


def let_go(table: OversizeSegments, gone: OversizeSegment) -> None:
    table.remove(gone)
    table.close(gone)


def test_a_segment_is_sealed_against_truncation_and_has_whole_pages() -> None:
    table = segments()
    made = table.create(9, CLIENT, MODEL, MIB + 1)
    assert os.fstat(made.segment_fd).st_size == made.nbytes == 4096 + 4096 + MIB + 4096
    with pytest.raises(PermissionError):
        os.ftruncate(made.segment_fd, 4096)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(made.read_only_fd, b"x", 0)
    let_go(table, made)


def test_segments_are_found_by_whom_they_concern() -> None:
    table = segments()
    request, result = table.create(9, CLIENT, MODEL, 1), table.create(10, 6, 0, 1)
    assert table.find(9, CLIENT) is request
    assert table.find(9, 6) is None  # a worker cannot end what a client asked for
    assert table.find(11, CLIENT) is None
    assert (table.written_by(CLIENT), table.written_by(6), table.written_by(7)) == ([request], [result], [])
    assert table.read_by(MODEL) == []
    assert table.counts == {"oversize_acquired": 2, "oversize_released": 0}
    request.is_mapped = True
    assert (table.read_by(MODEL), table.read_by(MODEL + 1)) == ([request], [])
    assert 9 in table
    table.remove(request)
    assert 9 not in table
    assert (table.find(9, CLIENT), table.read_by(MODEL), table.written_by(CLIENT)) == (None, [], [])
    table.close(request)
    assert table.counts == {"oversize_acquired": 2, "oversize_released": 1}
    let_go(table, result)


@pytest.mark.parametrize(
    ("nbytes", "available_nbytes", "kind", "words"),
    [
        (
            1 << 32,
            64 * MIB,
            InvalidArgumentError,
            "block of shared memory, which has at most 4294963200 bytes. Send",
        ),
        (
            4 * MIB,
            64 * MIB,
            InvalidArgumentError,
            "take 4194304 bytes. Send smaller batches, or raise --shm-oversi",
        ),
        (3 * MIB, 64 * MIB, UnavailableError, "others like it hold 2105344 of the 4194304 bytes that they may take"),
        (MIB, 1000, UnavailableError, "finds 1000 bytes of memory available. Try again, send smaller batches, or give"),
    ],
    ids=["beyond a word", "never", "now", "machine"],
)
def test_a_refusal_says_what_to_do_and_takes_nothing(
    nbytes: int, available_nbytes: int, kind: type[ShoalError], words: str, num_descriptors: Callable[[], int]
) -> None:
    available = [64 * MIB]
    table = OversizeSegments(4 * MIB, lambda: available[0])
    held = table.create(9, CLIENT, MODEL, 2 * MIB)
    available[0] = available_nbytes
    before = num_descriptors()
    with pytest.raises(kind) as refusal:
        table.create(10, CLIENT, MODEL, nbytes)
    assert f"a payload of {nbytes} bytes, its tensors' padding and header included, " in str(refusal.value)
    assert words in str(refusal.value)
    assert num_descriptors() == before
    assert table.written_by(CLIENT) == [held]
    let_go(table, held)


def test_memory_counts_until_all_processes_have_unmapped_it() -> None:
    table = segments()
    first = table.create(9, CLIENT, MODEL, 3 * MIB)
    table.remove(first)
    with pytest.raises(UnavailableError):
        table.create(10, CLIENT, MODEL, 3 * MIB)
    table.close(first)
    let_go(table, table.create(10, CLIENT, MODEL, 3 * MIB))


def test_there_are_at_most_256() -> None:
    table = segments()
    made = [table.create(100 + index, CLIENT, MODEL + index, 1) for index in range(256)]
    with pytest.raises(UnavailableError, match="there are 256 like it already, no more are taken"):
        table.create(9, CLIENT, MODEL, 1)
    for each in made:
        let_go(table, each)


def test_what_may_be_kept_is_no_more_than_a_quarter_of_the_room() -> None:
    table = segments(limit_nbytes=16 * MIB)
    granted = [table.create(9 + index, CLIENT, MODEL, MIB) for index in range(5)]
    assert [each.may_be_kept for each in granted] == [True, True, True, False, False]  # each has two pages more
    guests = table.create(20, CLIENT, MODEL, 1, is_guests=True)
    let_go(table, granted[0])
    let_go(table, granted[3])
    let_go(table, granted[4])
    again = table.create(21, CLIENT, MODEL, MIB)
    assert (guests.may_be_kept, again.may_be_kept) == (False, True)
    for each in (*granted[1:3], guests, again):
        let_go(table, each)


def test_of_small_ones_no_more_may_be_kept_than_a_quarter_of_how_many_there_may_be() -> None:
    table = segments()
    granted = [table.create(100 + index, CLIENT, MODEL, 1) for index in range(65)]
    assert [each.may_be_kept for each in granted[-2:]] == [True, False]
    for each in granted:
        let_go(table, each)


def test_one_worker_leaves_half_of_the_room_to_all_others() -> None:
    table = segments(4 * MIB)
    result, worker, another = 0, 6, 7
    first = table.create(9, worker, result, MIB)
    with pytest.raises(UnavailableError, match=r"1 earlier ones hold 1\d{6} of the 2097152 bytes"):
        table.create(10, worker, result, MIB)
    second = table.create(10, another, result, 2 * MIB + 4096)  # the first one may have more than that
    table.remove(first)
    table.close(first)
    third = table.create(11, worker, result, MIB)
    for each in (second, third):
        let_go(table, each)


def test_one_models_requests_leave_room_for_other_models_and_for_results() -> None:
    table = segments(16 * MIB)
    made = [table.create(100 + index, CLIENT, MODEL, MIB) for index in range(11)]
    with pytest.raises(
        UnavailableError, match=r"and 11 requests like it to the same model hold 11\d{6} bytes, of 16777"
    ):
        table.create(9, CLIENT + 1, MODEL, MIB)  # from another front end
    made += [table.create(200, CLIENT, MODEL + 1, 3 * MIB), table.create(201, 6, 0, MIB)]
    for each in made:
        let_go(table, each)


def test_one_models_many_small_requests_leave_segments_for_others() -> None:
    table = segments()
    made: list[OversizeSegment] = []
    while len(made) < 256:
        try:
            made.append(table.create(100 + len(made), CLIENT, MODEL, 1))
        except UnavailableError:
            break
    assert len(made) == 171
    let_go(table, table.create(9, CLIENT, MODEL + 1, 1))
    for each in made:
        let_go(table, each)


def test_a_model_that_calls_others_has_a_share_of_its_own() -> None:
    table, asked_for = segments(16 * MIB), -1
    made = [table.create(100 + index, CLIENT, asked_for, MIB) for index in range(11)]
    with pytest.raises(UnavailableError, match="11 requests like it to other models by the same one hold"):
        table.create(9, CLIENT, asked_for, MIB)
    made.append(table.create(9, CLIENT + 1, asked_for, MIB))
    for each in made:
        let_go(table, each)
