"""recorder/recorder.py: what is sampled is written, and before a death everything; within bounds, and redacted."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

from shoal.recorder.entry import Outcome
from shoal.recorder.folder import RecordingFolder, files_of
from shoal.recorder.recorded import Recording
from shoal.recorder.recorder import DEATH_WAIT_NS, KEPT_NS, Recorder
from shoal.shm.byte_ring import ByteRingReader
from tests.recorder.entries import made


class Ring:
    """The reader's end of a ring, as the recorder uses it."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.num_acknowledged = 0
        self._num_read = 0

    def read(self) -> Iterator[memoryview]:
        while self._num_read < len(self.entries):
            self._num_read += 1
            yield memoryview(self.entries[self._num_read - 1])

    def has_unread(self) -> bool:
        return self._num_read < len(self.entries)

    def acknowledge(self) -> None:
        self.num_acknowledged = self._num_read


class Play:
    """A recorder, its ring and its folder, with a clock that the test sets."""

    def __init__(self, path: Path, redact: tuple[str, ...] = ()) -> None:
        self.path = path
        self.now_ns = 0
        self.ring = Ring()
        self.recorder = Recorder(
            RecordingFolder(path, 16 << 20, 0, lambda: 1e9 + self.now_ns / 1e9), redact, lambda: self.now_ns
        )

    def step(self, *entries: bytes) -> None:
        self.ring.entries += entries
        self.recorder.step(cast(ByteRingReader, self.ring))

    def keys(self, *, died: bool) -> list[int]:
        files = [path for path in files_of(self.path) if ("died" in path.name) is died]
        return [request.key for path in files for request in Recording(path)]


def test_what_is_sampled_is_written_and_acknowledged(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.step(made(key=1), made(key=2, sampled=False), made(key=3))
    assert play.keys(died=False) == [1, 3]
    assert play.ring.num_acknowledged == 3


def test_the_seconds_before_a_death_are_written_whatever_the_sample(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.step(made(key=1, sampled=False))
    play.now_ns = KEPT_NS + 1
    play.step(made(key=2, sampled=False), made(key=3, model="other"), made(key=4))
    assert play.keys(died=True) == []
    play.step(made(key=5, outcome=Outcome.DIED, status=2), made(key=6))
    assert play.keys(died=True) == [2, 4, 5, 6]
    play.step(made(key=7, outcome=Outcome.DIED, status=2))
    assert play.keys(died=True) == [2, 4, 5, 6, 7]  # nothing twice


def test_a_death_waits_for_all_requests_of_its_batch_within_bounds(tmp_path: Path) -> None:
    play = Play(tmp_path)
    died = [made(key=key, outcome=Outcome.DIED, status=2, worker=4, batch=9, num_requests=3) for key in (5, 6, 7)]
    play.step(made(key=1, sampled=False), *died[:2])
    assert play.keys(died=True) == []
    play.step(died[2])
    assert play.keys(died=True) == [1, 5, 6, 7]
    play.step(*died[:1])  # the others have been cancelled
    play.now_ns += DEATH_WAIT_NS
    play.step()
    assert play.keys(died=True) == [1, 5, 6, 7, 5]
    play.step(*died[1:2])
    play.recorder.write_deaths()  # the server ends
    assert play.keys(died=True) == [1, 5, 6, 7, 5, 6]


def test_an_entry_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.step(b"12345678", made(key=2))
    assert play.keys(died=False) == [2]
    assert play.recorder.num_lost == 1


def test_a_disk_that_refuses_loses_what_is_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    play = Play(tmp_path / "file" / "in")
    play.step(made(key=1), made(key=2, outcome=Outcome.PART), made(key=2))
    assert play.recorder.num_lost == 2
    assert play.ring.num_acknowledged == 3
    (tmp_path / "file").unlink()
    play.step(made(key=3))
    assert play.keys(died=False) == [3]


def test_what_is_redacted_never_reaches_a_file(tmp_path: Path) -> None:
    play = Play(tmp_path, ("IN", "parameters.token", "id"))
    play.step(made(id_="secret-id", parameters={"token": "secret-token", "top_k": 3}))
    (request,) = Recording(tmp_path)
    assert request.inputs[0].data == bytes(8)
    assert request.inputs[0].shape == (1, 2)
    assert request.id == ""
    assert request.parameters == {"top_k": 3}
    assert request.responses[0].outputs[0].array().tolist() == [[3.0, 4.0]]
    play = Play(tmp_path / "outputs", ("OUT",))
    play.step(made(id_="kept"))
    (request,) = Recording(tmp_path / "outputs")
    assert request.responses[0].outputs[0].data == bytes(8)
    assert request.inputs[0].array().tolist() == [[1.0, 2.0]]
    assert request.id == "kept"
