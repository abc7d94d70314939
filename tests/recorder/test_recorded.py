"""recorder/recorded.py: requests as a reader has them, out of whole, damaged and hostile files."""

import random
from pathlib import Path

import pytest

from shoal.recorder.entry import Outcome, unpack
from shoal.recorder.recorded import RecordedTensor, Recording, batches
from shoal.recorder.redaction import redacted
from shoal.recorder.segment_file import file_head, pack_frame
from tests.recorder.entries import made


def file_of(folder: Path, name: str, *entries: bytes) -> Path:
    path = folder / f"{name}.shoalrec"
    path.write_bytes(file_head() + b"".join([pack_frame([each]) for each in entries]))
    return path


def test_a_request_is_what_it_was(tmp_path: Path) -> None:
    packed = made(id_="mine", parameters={"k": 1}, start_ns=1000, end_ns=5000, wall_offset_ns=7)
    (request,) = Recording(file_of(tmp_path, "one", packed))
    assert (request.number, request.id, request.parameters, request.outcome) == (1, "mine", {"k": 1}, Outcome.OK)
    assert (request.arrival_ns, request.total_ns) == (1007, 4000)
    assert request.inputs[0].array().tolist() == [[1.0, 2.0]]
    assert request.responses[0].outputs[0].array().tolist() == [[3.0, 4.0]]


def test_an_output_that_has_stayed_on_a_gpu_is_left_out(tmp_path: Path) -> None:
    (request,) = Recording(file_of(tmp_path, "one", made(stays=True)))
    assert [each.name for each in request.responses[0].outputs] == ["OUT"]
    whole = memoryview(made(stays=True))
    (request,) = Recording(file_of(tmp_path, "two", redacted(whole, unpack(whole), ["OUT", "THERE"])))
    assert [each.array().tolist() for each in request.responses[0].outputs] == [[[0.0, 0.0]]]


def test_a_folder_is_read_in_the_order_of_its_files_and_goes_on_behind_damage(tmp_path: Path) -> None:
    file_of(tmp_path, "b", made(key=3), made(key=4))
    whole = file_of(tmp_path, "a", made(key=1), made(key=2))
    recording = Recording(tmp_path)
    assert [(each.number, each.key) for each in recording] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert recording.damage == {}
    whole.write_bytes(whole.read_bytes()[:-1])
    assert [each.key for each in recording] == [1, 3, 4]
    assert [*recording.damage] == [whole]


def test_parts_belong_to_the_request_that_ends_later(tmp_path: Path) -> None:
    path = file_of(
        tmp_path,
        "stream",
        made(key=1, outcome=Outcome.PART),
        made(key=2),
        made(key=1, outcome=Outcome.PART),
        made(key=1),
    )
    assert [(each.key, len(each.responses)) for each in Recording(path)] == [(2, 1), (1, 3)]


def test_batches_are_put_together_in_their_order(tmp_path: Path) -> None:
    def executed(key: int, batch: int, position: int) -> bytes:
        return made(key=key, batch=batch, position=position, instance=7 << 42, worker=3, num_requests=2)

    entries = [executed(1, 1, 1), made(key=2), executed(3, 1, 0), executed(4, 2, 0)]
    found = batches(list(Recording(file_of(tmp_path, "batches", *entries))))
    assert [[each.key for each in batch] for batch in found] == [[3, 1], [2], [4]]


@pytest.mark.parametrize("seed", range(20))
def test_hostile_entries_are_left_out_and_said(tmp_path: Path, seed: int) -> None:
    """With right checksums, as any writer of a file can compute."""
    noise, packed = random.Random(seed), bytearray(made())
    for _ in range(noise.randrange(1, 20)):
        packed[noise.randrange(len(packed))] = noise.randrange(256)
    recording = Recording(file_of(tmp_path, "hostile", bytes(packed), made(key=9)))
    found = list(recording)
    assert found[-1].key == 9
    assert len(found) >= 2 or recording.damage


def test_redacted_strings_are_empty_ones() -> None:
    assert RecordedTensor("X", "BYTES", (2, 1), bytes(30)).array().tolist() == [[b""], [b""]]
    with pytest.raises(ValueError, match="reshape"):
        RecordedTensor("X", "FP32", (2, 2), bytes(8)).array()
